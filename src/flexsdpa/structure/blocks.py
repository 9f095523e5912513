"""Which blocks of the Sq x Skv grid are empty, full or partial, without evaluating the grid.

Blocks are classified by interval arithmetic on the mask, coarse blocks first; only blocks that a coarser level
left undecided are looked at again. Memory is that of one byte a block for a bounded number of block rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flexsdpa.ir.program import Program
from flexsdpa.structure.intervals import Interval, bounds
from flexsdpa.structure.ranges import ArrayRanges

Array = np.ndarray[Any, Any]

EMPTY, PARTIAL, FULL = 0, 1, 2
LEVELS = (64, 16, 4, 1)
"""Side of the squares, in blocks, that are classified at once."""
ROWS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class Grid:
    """What is asked: the ranges (first, last) of b and h, the lengths, and the block sides in tokens."""

    b: tuple[int, int]
    h: tuple[int, int]
    q_tokens: int
    kv_tokens: int
    block_q: int
    block_kv: int

    @property
    def rows(self) -> int:
        return -(-self.q_tokens // self.block_q)

    @property
    def columns(self) -> int:
        return -(-self.kv_tokens // self.block_kv)


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive keys [start, stop) of one block row, all full or all partial."""

    start: int
    stop: int
    full: bool


def block_states(
    program: Program, grid: Grid, arrays: Sequence[ArrayRanges | None] = (), scalars: Sequence[float] | None = None
) -> Iterator[Array]:
    """EMPTY, PARTIAL or FULL for every block, int8 (rows, columns), a bounded number of rows at a time."""
    keep = program.result("keep")
    for first in range(0, grid.rows, ROWS_AT_ONCE):
        last = min(first + ROWS_AT_ONCE, grid.rows)
        if keep is None:
            yield np.full((last - first, grid.columns), FULL, np.int8)
        else:
            yield _classify(program, keep, grid, first, last, arrays, scalars)


def block_rows(
    program: Program, grid: Grid, arrays: Sequence[ArrayRanges | None] = (), scalars: Sequence[float] | None = None
) -> list[tuple[Run, ...]]:
    """For every block row, the runs of keys that must be visited, in order. Empty blocks are absent."""
    return [_runs(row, grid) for states in block_states(program, grid, arrays, scalars) for row in states]


def _classify(
    program: Program,
    keep: int,
    grid: Grid,
    first: int,
    last: int,
    arrays: Sequence[ArrayRanges | None],
    scalars: Sequence[float] | None,
) -> Array:
    state = np.full((1, 1), PARTIAL, np.int8)
    previous = max(last - first, grid.columns)
    for side in LEVELS:
        if side > 1 and side >= 2 * max(last - first, grid.columns):
            continue
        rows, columns = -(-(last - first) // side), -(-grid.columns // side)
        state = np.repeat(np.repeat(state, -(-previous // side), 0), -(-previous // side), 1)[:rows, :columns].copy()
        r, c = np.nonzero(state == PARTIAL)
        may, may_not = _decide(program, keep, grid, first + r * side, c * side, side, last, arrays, scalars)
        state[r, c] = np.where(may, np.where(may_not, PARTIAL, FULL), EMPTY)
        previous = side
    return state


def _decide(
    program: Program,
    keep: int,
    grid: Grid,
    row: Array,
    column: Array,
    side: int,
    last_row: int,
    arrays: Sequence[ArrayRanges | None],
    scalars: Sequence[float] | None,
) -> Interval:
    """(may be kept, may be masked) for squares of ``side`` blocks."""

    def span(block: Array, size: int, blocks: int, tokens: int) -> Interval:
        return block * size, np.minimum(np.minimum(block + side, blocks) * size, tokens) - 1

    boxes: dict[str, Interval] = {
        "b": (np.asarray(grid.b[0]), np.asarray(grid.b[1])),
        "h": (np.asarray(grid.h[0]), np.asarray(grid.h[1])),
        "q": span(row, grid.block_q, last_row, grid.q_tokens),
        "kv": span(column, grid.block_kv, grid.columns, grid.kv_tokens),
    }
    answer = bounds(program, boxes, arrays, scalars, roots=[keep])[keep]
    assert answer is not None
    return np.broadcast_to(answer[0], row.shape), np.broadcast_to(answer[1], row.shape)


def _runs(row: Array, grid: Grid) -> tuple[Run, ...]:
    edges = np.flatnonzero(np.diff(row)) + 1
    starts, stops = [0, *edges.tolist()], [*edges.tolist(), len(row)]
    return tuple(
        Run(start * grid.block_kv, min(stop * grid.block_kv, grid.kv_tokens), bool(row[start] == FULL))
        for start, stop in zip(starts, stops, strict=True)
        if stop > start and row[start] != EMPTY
    )


def occupancy(states: Array) -> tuple[float, float]:
    """(share of blocks visited, share of blocks that are full)."""
    return float((states != EMPTY).mean()), float((states == FULL).mean())
