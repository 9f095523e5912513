"""Every error that flexsdpa raises on purpose, and the layout of its text.

Line one of a message stands alone (compilers keep the text and lose the type); the request, the
reasons and one thing to try follow, one per line, in aligned columns.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class FlexSDPAError(Exception):
    """Base class: ``except FlexSDPAError`` catches everything raised on purpose."""


class RequestError(FlexSDPAError, ValueError):
    """An argument is wrong. ``field`` names it, ``got`` is what was asked."""

    def __init__(self, message: str, *, field: str = "", got: object = None) -> None:
        self.args = (message,)  # not super().__init__: torch.compile traces this, and does not know that
        self.field = field
        self.got = got


class ArgumentError(RequestError, TypeError):
    """A keyword that a call does not have; other attention functions do, and the text says what to write here."""


class TraceError(FlexSDPAError, TypeError):
    """A score_mod or mask_mod did something that a traced value cannot honour."""


class TraceAttributeError(TraceError, AttributeError):
    """An attribute or method that a traced value does not have (so ``hasattr`` works)."""


class ReadError(FlexSDPAError, IndexError):
    """A captured tensor was read out of range at a position that the mask keeps."""


class UnsupportedError(FlexSDPAError, NotImplementedError):
    """No backend can serve the request. ``decision`` holds every refusal as a record."""

    def __init__(self, message: str, *, decision: object = None) -> None:
        super().__init__(message)
        self.decision = decision


class BuildError(FlexSDPAError, RuntimeError):
    """A backend accepted a request and then failed to build its plan."""


class ProgramError(FlexSDPAError, ValueError):
    """Program text that is not well formed. A defect of the producer, never of the user's data."""


def layout_message(headline: str, rows: Iterable[tuple[str, str]] = ()) -> str:
    """Joins a headline that stands alone with aligned ``label  text`` rows."""
    kept = [(label, text) for label, text in rows if text]
    width = 0
    for label, _ in kept:  # no max() with a default: torch.compile traces this, and does not know it
        width = len(label) if len(label) > width else width
    return "\n".join([headline, *(f"  {label:<{width}}  {text}" for label, text in kept)])


def nearest(name: str, known: Sequence[str]) -> str:
    """``" (did you mean 'bshd'?)"`` when a known name is close, else an empty string."""
    close = [one for one in known if one.lower() == str(name).lower()]
    close = close or difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
