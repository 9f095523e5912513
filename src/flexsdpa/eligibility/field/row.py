"""Rows of the field's rules: when one applies it declines, or leaves open, and says why."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from types import CodeType, FunctionType
from typing import Any, Literal

from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.eligibility.rule import Refusal

Answer = Literal["eligible", "declined", "unsure"]
Kind = Literal["limit", "not yet"]
LIBRARY = ("FE", "LIB")
"""Sources that speak for the library itself: its frontend's checks, and plans that it built or refused."""


@dataclass(frozen=True, slots=True)
class Row:
    """One rule. ``refuses``: the calls that it concerns. opens: it leaves the answer open instead of declining.

    source: GATE, MATRIX, DPA, CP, JAX: TransformerEngine's tables and front doors; FE: cudnn-frontend's checks; LIB: plans
    that the library itself built or refused for described cards; FA4: flash-attention's own checks; FEFLEX: those of
    cudnn.flex_attention; TESTS: only skip conditions of tests. kind: "not yet" is what flexsdpa does not run, "limit" what
    the library or its caller does not serve.
    """

    id: str
    refuses: Callable[[FieldCase], bool]
    reason: str
    source: str
    opens: bool = False
    hint: str = ""
    kind: Kind = "limit"

    @property
    def of_library(self) -> bool:
        """Whether the library itself refuses; else it is its caller's choice."""
        return any(word.split()[0] in LIBRARY for word in self.source.split("; "))

    @property
    def fields(self) -> tuple[str, ...]:
        """The arguments of a call that the row looks at, in the order of FieldCase."""
        return _fields(self.refuses)

    def refusal(self, case: FieldCase) -> Refusal:
        """The row's answer to a case, as a record."""
        got = ", ".join(f"{name} {show(getattr(case, name))}" for name in self.fields)
        return Refusal(self.id, ", ".join(self.fields), got, self.reason, self.hint, self.source)


def show(value: Any) -> str:
    """An argument as people write it: versions and cards with points, flags as words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ".".join(map(str, value)) if isinstance(value, tuple) and min(value, default=0) >= 0 else str(value)


ORDER = tuple(field.name for field in fields(FieldCase))


@functools.cache
def _fields(function: FunctionType) -> tuple[str, ...]:
    """What of a FieldCase a function reads, by way of properties and helpers too."""
    found: set[str] = set()
    _follow(function, found, set())
    return tuple(name for name in ORDER if name in found)


def _follow(function: FunctionType, found: set[str], seen: set[FunctionType]) -> None:
    if function in seen:
        return
    seen.add(function)
    for name in _names(function.__code__):
        part = getattr(FieldCase, name, None)
        helper = part.fget if isinstance(part, property) else part
        helper = helper if isinstance(helper, FunctionType) else function.__globals__.get(name)
        if name in ORDER:
            found.add(name)
        elif isinstance(helper, FunctionType) and helper.__module__.startswith(__package__):
            _follow(helper, found, seen)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def between(case: FieldCase, first: tuple[int, ...], before: tuple[int, ...]) -> bool:
    """Whether first <= library version < before."""
    return first <= case.cudnn < before


def below(case: FieldCase, *version: int) -> bool:
    return case.cudnn < version


def since(case: FieldCase, *version: int) -> bool:
    return case.cudnn >= version
