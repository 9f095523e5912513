"""Rows of the field's rules: when one applies it declines, or leaves open, and says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from flexsdpa.eligibility.field.case import FieldCase

Answer = Literal["eligible", "declined", "unsure"]


@dataclass(frozen=True, slots=True)
class Row:
    """One rule. ``refuses``: the calls that it concerns. opens: it leaves the answer open instead of declining.

    source: GATE, MATRIX, DPA, CP, JAX: TransformerEngine's tables and front doors; FE: cudnn-frontend's checks; LIB: plans
    that the library itself built or refused for described cards.
    """

    id: str
    refuses: Callable[[FieldCase], bool]
    reason: str
    source: str
    opens: bool = False


def between(case: FieldCase, first: tuple[int, ...], before: tuple[int, ...]) -> bool:
    """Whether first <= library version < before."""
    return first <= case.cudnn < before


def below(case: FieldCase, *version: int) -> bool:
    return case.cudnn < version


def since(case: FieldCase, *version: int) -> bool:
    return case.cudnn >= version
