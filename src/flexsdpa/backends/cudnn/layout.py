"""How a request is cut into cuDNN graphs: native flags where the mask is all there is, bands of queries under a mod."""

from __future__ import annotations

from dataclasses import dataclass

from flexsdpa.ir.program import Program
from flexsdpa.spec.request import Direction
from flexsdpa.structure.analyse import Band, analyse

BANDS = {"forward": 8, "backward": 4}
"""Into how many bands a long row of queries is cut. Backward sums dk and dv over bands, which costs more than it saves
beyond 4 (measured at 4096 tokens)."""
TILE = 128
"""cuDNN's tiles have sides that divide this."""
SMALLEST_BAND = 256
"""Bands of fewer queries cost more launches than they save blocks."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One graph run: queries [q0, q1) against keys [k0, k1)."""

    q0: int
    q1: int
    k0: int
    k1: int


@dataclass(frozen=True, slots=True)
class Native:
    """cuDNN's own diagonal band, in positions of the piece: ``q - left < kv <= q + right``; None is open."""

    left: int | None = None
    right: int | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """pieces: together they hold every query that may have keys; the others give 0. native: set where no subgraph is
    needed. may_be_dead: a query inside a piece may have no keys."""

    pieces: tuple[Piece, ...]
    native: Native | None
    may_be_dead: bool

    def starts(self) -> dict[str, tuple[int, ...]]:
        """The first query and key of every piece."""
        return {"q": tuple(piece.q0 for piece in self.pieces), "kv": tuple(piece.k0 for piece in self.pieces)}

    def whole(self, q_len: int, kv_len: int) -> bool:
        """Whether one graph over everything is all there is."""
        return self.pieces == (Piece(0, q_len, 0, kv_len),)


def guarded(direction: Direction, piece: Piece) -> bool:
    """Whether a graph must replace what a mod makes behind the last query and key: in the backward, where a tile is not full."""
    return direction == "backward" and any(length % TILE for length in (piece.q1 - piece.q0, piece.k1 - piece.k0))


def layout(program: Program, direction: Direction, q_len: int, kv_len: int) -> Layout:
    """The layout of a program over q_len queries and kv_len keys."""
    structure = analyse(program)
    bands = [clause for clause in structure.clauses if isinstance(clause, Band)]
    constant = all(bound is None or not bound.terms for band in bands for bound in (band.lower, band.upper))
    lower, upper = structure.band()
    only_bands = constant and len(bands) == len(structure.clauses)
    root = program.result("score")
    untouched = root is not None and program.instrs[root].op == "score"
    q0, q1 = _alive(q_len, kv_len, lower, upper)
    if q0 >= q1:
        return Layout((), None, False)
    if untouched and only_bands:
        piece, native = _native(q0, q1, kv_len, lower, upper)
        if native.left is None or piece.q1 - piece.q0 <= piece.k1 - piece.k0:
            return Layout((piece,), native, False)
    pieces = tuple(_bands(q0, q1, kv_len, lower, upper, BANDS[direction]))
    return Layout(pieces, None, not only_bands)


def _alive(q_len: int, kv_len: int, lower: int | None, upper: int | None) -> tuple[int, int]:
    """The queries that have at least one key in the band."""
    first = 0 if upper is None else max(0, -upper)
    last = q_len if lower is None else min(q_len, kv_len - lower)
    empty = lower is not None and upper is not None and lower > upper
    return (0, 0) if empty else (first, last)


def _native(q0: int, q1: int, kv_len: int, lower: int | None, upper: int | None) -> tuple[Piece, Native]:
    """One piece whose band has left >= 1 and right >= 0, as cuDNN wants it. It takes a left bound only where the queries are no
    more than the keys."""
    k0 = 0 if lower is None else max(0, lower + q0)
    shift = q0 - k0
    left = None if lower is None else 1 - (lower + shift)
    right = None if upper is None else upper + shift
    return Piece(q0, q1, k0, kv_len), Native(left, right)


def _bands(q0: int, q1: int, kv_len: int, lower: int | None, upper: int | None, count: int) -> list[Piece]:
    if lower is None and upper is None:
        return [Piece(q0, q1, 0, kv_len)]
    side = max(SMALLEST_BAND, -(-(q1 - q0) // (count * 128)) * 128)
    pieces = []
    for start in range(q0, q1, side):
        stop = min(start + side, q1)
        k0 = 0 if lower is None else max(0, start + lower)
        k1 = kv_len if upper is None else min(kv_len, stop + upper)
        pieces.append(Piece(start, stop, k0, k1))
    return pieces
