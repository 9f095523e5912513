"""The library's logger. It adds no handler and sets no level: INFO when a plan is built, DEBUG for refusals."""

from __future__ import annotations

import logging

logger = logging.getLogger("flexsdpa")
