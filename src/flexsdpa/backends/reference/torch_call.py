"""What the forward and the backward kernel share: the compiled program, block maps, and one call's tensors."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from flexsdpa.backends.reference.lower import Lowered, lower
from flexsdpa.backends.reference.tiles import BLOCK_KV, SMALL_KV, Group, Plan2D, Sizes, Tile, plan_tiles, tiles_of_row
from flexsdpa.backends.reference.torch_ops import TileFunction, compile_text, scratch
from flexsdpa.ir.program import Program
from flexsdpa.structure.blocks import Grid, Run, block_rows
from flexsdpa.structure.ranges import ArrayRanges

LOG2_E = math.log2(math.e)
LN_2 = math.log(2)
MAPS_KEPT = 64
COPIED_FROM_DEVICE = 1 << 20
"""Captured tensors of up to this many elements are copied to the host to find empty blocks."""


class Compiled:
    """A program made ready: lowered functions, and what its mask depends on. Shared by all calls of a plan."""

    def __init__(self, program: Program, results: Sequence[str]) -> None:
        self.program = program
        self.results = results
        root = program.result("score")
        assert root is not None
        keep = program.result("keep")
        self.has_keep = keep is not None
        leaves = program.depends()[keep] if keep is not None else frozenset()
        self.per_batch, self.per_head = "b" in leaves, "h" in leaves
        self.identity = program.instrs[root].op == "score" and "score" not in leaves
        """Nobody looks at the score, so its unit is free."""
        reached = [program.instrs[n] for n in program.reachable([keep])] if keep is not None else []
        self.keep_slots = sorted({int(instr.attr) for instr in reached if instr.op == "read"})
        self.static_mask = not self.keep_slots and not any(instr.op == "scalar" for instr in reached)
        self._lowered: dict[tuple[tuple[str, ...], bool], tuple[Lowered, TileFunction]] = {}
        self._maps: OrderedDict[Grid, list[tuple[Run, ...]]] = OrderedDict()

    def function(self, wanted: Sequence[str], careful: bool) -> TileFunction:
        return self._get(tuple(wanted), careful)[1]

    def _get(self, wanted: tuple[str, ...], careful: bool) -> tuple[Lowered, TileFunction]:
        found = self._lowered.get((wanted, careful))
        if found is None:
            lowered = lower(self.program, wanted, careful)
            found = self._lowered[wanted, careful] = (lowered, compile_text(lowered.text))
        return found

    def slices_fit(self, arrays: Sequence[Tensor], sizes: Sizes) -> bool:
        """Whether every captured tensor is as long as the axes along which fast code slices it."""
        length = {"b": sizes.B, "h": sizes.Hq, "q": sizes.Sq, "kv": sizes.Skv}
        for wanted in (tuple(self.results), ("keep",)):
            for need in self._get(wanted, False)[0].needs:
                if arrays[need.slot].shape[need.dim] < length[need.axis]:
                    return False
        return True

    def rows(self, grid: Grid, ranges: Callable[[], list[ArrayRanges | None]], scalars: Sequence[float]) -> list[tuple[Run, ...]]:
        """The block map of a grid. Kept between calls only where it does not depend on data."""
        if not self.static_mask:
            return block_rows(self.program, grid, ranges(), scalars)
        found = self._maps.get(grid)
        if found is None:
            found = block_rows(self.program, grid)
            self._maps[grid] = found
            while len(self._maps) > MAPS_KEPT:
                self._maps.popitem(last=False)
        return found


class Call:
    """One call's tensors and sizes, and iteration over its groups, rows and tiles."""

    def __init__(
        self,
        compiled: Compiled,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        arrays: Sequence[Tensor],
        scalars: Sequence[float],
        careful: bool,
    ) -> None:
        self.compiled = compiled
        self.q, self.k, self.v = q, k, v
        self.arrays = arrays
        self.scale, self.C = scalars[0], scalars[1:]
        self.careful = careful
        self.F = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.device = q.device
        (b, hq, sq, d), (_, hkv, skv, dv) = q.shape, v.shape
        self.sizes = Sizes(b, hq, hkv, sq, skv, d, dv)
        self.walk: Plan2D = plan_tiles(self.sizes, per_batch=compiled.per_batch, per_head=compiled.per_head)
        self.b_index = torch.arange(b, device=self.device).view(-1, 1, 1, 1)
        self.h_index = torch.arange(hq, device=self.device).view(-1, 1, 1)
        self.q_index = torch.arange(sq, device=self.device).view(-1, 1)
        self.kv_index = torch.arange(skv, device=self.device)
        self._numbers: dict[Any, Tensor] = {}
        self._ranges: list[ArrayRanges | None] | None = None

    def number(self, x: float | int | bool) -> Tensor:
        """K of lowered text: a 0-D tensor on the call's device, made without a copy from the host."""
        key = (type(x), repr(x))
        found = self._numbers.get(key)
        if found is None:
            dtype = {bool: torch.bool, int: torch.int64}.get(type(x), self.F)
            found = self._numbers[key] = torch.full((), x, dtype=dtype, device=self.device)
        return found

    def buffer(self, use: str, columns: int) -> Tensor:
        """Space for one tile of the largest group with ``columns`` numbers a query."""
        heads = max((group.size for group in self.walk.groups), default=0)
        return scratch(use, heads * self.sizes.G * self.walk.tile_q * columns, self.F, self.device)

    def keys(self, x: Tensor, group: Group, k0: int, k1: int) -> Tensor:
        """k or v of a group as (n, tokens, D) in the working dtype; a view where it can be one."""
        if group.b1 - group.b0 == 1:
            part = x[group.b0, group.h0 : group.h1, k0:k1]
        else:
            part = x[group.b0 : group.b1, group.h0 : group.h1, k0:k1].reshape(group.size, k1 - k0, x.shape[3])
        return part if part.dtype == self.F else part.to(self.F)

    def query_view(self, x: Tensor, group: Group, q0: int, q1: int) -> Tensor:
        """A tensor with query heads, cut to a group's heads and a row of queries: (nb, nh * G, Tq, ...)."""
        g = self.sizes.G
        return x[group.b0 : group.b1, group.h0 * g : group.h1 * g, q0:q1]

    def queries(self, x: Tensor, group: Group, q0: int, q1: int) -> Tensor:
        """The same, as a contiguous (n, G * Tq, D) copy in the working dtype."""
        part = self.query_view(x, group, q0, q1)
        copy = part.to(self.F, copy=True, memory_format=torch.contiguous_format)
        return copy.reshape(group.size, self.sizes.G * (q1 - q0), x.shape[3])

    def runs(self, group: Group) -> list[tuple[Run, ...]]:
        """For every row of queries, the runs of keys to visit."""
        s, w = self.sizes, self.walk
        count = -(-s.Sq // w.tile_q)
        if not self.compiled.has_keep or (count == 1 and s.Skv <= SMALL_KV):
            return [(Run(0, s.Skv, not self.compiled.has_keep),)] * count
        grid = Grid((group.b0, group.b1 - 1), (group.h0 * s.G, group.h1 * s.G - 1), s.Sq, s.Skv, w.tile_q, BLOCK_KV)
        return self.compiled.rows(grid, self._array_ranges, self.C)

    def _array_ranges(self) -> list[ArrayRanges | None]:
        if self._ranges is None:
            self._ranges = [self._host_ranges(slot) for slot in range(len(self.arrays))]
        return self._ranges

    def _host_ranges(self, slot: int) -> ArrayRanges | None:
        array = self.arrays[slot]
        if slot not in self.compiled.keep_slots:
            return None
        if array.device.type != "cpu" and (array.numel() > COPIED_FROM_DEVICE or is_capturing(array.device)):
            return None
        host = array.detach().cpu()
        return ArrayRanges((host.float() if host.dtype == torch.bfloat16 else host).numpy())

    def rows(self) -> Iterator[tuple[Group, int, int, list[Tile]]]:
        """(group, first query, last query + 1, tiles) for every row of queries; the group's rows follow each other."""
        shared = None if self.compiled.per_batch or self.compiled.per_head else self.runs(self.walk.groups[0])
        for group in self.walk.groups:
            for n, runs in enumerate(shared if shared is not None else self.runs(group)):
                q0 = n * self.walk.tile_q
                yield group, q0, min(q0 + self.walk.tile_q, self.sizes.Sq), list(tiles_of_row(runs, self.walk.tile_kv))

    def operands(self, group: Group, q0: int, q1: int, k0: int, k1: int) -> tuple[Any, ...]:
        """What lowered text takes after the score tile: b, h, q, kv, at, T, C, F, K."""
        g = self.sizes.G
        at = slice(group.b0, group.b1), slice(group.h0 * g, group.h1 * g), slice(q0, q1), slice(k0, k1)
        b, h = self.b_index[at[0]], self.h_index[at[1]]
        return b, h, self.q_index[q0:q1], self.kv_index[k0:k1], at, self.arrays, self.C, self.F, self.number


def is_capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured: then nothing may wait for the device."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
