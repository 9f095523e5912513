"""The version, which keys hold."""

from __future__ import annotations

import functools
import importlib.metadata
import sys

__version__ = "0.1.0"


@functools.cache
def installed(library: str) -> str:
    """The version of an installed library, as it calls itself; asked once, whether or not it is loaded."""
    loaded = getattr(sys.modules.get(library), "__version__", None)
    if loaded is not None:
        return str(loaded)
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
