"""flexsdpa: attention with any score function, at the speed of the best kernel, never wrong in silence.

``flexsdpa.torch.attention(q, k, v, score_mod=..., mask_mod=...)`` is the call; ``flexsdpa.mods`` has ready mods,
``flexsdpa.ops`` the functions that a mod may use without a framework. Importing flexsdpa imports no framework.
"""

from flexsdpa.config import options
from flexsdpa.engine import cache_clear, cache_info
from flexsdpa.errors import (
    ArgumentError,
    BuildError,
    FlexSDPAError,
    ProgramError,
    ReadError,
    RequestError,
    TraceError,
    UnsupportedError,
)
from flexsdpa.version import __version__

__all__ = [
    "ArgumentError",
    "BuildError",
    "FlexSDPAError",
    "ProgramError",
    "ReadError",
    "RequestError",
    "TraceError",
    "UnsupportedError",
    "__version__",
    "cache_clear",
    "cache_info",
    "options",
]
