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


TRAINING = "a forward graph with dropout is a training call's; the rules speak of calls, and inference drops nothing"
EXPLAINED: tuple[Explained, ...] = (
    Explained("bottom-right, dropout", "forward", "", TRAINING),
    Explained("dropout of 1", "forward", "", TRAINING),
    Explained("ragged, ragged statistics", "backward", "",
        "the question forces what ragged_statistics() never asks of sm_8x and sm_12x: their statistics are dense",
        cards=(80, 86, 89, 120)),
    Explained("ragged without lengths", "backward", "CUDNN-THD-04",
        "the library refuses the forward alone; without its results there is nothing to go backward from"),
    Explained("fp8_delayed, sink", "backward", "CUDNN-PLAN-08",
        "the library refuses the forward alone; without its results there is nothing to go backward from", cards=(90,)),
    Explained("mxfp8, ragged", "both", "",
        "the question's scales lie as those of dense tensors do; no source says how ragged ones lie, and no caller passes any"),
)  # fmt: skip
