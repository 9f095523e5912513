"""Rules against records: every answer of the library that the rules do not predict, unless a row explains it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from flexsdpa.backends.cudnn.rules import RULES
from flexsdpa.eligibility.field.decide import ROWS
from flexsdpa.oracle.explained import EXPLAINED, Explained
from flexsdpa.oracle.programs import own_request, request_for
from flexsdpa.oracle.questions import QUESTIONS, Question
from flexsdpa.oracle.records import Cell, Records
from flexsdpa.spec.request import AttentionRequest, Direction

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
    """The comparison of all records. stale: questions whose answers are to another question than is asked now. missing: how many
    answers a release lacks, by release."""

    judged: tuple[Judged, ...]
    stale: tuple[str, ...]
    missing: tuple[tuple[str, int], ...] = ()

    def of(self, outcome: Outcome) -> list[Judged]:
        return [one for one in self.judged if one.outcome == outcome]

    @property
    def unused(self) -> list[Explained]:
        """Explanations that explain nothing any more."""
        used = {one.by for one in self.judged}
        return [row for row in EXPLAINED if row not in used]

    def summary(self) -> str:
        """Counts on one line."""
        cells = [one.cell for one in self.judged]
        counts = Counter(one.outcome for one in self.judged)
        releases, cards = {cell.cudnn for cell in cells}, {cell.card for cell in cells}
        return (
            f"{len(cells)} cells, {len(releases)} versions of cuDNN, {len(cards)} cards: {counts['agrees']} agree, "
            f"{counts['explained']} explained, {counts['unexplained']} unexplained"
        )

    @property
    def good(self) -> bool:
        return not self.stale and not self.missing and not self.of("unexplained") and not self.unused


def check(records: Iterable[Records]) -> Report:
    """Compares every recorded answer with the rules."""
    known = tuple(records)
    cells = (cell for one in known for cell in one.cells() if cell.question in QUESTIONS)
    stale = tuple(f"{one.cudnn}: {name}" for one in known for name in one.stale())
    missing = tuple((one.cudnn, len(lacking)) for one in known if (lacking := one.missing()))
    return Report(tuple(judge(cell) for cell in cells), stale, missing)


def judge(cell: Cell) -> Judged:
    """Agreement: the rules that speak for the library refuse what it refused, and nothing that it planned."""
    refusing = rules_against(QUESTIONS[cell.question], cell)
    if bool(refusing) != cell.planned and not cell.broken:
        return Judged(cell, refusing, None, "agrees")
    by = next((row for row in EXPLAINED if row.covers(cell, refusing)), None)
    return Judged(cell, refusing, by, "explained" if by else "unexplained")


def rules_against(question: Question, cell: Cell) -> tuple[str, ...]:
    """Ids of the library's rules that refuse a call. Rules of its callers are not asked: they may refuse more.

    Of a call that flexsdpa would make itself, the cudnn backend's own rules must know a refusal too: none if they do not.
    """
    case = question.case(cell.card, cell.cudnn, cell.direction)
    direction: Direction = "backward" if cell.direction == "backward" else "forward"
    if question.program:
        return own_rules(request_for(case, direction, question.program))
    own = None if cell.planned else own_request(case, direction)
    if own is not None and not own_rules(own):
        return ()
    return tuple(sorted(row.id for row in ROWS if row.of_library and row.refuses(case)))


def own_rules(request: AttentionRequest) -> tuple[str, ...]:
    """Ids of the cudnn backend's rules that refuse a request."""
    return tuple(sorted(rule.id for rule in RULES if rule.check(request)))


def unknown_ids() -> Iterator[str]:
    """Rule ids that explanations name and nobody has."""
    known = {row.id for row in ROWS} | {rule.id for rule in RULES}
    return (row.rule for row in EXPLAINED if row.rule and row.rule not in known)
