"""Layer 3: who may serve a request, and why not. Rules are data; all of them run, so the user sees every reason.

For integrators: ``check(cc="sm_121", cudnn="9.28.1", ...)`` answers for cuDNN and calls that flexsdpa itself does not run.
"""

from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.eligibility.field.decide import FieldDecision, check

__all__ = ["FieldCase", "FieldDecision", "check"]
