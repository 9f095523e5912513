"""FieldCase -> FieldDecision: every row runs, so that every reason is seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flexsdpa.eligibility.field import cards, half, others
from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.eligibility.field.row import Answer, Row

ROWS: tuple[Row, ...] = (
    *cards.ROWS, *half.ROWS, *others.FP8_ROWS, *others.CACHE_ROWS, *others.SCORE_MOD_ROWS, *others.PARALLEL_ROWS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FieldDecision:
    """Whether cuDNN serves a call. declines and opens: the rows that say no, and those that leave it open."""

    declines: tuple[Row, ...]
    opens: tuple[Row, ...]

    @property
    def answer(self) -> Answer:
        return "declined" if self.declines else "unsure" if self.opens else "eligible"

    def reasons(self) -> list[str]:
        return [f"{row.id}: {row.reason} ({row.source})" for row in (*self.declines, *self.opens)]


def check(**arguments: Any) -> FieldDecision:
    """Whether cuDNN serves a call, and every reason why not, without a GPU. Arguments as for ``FieldCase.of``.

    Example:
        >>> from flexsdpa.eligibility import check
        >>> check(cc="sm_121", cudnn="9.28.1", mask="causal", training=True, deterministic=True).reasons()
        ['CUDNN-12X-04: no deterministic training on this family (GATE; FE)']
    """
    return decide_case(FieldCase.of(**arguments))


def decide_case(case: FieldCase) -> FieldDecision:
    """Asks every row."""
    refusing = [row for row in ROWS if row.refuses(case)]
    return FieldDecision(tuple(r for r in refusing if not r.opens), tuple(r for r in refusing if r.opens))
