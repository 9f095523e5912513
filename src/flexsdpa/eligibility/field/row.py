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
SOURCES: dict[str, str] = {
    "GATE": "TransformerEngine, the policy of its fused attention (fused_attn.cpp)",
    "MATRIX": "TransformerEngine, its table of backends (attention utils)",
    "DPA": "TransformerEngine, DotProductAttention",
    "CP": "TransformerEngine, context parallelism",
    "JAX": "TransformerEngine, its JAX front door",
    "TESTS": "only skip conditions of tests",
    "FE": "cudnn-frontend 1.32, its own checks",
    "LIB": "cuDNN itself: plans that it built or refused for described cards (flexsdpa oracle show)",
    "FA4": "flash-attention 4, its own checks",
    "FEFLEX": "cudnn-frontend 1.32, cudnn.flex_attention",
    "flexsdpa": "flexsdpa itself",
}
"""What the words in ``Row.source`` stand for."""
LIBRARY = ("FE", "LIB")
"""Sources that speak for the library itself: its frontend's checks, and plans that it built or refused."""


@dataclass(frozen=True, slots=True)
class Row:
    """One rule. ``refuses``: the calls that it concerns. opens: it leaves the answer open instead of declining.

    source: words of SOURCES, with releases or files. kind: "not yet" is what flexsdpa does not run, "limit" what the library or
    its caller does not serve. binds: it holds whoever calls, although the library itself does not refuse: wrong results, and
    cards or dtypes that it has no kernels for.
    """

    id: str
    refuses: Callable[[FieldCase], bool]
    reason: str
    source: str
    opens: bool = False
    hint: str = ""
    kind: Kind = "limit"
    binds: bool = False

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
        names = [ARGUMENTS.get(name, name) for name in self.fields]
        got = ", ".join(f"{name} {show(field, getattr(case, field))}" for name, field in zip(names, self.fields, strict=True))
        kind = "open" if self.opens else self.kind
        return Refusal(self.id, ", ".join(names), got, "", self.hint, self.source, self.reason, kind)


ARGUMENTS = {"page": "paged"}
"""Fields of FieldCase that callers know by another name."""
POINTED = ("cc", "cudnn", "flash")


def show(name: str, value: Any) -> str:
    """An argument as people write it: versions and cards with points, flags as words, windows as left:right."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in POINTED:
        return ".".join(map(str, value)) or "newest"
    if name == "window":
        return ":".join(map(str, value))
    return "none" if name == "page" and not value else str(value)


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
