"""``flexsdpa check-cases``: our rules for cuDNN against a file of calls with known answers."""

from __future__ import annotations

import csv
from collections import Counter
from itertools import zip_longest
from pathlib import Path

import typer

from flexsdpa.eligibility.field.case import CHOICES, FLAGS, SIZES, FieldCase
from flexsdpa.eligibility.field.decide import decide_case
from flexsdpa.errors import RequestError

COLUMNS = (*CHOICES, *FLAGS, *SIZES, "layout", "bias_shape", "cc", "cudnn", "window", "dropout", "paged")
ANSWERS = ("eligible", "declined", "unsure")


def run_check_cases(file: Path) -> int:
    """Prints every disagreement and the counts; returns the exit status, 1 where there is a disagreement."""
    counts: Counter[str] = Counter()
    rows = _rows(file)
    if not rows:
        raise RequestError(f"{file}: no cases under the head", field="file", got=str(file))
    for line, row in rows:
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
        decision = decide_case(case, row.get("backend") or "cudnn")
        if decision.answer != expected:
            counts["disagree"] += 1
            theirs = f"{row.get('rule_id', '')} ({row.get('decided_by', '')}): {row.get('note', '')}"
            typer.echo(f"{row.get('case_id', f'line {line}')}: the file says {expected}, {theirs}")
            typer.echo(f"  flexsdpa says {decision.answer}: {'; '.join(decision.reasons()) or 'no row declines it'}")
        else:
            counts["unsure" if expected == "unsure" else "agree"] += 1
    typer.echo(f"agree {counts['agree']}, disagree {counts['disagree']}, unsure {counts['unsure']}")
    return int(counts["disagree"] > 0)


def _rows(file: Path) -> list[tuple[int, dict[str, str]]]:
    """Line numbers and rows by column. Cells beyond the head belong to the last column, a free text; missing ones are empty."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            reader = csv.reader(text)
            lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except OSError as error:
        raise RequestError(f"{file}: {error.strerror}", field="file", got=str(file)) from None
    except (UnicodeDecodeError, csv.Error):
        raise RequestError(f"{file} is no CSV text", field="file", got=str(file)) from None
    heads = [name.strip() for name in lines[0][1]] if lines else []
    missing = next((name for name in (*COLUMNS, "expected") if name not in heads), None)
    if missing is not None:
        raise RequestError(f"{file}: column {missing!r} is missing; it has {', '.join(heads) or 'none'}", field=missing)
    twice = next((name for name in heads if heads.count(name) > 1), None)
    if twice is not None:
        raise RequestError(f"{file}: column {twice!r} is there twice", field=twice)
    return [(n, dict(zip_longest(heads, cells[: len(heads)], fillvalue=""))) for n, cells in lines[1:]]
