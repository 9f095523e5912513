"""Answers of the library that the rules do not predict, and why both stand."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from flexsdpa.oracle.records import Cell


@dataclass(frozen=True, slots=True)
class Explained:
    """One explanation. questions: a pattern of names. rule: the id of the rule that refuses what the library plans; empty where
    the library refuses what no rule does. cards, releases: empty for all."""

    questions: str
    direction: str
    rule: str
    why: str
    cards: tuple[int, ...] = ()
    releases: tuple[str, ...] = ()

    def covers(self, cell: Cell, ids: tuple[str, ...]) -> bool:
        asked = fnmatchcase(cell.question, self.questions) and self.direction in (cell.direction, "both")
        here = (not self.cards or cell.card in self.cards) and (not self.releases or cell.cudnn in self.releases)
        return asked and here and (self.rule in ids if self.rule else not ids)


EXPLAINED: tuple[Explained, ...] = ()
