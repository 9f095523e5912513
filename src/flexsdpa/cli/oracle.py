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
from flexsdpa.oracle.check import Report, check
from flexsdpa.oracle.questions import QUESTIONS
from flexsdpa.oracle.records import NUMBERS, YES, Cell, load_all
from flexsdpa.oracle.run import run
from flexsdpa.oracle.wheels import RELEASES

SHOWN = 40
"""Disagreements that are printed one by one."""


def folder_of(given: Path | None) -> Path:
    """Where wheels are kept: given, or beside what users keep in caches."""
    return given or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "flexsdpa" / "oracle"


def run_oracle(releases: Sequence[str], patterns: Sequence[str], cards: Sequence[int], workers: int, folder: Path | None) -> None:
    """Asks what has no answer yet, with a progress bar; goes on where an earlier run stopped."""
    unknown = [card for card in cards if card not in NUMBERS]
    if unknown:
        known = ", ".join(map(str, NUMBERS))
        raise RequestError(f"card: no description of {unknown[0]}; known: {known}", field="card", got=unknown[0])
    names = chosen(patterns)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True)
    )
    with bar:
        for release in releases or RELEASES:
            task = bar.add_task(f"cuDNN {release}", total=None)

            def moved(done: int, total: int, task: object = task) -> None:
                bar.update(task, completed=done, total=total)  # type: ignore[arg-type]

            run(release, folder_of(folder), names, tuple(cards) or NUMBERS, workers or os.cpu_count() or 1, progress=moved)


def chosen(patterns: Sequence[str]) -> tuple[str, ...]:
    """Questions whose names contain one of the words. Raises RequestError where there is none."""
    found = tuple(name for name in QUESTIONS if not patterns or any(word in name for word in patterns))
    if not found:
        raise RequestError(
            f"no question has {patterns[0]!r} in its name{nearest(patterns[0], list(QUESTIONS))}", field="question"
        )
    return found


def run_show(patterns: Sequence[str]) -> None:
    """Without words: what is recorded. With words: every answer to the questions that have them in their names."""
    records = load_all()
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
    typer.echo(f"{YES}: planned for sm_80 and so on; a number: refused, in cuDNN's words:")
    for reason, number in list(numbers.items())[1:]:
        typer.echo(f"{number}: {reason}")


def run_check() -> int:
    """Prints what the rules do not predict and the counts; returns the exit status."""
    records = load_all()
    report = check(records)
    for one in report.of("unexplained")[:SHOWN]:
        typer.echo(f"{_place(one.cell)}: {_said(one.cell)}; rules that refuse: {', '.join(one.refusing) or 'none'}")
    for row in report.unused:
        typer.echo(f"explains nothing any more: {row.questions}, {row.direction}, {row.rule or 'no rule'}")
    for name in report.stale:
        typer.echo(f"asked otherwise now, run flexsdpa oracle run: {name}")
    typer.echo(summary(report))
    return int(not report.good)


def summary(report: Report) -> str:
    """The last line of ``oracle check``."""
    cells = [one.cell for one in report.judged]
    counts = Counter(one.outcome for one in report.judged)
    releases, cards = {cell.cudnn for cell in cells}, {cell.card for cell in cells}
    return (
        f"{len(cells)} cells, {len(releases)} versions of cuDNN, {len(cards)} cards: {counts['agrees']} agree, "
        f"{counts['explained']} explained, {counts['unexplained']} unexplained"
    )


def _place(cell: Cell) -> str:
    return f"{cell.question}, {cell.direction}, sm_{cell.card}, cuDNN {cell.cudnn}"


def _said(cell: Cell) -> str:
    return "planned" if cell.planned else f"refused ({cell.reason[:160]})"
