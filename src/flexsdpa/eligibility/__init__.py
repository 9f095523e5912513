"""Layer 3: who may serve a request, and why not. Rules are data; all of them run, so the user sees every reason.

For integrators: ``check(cc="sm_121", cudnn="9.28.1", ...)`` answers for cuDNN, FlashAttention 2 to 4, the interval kernels and
FlexAttention, also for calls that flexsdpa itself does not run; ``check_all`` asks every one of them.
"""

from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.eligibility.field.decide import FieldDecision, check, check_all

__all__ = ["FieldCase", "FieldDecision", "check", "check_all"]
