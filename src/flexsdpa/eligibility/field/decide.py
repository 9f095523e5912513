"""FieldCase -> FieldDecision: every row runs, so that every reason is seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flexsdpa.eligibility.field import cards, flash, half, others, ours
from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.eligibility.field.row import Answer, Row
from flexsdpa.eligibility.preference import field_order
from flexsdpa.eligibility.rule import Refusal
from flexsdpa.errors import RequestError, nearest
from flexsdpa.spec.device import ASSUMED_CUDNN
from flexsdpa.spec.families import note_on

ROWS: tuple[Row, ...] = (
    *cards.ROWS, *half.ROWS, *others.FP8_ROWS, *others.CACHE_ROWS, *others.SCORE_MOD_ROWS, *others.PARALLEL_ROWS,
)  # fmt: skip
"""cuDNN's."""
BACKENDS: dict[str, tuple[Row, ...]] = {
    "cudnn": ROWS, "fa2": (*flash.COMMON, *flash.FA2), "fa3": (*flash.COMMON, *flash.FA3), "fa4": (*flash.COMMON, *flash.FA4),
    "interval": ours.INTERVAL, "flex": ours.FLEX, "reference": ours.REFERENCE,
}  # fmt: skip
"""Backend -> its rows. interval: cudnn.flex_attention; flex: torch FlexAttention; reference: flexsdpa's own."""


@dataclass(frozen=True, slots=True)
class FieldDecision:
    """Whether a backend serves a call. declines and opens: the rows that say no, and those that leave it open."""

    case: FieldCase
    backend: str
    declines: tuple[Row, ...]
    opens: tuple[Row, ...]

    @property
    def answer(self) -> Answer:
        return "declined" if self.declines else "unsure" if self.opens else "eligible"

    @property
    def eligible(self) -> bool:
        return self.answer == "eligible"

    def __bool__(self) -> bool:
        return self.eligible

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of the card and the release, whatever the answer: a card or a release that nobody has asked."""
        newest = tuple(int(part) for part in ASSUMED_CUDNN.split("."))
        version = ".".join(map(str, self.case.cudnn))
        newer = f"cuDNN {version} is newer than any release that the rules were checked with ({ASSUMED_CUDNN})"
        return tuple(note for note in (note_on(self.case.cc), newer if self.case.cudnn > newest else "") if note)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The rows' answers as records: rule, field, got, need, hint, source, reason, kind."""
        return tuple(row.refusal(self.case) for row in (*self.declines, *self.opens))

    def reasons(self) -> list[str]:
        return [f"{row.id}: {row.reason} ({row.source})" for row in (*self.declines, *self.opens)]


def check(backend: str = "cudnn", **arguments: Any) -> FieldDecision:
    """Whether a backend serves a call, and every reason why not, without a GPU. Arguments as for ``FieldCase.of``.

    Raises RequestError for arguments that make no sense.

    Example:
        >>> from flexsdpa.eligibility import check
        >>> check(cc="sm_121", cudnn="9.28.1", mask="causal", training=True, deterministic=True).reasons()
        ['CUDNN-12X-04: no deterministic training on this family (GATE)']
        >>> check("fa3", cc="sm_121").refusals[0].rule
        'FA3-ARCH-01'
    """
    return decide_case(FieldCase.of(**arguments), backend)


def check_all(**arguments: Any) -> dict[str, FieldDecision]:
    """Every backend's answer to a call, the preferred one first. Arguments as for ``FieldCase.of``.

    Raises RequestError for arguments that make no sense.

    Example:
        >>> from flexsdpa.eligibility import check_all
        >>> [name for name, decision in check_all(cc="sm_90", mask="causal").items() if decision.answer == "eligible"]
        ['cudnn', 'fa3', 'fa4', 'fa2', 'interval', 'flex', 'reference']
    """
    case = FieldCase.of(**arguments)
    names = field_order(case.family_name, tuple(BACKENDS))
    return {name: decide_case(case, name) for name in names}


def decide_case(case: FieldCase, backend: str = "cudnn") -> FieldDecision:
    """Asks every row. Rows of cuDNN's other callers do not concern flexsdpa's own calls; rows of what it does not run do."""
    if backend not in BACKENDS:
        known = ", ".join(BACKENDS)
        raise RequestError(f"unknown backend {backend!r}{nearest(backend, list(BACKENDS))}; known: {known}", field="backend")
    rows = BACKENDS[backend]
    if backend == "cudnn" and case.framework in ("flexsdpa", "library"):
        rows = tuple(row for row in rows if row.of_library or row.binds)
    if case.framework == "flexsdpa":
        rows = tuple(dict.fromkeys((*rows, *ours.NOT_YET, *ours.RUN.get(backend, (ours.NO_BACKEND,)))))
    refusing = [row for row in rows if row.refuses(case)]
    declines, opens = (tuple(row for row in refusing if row.opens is side) for side in (False, True))
    return FieldDecision(case, backend, declines, opens)
