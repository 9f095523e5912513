"""Answers as data: a file for each release of cuDNN, a row for each question and direction, a column for each card."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from flexsdpa.errors import RequestError
from flexsdpa.oracle.questions import DIRECTIONS, QUESTIONS
from flexsdpa.plans.store import publish
from flexsdpa.spec.device import VERSION
from flexsdpa.spec.families import CARDS

FOLDER = Path(str(files("flexsdpa.oracle") / "records"))
NUMBERS = tuple(card.number for card in CARDS)
HEAD = ("question", "direction", "digest")
YES = "yes"
BROKEN = "broken: "
"""How a reason begins where the question could not be put, or the child died over it: no answer of the library's."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One answer. reason: empty where a plan was built, else cuDNN's own words."""

    cudnn: str
    question: str
    direction: str
    card: int
    reason: str

    @property
    def planned(self) -> bool:
        return not self.reason

    @property
    def broken(self) -> bool:
        return self.reason.startswith(BROKEN)


@dataclass
class Records:
    """The answers of one release. rows: (question, direction) -> (digest of the question, card -> reason)."""

    cudnn: str
    frontend: str
    rows: dict[tuple[str, str], tuple[str, dict[int, str]]] = field(default_factory=dict)

    def cells(self) -> Iterator[Cell]:
        for (question, direction), (_, answers) in self.rows.items():
            for card, reason in answers.items():
                yield Cell(self.cudnn, question, direction, card, reason)

    def stale(self) -> list[str]:
        """Questions that are asked otherwise now, or no more."""
        return sorted({q for (q, _), (digest, _) in self.rows.items() if q not in QUESTIONS or QUESTIONS[q].digest() != digest})

    def missing(self) -> list[tuple[str, str, int]]:
        """Questions without an answer as they are asked now: name, direction, card."""
        asked = ((name, direction, card) for name, q in QUESTIONS.items() for direction in q.directions for card in q.cards)
        return [one for one in asked if not self.known(*one)]

    def known(self, question: str, direction: str, card: int) -> bool:
        """Whether there is an answer to the question as it is asked now; a broken one is none."""
        digest, answers = self.rows.get((question, direction), ("", {}))
        answered = card in answers and not answers[card].startswith(BROKEN)
        return answered and question in QUESTIONS and QUESTIONS[question].digest() == digest

    def add(self, cell: Cell) -> None:
        digest = QUESTIONS[cell.question].digest()
        old, answers = self.rows.get((cell.question, cell.direction), ("", {}))
        kept = answers if old == digest else {}
        self.rows[cell.question, cell.direction] = (digest, {**kept, cell.card: cell.reason})

    def save(self, folder: Path = FOLDER) -> Path:
        """Writes the release's file whole, or not at all: rows in the order of the questions, reasons numbered at the end."""
        order = {(name, d): n for n, (name, d) in enumerate((q, d) for q in QUESTIONS for d in QUESTIONS[q].directions)}
        numbers: dict[str, str] = {"": YES}
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("cudnn", self.cudnn, "frontend", self.frontend))
        writer.writerow((*HEAD, *NUMBERS))
        for key in sorted((key for key in self.rows if key in order), key=order.__getitem__):
            digest, answers = self.rows[key]
            texts = [numbers.setdefault(answers[n], f"n{len(numbers)}") if n in answers else "" for n in NUMBERS]
            writer.writerow((*key, digest, *texts))
        for reason, number in numbers.items():
            writer.writerow((number, reason))
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{self.cudnn}.csv"
        publish(target, out.getvalue().encode(), mode=0o644)
        return target


def load(file: Path) -> Records:
    """The records of a file. Raises RequestError for one that is no such file."""
    try:
        with file.open(newline="", encoding="utf-8") as text:
            return _read(list(csv.reader(text)))
    except (ValueError, KeyError, csv.Error) as error:
        raise RequestError(f"{file} holds no records of the oracle: {error}", field="records", got=str(file)) from None


def _read(lines: list[list[str]]) -> Records:
    (_, cudnn, _, frontend), head, *rest = lines
    if not VERSION.fullmatch(cudnn):
        raise ValueError(f"{cudnn!r} is no release")
    cards = [int(name) for name in head[len(HEAD) :]]
    answered, told = ([row for row in rest if len(row) == width] for width in (len(head), len(("number", "reason"))))
    if len(answered) + len(told) != len(rest):
        odd = next(row for row in rest if row not in answered and row not in told)
        raise ValueError(f"a row of {len(odd)} columns: {','.join(odd)[:80]}")
    reasons: dict[str, str] = {row[0]: row[1] for row in told}
    found = Records(cudnn, frontend)
    for question, direction, digest, *texts in answered:
        if direction not in DIRECTIONS or (question, direction) in found.rows:
            raise ValueError(f"{question}, {direction} is there twice, or is no direction")
        answers = {card: reasons[text] for card, text in zip(cards, texts, strict=True) if text}
        found.rows[question, direction] = (digest, answers)
    return found


def load_all(folder: Path = FOLDER) -> list[Records]:
    """Every release that has been asked, oldest first."""
    found = [load(file) for file in folder.glob("*.csv")]
    return sorted(found, key=lambda records: tuple(int(part) for part in records.cudnn.split(".")))
