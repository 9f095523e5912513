"""``flexsdpa matrix``: what cuDNN serves, by feature, card, release and direction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from flexsdpa.eligibility.field.matrix import CARDS, DIRECTIONS, RELEASES, Cell, cells
from flexsdpa.errors import RequestError, nearest

SIGNS = {"eligible": "yes", "declined": "-", "unsure": "?"}
STYLES = {"eligible": "green", "declined": "dim", "unsure": "yellow"}
FORMATS = ("terminal", "markdown", "json")
LEGEND = "yes: served   -: declined, --format json names the rules   ?: no source settles it"
NAMES = {
    "cudnn": "cuDNN", "fa2": "FlashAttention 2", "fa3": "FlashAttention 3", "fa4": "FlashAttention 4",
    "interval": "cudnn.flex_attention", "flex": "torch FlexAttention", "reference": "flexsdpa's reference",
}  # fmt: skip
CALLERS = {
    "torch": "The caller is TransformerEngine's torch front door; its own choices are among the dashes,\n`--framework library` leaves them out.",
    "jax": "The caller is TransformerEngine's JAX front door; its own choices are among the dashes.",
    "flexsdpa": "The caller is flexsdpa; what it does not run yet is among the dashes.",
    "library": "No caller's choices are among the dashes: only what the library refuses, and what it is\nknown to compute wrongly.",
}  # fmt: skip
PAGE = """# What {name} serves

Made by `flexsdpa matrix {arguments} --format markdown` from the rows in `src/flexsdpa/eligibility/field/`.
yes: served. -: declined; the rule ids of a cell are in `--format json`. ?: no source settles it, ask by building. Backward means
a training call, so forward and backward. {caller}
What flexsdpa's own backend does with a score_mod is answered for each function by
`flexsdpa explain --device sm_121 --cudnn 9.28.1`.
"""


def run_matrix(
    releases: Sequence[str],
    cards: Sequence[str],
    direction: str,
    form: str,
    out: Path | None,
    backend: str = "cudnn",
    framework: str = "torch",
) -> None:
    """Prints or draws the matrix."""
    if form not in FORMATS:
        known = ", ".join(FORMATS)
        raise RequestError(f"unknown format {form!r}{nearest(form, FORMATS)}; known: {known}", field="format", got=form)
    if direction not in (*DIRECTIONS, "both"):
        raise RequestError(f"unknown direction {direction!r}; known: forward, backward, both", field="direction", got=direction)
    directions = DIRECTIONS if direction == "both" else (direction,)
    releases, cards = tuple(dict.fromkeys(releases)), tuple(dict.fromkeys(cards))
    found = list(cells(releases or RELEASES[-1:], cards or CARDS, directions, backend, framework))
    text = ""
    if form == "json":
        text = json.dumps([asdict(cell) for cell in found], indent=1)
    elif form == "markdown":
        text = markdown(found, arguments_of(releases, cards, direction, backend, framework))
    if out is not None:
        if text:
            write(text, out)
        else:
            draw(found, out)
        typer.echo(f"wrote {out}")
    elif text:
        typer.echo(text)
    else:
        for title, rows in tables(found):
            Console().print(_rich(title, rows))
        typer.echo(LEGEND)


def write(text: str, out: Path) -> None:
    try:
        out.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise RequestError(f"cannot write {out}: {error.strerror}", field="out", got=str(out)) from None


def tables(found: Sequence[Cell]) -> list[tuple[str, list[list[Cell]]]]:
    """One table a release and direction: a title, and a row of cells for each feature."""
    result = []
    for (cudnn, direction), group in groupby(found, key=lambda cell: (cell.cudnn, cell.direction)):
        rows = [list(row) for _, row in groupby(group, key=lambda cell: cell.feature)]
        backend = rows[0][0].backend
        of = f"cuDNN {cudnn}" if backend == "cudnn" else f"{NAMES[backend]}, beside cuDNN {cudnn}"
        result.append((f"{of}, {direction}", rows))
    return result


def column(card: str) -> str:
    """``12.1`` -> ``sm_121``."""
    return f"sm_{card.removeprefix('sm_').replace('.', '')}"


def arguments_of(releases: Sequence[str], cards: Sequence[str], direction: str, backend: str, framework: str) -> str:
    """The options that make a page, as they are typed."""
    given = [f"--release {release}" for release in releases or RELEASES[-1:]] + [f"--card {card}" for card in cards]
    given += [] if direction == "both" else [f"--direction {direction}"]
    given += [] if backend == "cudnn" else [f"--backend {backend}"]
    given += [] if framework == "torch" else [f"--framework {framework}"]
    return " ".join(given)


def markdown(found: Sequence[Cell], arguments: str) -> str:
    """A page with a table a release and direction. arguments: the options that make it."""
    lines = [PAGE.format(name=NAMES[found[0].backend], arguments=arguments, caller=CALLERS[found[0].framework])]
    for title, rows in tables(found):
        heads = [column(cell.card) for cell in rows[0]]
        lines += [f"## {title}", "", f"| | {' | '.join(heads)} |", "|" + " --- |" * (len(heads) + 1)]
        lines += [f"| {row[0].feature} | {' | '.join(SIGNS[cell.answer] for cell in row)} |" for row in rows]
        lines.append("")
    return "\n".join(lines).rstrip("\n")


def _rich(title: str, rows: list[list[Cell]]) -> Table:
    table = Table(title=f"{title}, by sm_ number", title_justify="left", box=SIMPLE, padding=0, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for cell in rows[0]:
        table.add_column(column(cell.card).removeprefix("sm_"), justify="center", min_width=3)
    for row in rows:
        table.add_row(row[0].feature, *(f"[{STYLES[cell.answer]}]{SIGNS[cell.answer]}[/]" for cell in row))
    return table


def draw(found: Sequence[Cell], out: Path) -> None:
    """A heat map: features down, cards across, one panel a release and direction."""
    try:
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure
    except ImportError:
        raise RequestError("a picture needs matplotlib: pip install 'flexsdpa[plot]'", field="out") from None
    from matplotlib.patches import Patch

    panels = tables(found)
    values = {"declined": 0, "unsure": 1, "eligible": 2}
    features = [row[0].feature for row in panels[0][1]]
    figure = Figure(figsize=(3.2 + 2.9 * len(panels), 0.24 * len(features) + 1.2), layout="constrained")
    axes: Any = figure.subplots(1, len(panels), squeeze=False)[0]
    for n, (title, rows) in enumerate(panels):
        colours = ListedColormap(["#d9d9d9", "#f2c14e", "#3a8f5c"])
        shades = [[values[cell.answer] for cell in row] for row in rows]
        axes[n].set_xticks([x - 0.5 for x in range(1, len(rows[0]))], minor=True)
        axes[n].set_yticks([y - 0.5 for y in range(1, len(features))], minor=True)
        axes[n].grid(which="minor", color="white", linewidth=0.8)
        axes[n].tick_params(which="minor", length=0)
        axes[n].imshow(shades, cmap=colours, vmin=0, vmax=2, aspect="auto")
        axes[n].set_title(title, fontsize=8)
        axes[n].set_xticks(range(len(rows[0])), [column(cell.card) for cell in rows[0]], rotation=90, fontsize=7)
        axes[n].set_yticks(range(len(features)), features if n == 0 else [], fontsize=7)
    meanings = {"served": "#3a8f5c", "no source settles it": "#f2c14e", "declined": "#d9d9d9"}
    figure.legend(
        handles=[Patch(color=colour, label=text) for text, colour in meanings.items()],
        ncols=3,
        loc="outside lower center",
        fontsize=7,
    )
    try:
        figure.savefig(out, dpi=150, format=out.suffix.lstrip(".") or "png")
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot write {out}: {error}", field="out", got=str(out)) from None
