"""Options. Order of precedence: keyword > ``with options(...)`` > environment > default.

Every option is a row; ``flexsdpa doctor`` prints the table with the values in force.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from flexsdpa.errors import RequestError, nearest


@dataclass(frozen=True, slots=True)
class Option:
    """One option. ``parse`` turns text into a value and raises ValueError for text that is none."""

    name: str
    default: Any
    parse: Callable[[str], Any]
    valid: str
    doc: str

    @property
    def env(self) -> str:
        return f"FLEXSDPA_{self.name.upper()}"


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _word(text: str) -> str:
    if not text.isidentifier():
        raise ValueError(text)
    return text


OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        Option("backend", "auto", _word, "auto, or a backend's name", "The backend of calls that name none."),
        Option(
            "plan_cache_size", 256, _positive, "an integer >= 1", "Plans kept in the process; the least recently used goes first."
        ),
        Option(
            "cache_dir",
            "",
            str,
            "a folder, or off",
            "Where built GPU kernels are kept; by default flexsdpa in the user's cache folder.",
        ),
        Option(
            "cache_bytes",
            1 << 30,
            _positive,
            "an integer >= 1",
            "Size of that folder, at most; the least recently used goes first.",
        ),
        Option(
            "request_log",
            "",
            str,
            "a file",
            "Where every new request is appended as a line of JSON, for flexsdpa explain --from; by default nowhere.",
        ),
        Option("tile_elements", 1 << 20, _positive, "an integer >= 1", "Scores that the reference backend holds at once."),
        Option("tile_q", 128, _positive, "an integer >= 1", "Queries in one tile of the reference backend."),
        Option("tile_kv", 1024, _positive, "an integer >= 1", "Keys in one tile of the reference backend, at most."),
    )
}

_context: ContextVar[tuple[tuple[str, Any], ...]] = ContextVar("flexsdpa_options", default=())


def get(name: str) -> Any:
    """The value of an option in force here."""
    for known, value in reversed(_context.get()):
        if known == name:
            return value
    option = OPTIONS[name]
    text = os.environ.get(option.env)
    return option.default if text is None else _parsed(option, text, option.env)


def _parsed(option: Option, text: Any, where: str) -> Any:
    try:
        return option.parse(str(text))
    except ValueError:
        raise RequestError(f"{where}={text!r} is not valid: expected {option.valid}", field=option.name, got=text) from None


@contextmanager
def options(**values: Any) -> Iterator[None]:
    """Sets options for the calls inside a ``with`` block, in this thread or task.

    Example: ``with flexsdpa.options(backend="reference"): ...``
    """
    for name in values:
        if name not in OPTIONS:
            raise RequestError(f"unknown option {name!r}{nearest(name, list(OPTIONS))}; known: {', '.join(OPTIONS)}", field=name)
    checked = tuple((name, _parsed(OPTIONS[name], value, name)) for name, value in values.items())
    token = _context.set(_context.get() + checked)
    try:
        yield
    finally:
        _context.reset(token)


def source(name: str) -> str:
    """Where the value in force comes from: context, environment or default."""
    if any(known == name for known, _ in _context.get()):
        return "context"
    return "environment" if OPTIONS[name].env in os.environ else "default"
