"""``flexsdpa oracle``: asks cuDNN about described cards, shows what it said, compares it with the rules."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from flexsdpa.errors import RequestError, nearest
from flexsdpa.oracle.check import check
from flexsdpa.oracle.explained import EXPLAINED
from flexsdpa.oracle.questions import QUESTIONS
from flexsdpa.oracle.records import FOLDER, NUMBERS, YES, Cell, Records, load_all
from flexsdpa.oracle.run import run
from flexsdpa.oracle.wheels import RELEASES
from flexsdpa.plans.store import user_cache
from flexsdpa.spec.families import as_number, capability_of

SHOWN = 40
"""Disagreements that are printed one by one."""


def run_oracle(
    releases: Sequence[str],
    patterns: Sequence[str],
    cards: Sequence[str],
    workers: int,
    folder: Path | None,
    records: Path | None,
) -> None:
    """Asks what has no answer yet, with a progress bar; goes on where an earlier run stopped."""
    numbers = tuple(number_of(card) for card in cards) or NUMBERS
    names = chosen(patterns)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True)
    )
    with bar:
        for release in releases or RELEASES:
            task = bar.add_task(f"cuDNN {release}", total=None)

            def moved(done: int, total: int, task: object = task) -> None:
                bar.update(task, completed=done, total=total)  # type: ignore[arg-type]

            count = workers or os.cpu_count() or 1
            run(release, folder or user_cache() / "oracle", names, numbers, count, records or FOLDER, moved)


def number_of(card: str) -> int:
    """``sm_121`` or ``12.1`` -> 121. Raises RequestError for a card that the oracle does not describe."""
    capability = capability_of(card)
    number = as_number(capability) if capability else 0
    if number not in NUMBERS:
        known = ", ".join(f"sm_{n}" for n in NUMBERS)
        raise RequestError(f"card: no description of {card!r}; known: {known}", field="card", got=card)
    return number


def chosen(patterns: Sequence[str]) -> tuple[str, ...]:
    """Questions whose names contain one of the words. Raises RequestError where there is none."""
    words = [word.lower() for word in patterns]
    found = tuple(name for name in QUESTIONS if not words or any(word in name.lower() for word in words))
    if not found:
        hint = nearest(words[0], list(QUESTIONS))
        raise RequestError(
            f"no question has {patterns[0]!r} in its name{hint}; flexsdpa oracle show --names lists them", field="question"
        )
    return found


def run_show(patterns: Sequence[str], folder: Path | None = None, names_only: bool = False) -> None:
    """Without words: what is recorded. With words: every answer to the questions that have them in their names."""
    if names_only:
        typer.echo("\n".join(chosen(patterns)))
        return
    records = known_records(folder)
    if not patterns:
        for one in records:
            counts = Counter(cell.planned for cell in one.cells())
            typer.echo(
                f"cuDNN {one.cudnn}, frontend {one.frontend}: {counts.total()} answers to {len(one.rows)} questions, "
                f"{counts[True]} planned, {counts[False]} refused"
            )
        return
    names = set(chosen(patterns))
    numbers: dict[str, str] = {"": YES}
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("question", overflow="fold")
    for head in ("direction", "cuDNN", *map(str, NUMBERS)):
        table.add_column(head, no_wrap=True)
    for one in records:
        for (question, direction), (_, answers) in one.rows.items():
            if question in names:
                texts = [numbers.setdefault(answers[n], str(len(numbers))) if n in answers else "" for n in NUMBERS]
                table.add_row(question, direction, one.cudnn, *texts)
    Console().print(table)
    typer.echo(f"{YES}: planned for sm_80 and so on; empty: not asked; a number: refused, in cuDNN's words below")
    for reason, number in list(numbers.items())[1:]:
        typer.echo(f"{number}: {reason}")


def known_records(folder: Path | None) -> list[Records]:
    """The records of a folder, by default the package's. Raises RequestError where there are none."""
    found = load_all(folder or FOLDER)
    if not found:
        raise RequestError(f"{folder or FOLDER} holds no records: flexsdpa oracle run makes them", field="records")
    return found


def run_check(explained: bool = False, folder: Path | None = None) -> int:
    """Prints what the rules do not predict and the counts; returns the exit status."""
    report = check(known_records(folder))
    for row in EXPLAINED if explained else ():
        covered = [one for one in report.judged if one.by is row]
        rule = f"{row.rule} refuses what is planned" if row.rule else "refused, by no rule of the library"
        typer.echo(f"explained, {len(covered)} cells: {row.questions}, {row.direction}, {rule}: {row.why}")
    for one in report.of("unexplained")[:SHOWN]:
        typer.echo(f"{_place(one.cell)}: {_said(one.cell)}; rules that refuse: {', '.join(one.refusing) or 'none'}")
    for row in report.unused:
        typer.echo(f"explains nothing any more: {row.questions}, {row.direction}, {row.rule or 'no rule'}")
    for release, count in report.missing:
        typer.echo(f"cuDNN {release} lacks {count} answers: flexsdpa oracle run --release {release}")
    for name in report.stale:
        typer.echo(f"asked otherwise now, run flexsdpa oracle run: {name}")
    typer.echo(report.summary())
    return int(not report.good)


def _place(cell: Cell) -> str:
    return f"{cell.question}, {cell.direction}, sm_{cell.card}, cuDNN {cell.cudnn}"


def _said(cell: Cell) -> str:
    return "planned" if cell.planned else f"refused ({cell.reason[:160]})"
