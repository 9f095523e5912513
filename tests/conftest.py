"""Hypothesis profiles, and the folder from which tests import their helpers. Loads no framework."""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # for ``from null.helpers import ...``

SLOW_MACHINES = [HealthCheck.too_slow]
"""Two shared cores: how long an example takes to draw is no property of the code."""

settings.register_profile("dev", max_examples=50, deadline=None, suppress_health_check=SLOW_MACHINES)
settings.register_profile(
    "ci", max_examples=150, deadline=None, suppress_health_check=SLOW_MACHINES, derandomize=True, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))
