"""Rules against records: every answer of the library that the rules do not predict, unless a row explains it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from flexsdpa.backends.cudnn.rules import RULES
from flexsdpa.eligibility.field.decide import ROWS
from flexsdpa.oracle.explained import EXPLAINED, Explained
from flexsdpa.oracle.programs import request_for
from flexsdpa.oracle.questions import QUESTIONS, Question
from flexsdpa.oracle.records import Cell, Records

Outcome = Literal["agrees", "explained", "unexplained"]


@dataclass(frozen=True, slots=True)
class Judged:
    """A cell beside the rules. refusing: ids of the rules that say no. by: the row that explains a disagreement."""

    cell: Cell
    refusing: tuple[str, ...]
    by: Explained | None
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Report:
    """The comparison of all records. stale: questions whose answers are to another question than is asked now."""

    judged: tuple[Judged, ...]
    stale: tuple[str, ...]

    def of(self, outcome: Outcome) -> list[Judged]:
        return [one for one in self.judged if one.outcome == outcome]

    @property
    def unused(self) -> list[Explained]:
        """Explanations that explain nothing any more."""
        used = {one.by for one in self.judged}
        return [row for row in EXPLAINED if row not in used]

    @property
    def good(self) -> bool:
        return not self.stale and not self.of("unexplained") and not self.unused


def check(records: Iterable[Records]) -> Report:
    """Compares every recorded answer with the rules."""
    known = tuple(records)
    cells = (cell for one in known for cell in one.cells() if cell.question in QUESTIONS)
    stale = tuple(f"{one.cudnn}: {name}" for one in known for name in one.stale())
    return Report(tuple(judge(cell) for cell in cells), stale)


def judge(cell: Cell) -> Judged:
    """Agreement: a planned cell that no rule of the library refuses, or a refused one that any rule does."""
    question = QUESTIONS[cell.question]
    library, callers = (frozenset(names) for names in refusing(question, cell))
    wrong = bool(library) if cell.planned else not library | callers
    ids = tuple(sorted(library if cell.planned else library | callers))
    if not wrong and not cell.broken:
        return Judged(cell, ids, None, "agrees")
    by = next((row for row in EXPLAINED if row.covers(cell, ids)), None)
    return Judged(cell, ids, by, "explained" if by else "unexplained")


def refusing(question: Question, cell: Cell) -> tuple[list[str], list[str]]:
    """Ids of the rules that refuse a call: those that speak for the library, and those of its callers."""
    case = question.case(cell.card, cell.cudnn, cell.direction)
    if question.program:
        request = request_for(case, "backward" if cell.direction == "backward" else "forward", question.program)
        return [rule.id for rule in RULES if rule.check(request)], []
    rows = [row for row in ROWS if row.refuses(case) and not (row.opens and not row.of_library)]
    return [row.id for row in rows if row.of_library], [row.id for row in rows if not row.of_library]


@functools.cache
def families() -> tuple[str, ...]:
    return tuple(sorted({row.id for row in ROWS} | {rule.id for rule in RULES}))


def unknown_ids() -> Iterator[str]:
    """Rule ids that explanations name and nobody has."""
    return (row.rule for row in EXPLAINED if row.rule and row.rule not in families())
