"""``flexsdpa check-cases``: our rules for cuDNN against a file of calls with known answers."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import typer

from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.eligibility.field.decide import decide_case
from flexsdpa.errors import RequestError

ANSWERS = ("eligible", "declined", "unsure")


def run_check_cases(file: Path) -> int:
    """Prints every disagreement and the counts; returns the exit status, 1 where there is a disagreement."""
    counts: Counter[str] = Counter()
    for line, row in enumerate(_rows(file), start=2):
        try:
            case, expected = FieldCase.parse(row), row.get("expected", "").strip()
        except RequestError as error:
            counts["disagree"] += 1
            typer.echo(f"{row.get('case_id', f'line {line}')}: line {line} is no call that can be asked about: {error}")
            continue
        if expected not in ANSWERS:
            raise RequestError(
                f"{file.name}, line {line}: expected is one of {', '.join(ANSWERS)}, got {expected!r}", field="expected"
            )
        decision = decide_case(case)
        if decision.answer != expected:
            counts["disagree"] += 1
            theirs = f"{row.get('rule_id', '')} ({row.get('decided_by', '')}): {row.get('note', '')}"
            typer.echo(f"{row.get('case_id', f'line {line}')}: the file says {expected}, {theirs}")
            typer.echo(f"  flexsdpa says {decision.answer}: {'; '.join(decision.reasons()) or 'no row declines it'}")
        else:
            counts["unsure" if expected == "unsure" else "agree"] += 1
    typer.echo(f"agree {counts['agree']}, disagree {counts['disagree']}, unsure {counts['unsure']}")
    return int(counts["disagree"] > 0)


def _rows(file: Path) -> list[dict[str, str]]:
    try:
        with file.open(newline="", encoding="utf-8") as text:
            return list(csv.DictReader(text))
    except OSError as error:
        raise RequestError(f"{file}: {error.strerror}", field="file", got=str(file)) from None
