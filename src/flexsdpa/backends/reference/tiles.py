"""How the reference backend walks a call: groups of heads, rows of queries, tiles of keys. No framework."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flexsdpa import config
from flexsdpa.structure.blocks import Run

BLOCK_KV = 128
"""Keys in one block of the block map."""
SMALL_KV = 256
"""Up to this many keys and one tile of queries, looking for empty blocks costs more than it saves."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of one call. G query heads share one kv head."""

    B: int
    Hq: int
    Hkv: int
    Sq: int
    Skv: int
    D: int
    Dv: int

    @property
    def G(self) -> int:
        return self.Hq // self.Hkv


@dataclass(frozen=True, slots=True)
class Group:
    """Batches [b0, b1) and kv heads [h0, h1) that are computed together."""

    b0: int
    b1: int
    h0: int
    h1: int

    @property
    def size(self) -> int:
        return (self.b1 - self.b0) * (self.h1 - self.h0)


@dataclass(frozen=True, slots=True)
class Tile:
    """Keys [k0, k1), and the spans of them, relative to k0, in which the mask must be evaluated."""

    k0: int
    k1: int
    masked: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Plan2D:
    """Tile sides for a call, and its groups."""

    tile_q: int
    tile_kv: int
    groups: tuple[Group, ...]


def plan_tiles(sizes: Sizes, *, per_batch: bool, per_head: bool) -> Plan2D:
    """Tile sides and groups such that one tile holds at most ``tile_elements`` scores.

    per_batch, per_head: the mask differs between batches or heads, so they are better walked apart where rows are long.
    """
    budget = config.get("tile_elements")
    heads_per_kv = max(sizes.G, 1)
    tile_q = max(1, min(config.get("tile_q"), sizes.Sq))
    tile_kv = max(1, min(config.get("tile_kv"), sizes.Skv))
    one_row = sizes.Sq <= tile_q and sizes.Skv <= SMALL_KV
    heads = max(1, min(budget // (tile_q * tile_kv * heads_per_kv), sizes.Hkv))
    if per_head and not one_row:
        heads = 1
    batches = 1
    if heads == sizes.Hkv and (one_row or not per_batch):
        batches = max(1, min(budget // (tile_q * tile_kv * heads_per_kv * sizes.Hkv), sizes.B))
    tile_kv = max(tile_kv, min(sizes.Skv, budget // (tile_q * heads_per_kv * heads * batches)))
    groups = tuple(
        Group(b, min(b + batches, sizes.B), h, min(h + heads, sizes.Hkv))
        for b in range(0, sizes.B, batches)
        for h in range(0, sizes.Hkv, heads)
    )
    return Plan2D(tile_q, tile_kv, groups)


def tiles_of_row(runs: Sequence[Run], tile_kv: int) -> Iterator[Tile]:
    """Runs of one block row -> tiles. Neighbouring runs share tiles; long stretches are cut evenly."""
    start = 0
    while start < len(runs):
        stop = start + 1
        while stop < len(runs) and runs[stop].start == runs[stop - 1].stop:
            stop += 1
        yield from _cut(runs[start:stop], tile_kv)
        start = stop


def _cut(runs: Sequence[Run], tile_kv: int) -> Iterator[Tile]:
    first, last = runs[0].start, runs[-1].stop
    count = -(-(last - first) // tile_kv)
    side = -(-(last - first) // count)
    side = min(-(-side // 16) * 16, max(tile_kv, 1)) if side > 16 else side
    for k0 in range(first, last, side):
        k1 = min(k0 + side, last)
        masked = tuple(
            (max(run.start, k0) - k0, min(run.stop, k1) - k0) for run in runs if not run.full and run.start < k1 and run.stop > k0
        )
        yield Tile(k0, k1, masked)
