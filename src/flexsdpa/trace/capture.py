"""Names of captured tensors, for error texts. Never part of a key."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

MAX_DEPTH = 4


def capture_name(mods: tuple[Any, ...], tensor: Any) -> str:
    """How the user's code calls a captured tensor: a variable, default or attribute; empty if it cannot be found."""
    for mod in mods:
        for name, value in _named_values(mod, MAX_DEPTH):
            if value is tensor:
                return name
    return ""


def _named_values(mod: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if mod is None or depth == 0:
        return
    if isinstance(mod, functools.partial):
        yield from mod.keywords.items()
        yield from ((f"argument {n}", value) for n, value in enumerate(mod.args))
        yield from _named_values(mod.func, depth - 1)
        return
    owner = getattr(mod, "__self__", None)
    if owner is not None:
        yield from _attributes(owner, "self.")
    function = getattr(mod, "__func__", mod)
    code = getattr(function, "__code__", None)
    if code is None:
        yield from _attributes(mod, "")
        yield from _named_values(type(mod).__dict__.get("__call__"), depth - 1)
        return
    values = dict(_cells(function, code))
    values.update(
        zip(code.co_varnames[code.co_argcount - len(function.__defaults__ or ()) :], function.__defaults__ or (), strict=False)
    )
    values.update(function.__kwdefaults__ or {})
    values.update({name: function.__globals__[name] for name in code.co_names if name in function.__globals__})
    yield from values.items()
    for name, value in values.items():
        if callable(value) and not hasattr(value, "shape"):
            yield from _named_values(value, depth - 1)
        else:
            yield from _attributes(value, f"{name}.")


def _cells(function: Any, code: Any) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue


def _attributes(owner: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for store in ("__dict__", "_parameters", "_buffers"):
        for name, value in dict(getattr(owner, store, None) or {}).items():
            yield f"{prefix}{name}", value
