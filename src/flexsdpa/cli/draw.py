"""``flexsdpa draw``: pictures of masks, scores and block occupancy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from flexsdpa.cli.modspec import Sizes, trace_named
from flexsdpa.errors import RequestError
from flexsdpa.ir.canonical import program_of
from flexsdpa.ir.evaluate import evaluate
from flexsdpa.ir.pretty import pretty
from flexsdpa.ir.program import Program
from flexsdpa.structure.analyse import analyse, describe
from flexsdpa.structure.blocks import EMPTY, FULL, Grid, block_states, occupancy
from flexsdpa.structure.ranges import ArrayRanges

Array = np.ndarray[Any, Any]

MAX_TOKENS = 4096
"""Pictures evaluate the grid, so it is bounded. The block map is not."""
SHADES = " ░▒▓█"
TERMINAL_COLUMNS = 64


def run_draw(
    score_mods: Sequence[str],
    mask_mods: Sequence[str],
    q_len: int,
    kv_len: int,
    heads: int,
    head: int,
    batch: int,
    block: int,
    out: Path | None,
) -> None:
    """Draws in the terminal, or to a PNG."""
    if max(q_len, kv_len) > MAX_TOKENS or min(q_len, kv_len, block) < 1:
        raise RequestError(
            f"lengths and blocks must be 1 to {MAX_TOKENS} tokens to be drawn, got {q_len} x {kv_len}", field="q_len"
        )
    if not 0 <= head < heads or batch < 0:
        raise RequestError(f"head must be 0 to {heads - 1} and batch at least 0, got {head} and {batch}", field="head")
    traced = trace_named(score_mods, mask_mods, Sizes(batch + 1, heads, q_len, 64, heads, kv_len, 64))
    program = program_of(traced.text)
    arrays = [_numpy(array) for array in traced.arrays]
    keep, score = _evaluate(program, arrays, traced.scalars, q_len, kv_len, head, batch)
    grid = Grid((batch, batch), (head, head), q_len, kv_len, block, block)
    states = np.concatenate(list(block_states(program, grid, [ArrayRanges(a) for a in arrays], traced.scalars)))
    title = pretty(program)
    structure = ", ".join(describe(program, analyse(program)))
    visited, full = occupancy(states)
    summary = (
        f"{structure}; blocks of {block}: {visited:.0%} visited, {full:.0%} without a mask; {keep.mean():.1%} of positions kept"
    )
    if out is None:
        _terminal(keep, score, states, title, summary)
    else:
        _png(keep, score, states, title, summary, block, out)


def _numpy(array: Any) -> Array:
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        array = array.float() if str(array.dtype) == "torch.bfloat16" else array
    return np.asarray(array)


def _evaluate(
    program: Program, arrays: list[Array], scalars: Sequence[float], q_len: int, kv_len: int, head: int, batch: int
) -> tuple[Array, Array | None]:
    """(mask, what the score mod makes of a score of 0), each (q_len, kv_len); None for a mod that leaves it at 0."""
    inputs = {"score": 0.0, "b": batch, "h": head, "q": np.arange(q_len)[:, None], "kv": np.arange(kv_len)}
    results = evaluate(program, inputs, arrays, scalars)
    keep = np.broadcast_to(results.get("keep", np.asarray(True)), (q_len, kv_len))
    score = np.broadcast_to(results["score"], (q_len, kv_len))
    return keep, np.where(keep & np.isfinite(score), score, np.nan) if np.any(score != 0) else None


def _terminal(keep: Array, score: Array | None, states: Array, title: str, summary: str) -> None:
    console = Console(highlight=False)
    console.print(Text(title, style="bold"))
    console.print(Text(summary))
    panels = [("mask (darker: more positions kept)", _ascii(keep.astype(float), 0.0, 1.0))]
    if score is not None:
        finite = score[np.isfinite(score)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        panels.append((f"score of 0 becomes {low:.3g} (light) to {high:.3g} (dark)", _ascii(score, low, high)))
    letters = np.where(states == EMPTY, ".", np.where(states == FULL, "#", "+"))
    rows = ["".join(row) for row in letters[:64, :TERMINAL_COLUMNS]]
    panels.append((f"blocks: # full  + partial  . empty  {letters.shape[0]} x {letters.shape[1]}", rows))
    for caption, lines in panels:
        console.print()
        console.print(Text(caption, style="dim"))
        for line in lines:
            console.print(Text(f"  {line}"))


def _ascii(picture: Array, low: float, high: float) -> list[str]:
    """A picture in at most 64 columns of shades, cells averaged."""
    columns = min(TERMINAL_COLUMNS, picture.shape[1])
    rows = max(1, min(32, picture.shape[0], columns // 2))
    lines = []
    for band in np.array_split(picture, rows, axis=0):
        cells = [cell[~np.isnan(cell)] for cell in np.array_split(band, columns, axis=1)]
        values = [0.0 if not cell.size else (float(cell.mean()) - low) / (high - low or 1.0) for cell in cells]
        lines.append("".join(SHADES[min(len(SHADES) - 1, round(value * (len(SHADES) - 1)))] for value in values))
    return lines


def _png(keep: Array, score: Array | None, states: Array, title: str, summary: str, block: int, out: Path) -> None:
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
        from matplotlib.colors import ListedColormap
    except ImportError:
        raise RequestError("drawing a PNG needs matplotlib: pip install 'flexsdpa[plot]'", field="out") from None
    figure, axes = plt.subplots(
        1, 3 if score is not None else 2, figsize=(15 if score is not None else 10, 5.4), layout="constrained"
    )
    extent = (0, keep.shape[1], keep.shape[0], 0)
    axes[0].imshow(keep, cmap="Greys", vmin=0, vmax=1, interpolation="nearest", extent=extent)
    axes[0].set_title("mask (black: kept)")
    if score is not None:
        image = axes[1].imshow(score, cmap="viridis", interpolation="nearest", extent=extent)
        figure.colorbar(image, ax=axes[1], shrink=0.8)
        axes[1].set_title("what a score of 0 becomes")
    colours = ListedColormap(["#f2f2f2", "#f6b26b", "#3d85c6"])
    ends = (0, states.shape[1] * block, states.shape[0] * block, 0)
    axes[-1].imshow(states, cmap=colours, vmin=0, vmax=2, interpolation="nearest", extent=ends)
    axes[-1].set_title(f"blocks of {block}: blue full, orange partial, grey empty")
    for axis in axes:
        axis.set_xlabel("kv_idx")
        axis.set_ylabel("q_idx")
    figure.suptitle(f"{title}\n{summary}", fontsize=9)
    try:
        figure.savefig(out, dpi=120)
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot write {out}: {error}", field="out", got=str(out)) from None
    finally:
        plt.close(figure)
    Console().print(f"wrote {out}")
