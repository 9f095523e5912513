"""Operands of a cuDNN graph at run time: numbers on the host, views of captured tensors on the device."""

from __future__ import annotations

import weakref
from array import array as packed_doubles
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flexsdpa.backends.cudnn.layout import Piece
from flexsdpa.backends.cudnn.lower import AXES, Length, Literal, Number, Operand, Start, View
from flexsdpa.ir.evaluate import evaluate
from flexsdpa.ir.program import Program
from flexsdpa.plans.plan import PlanDeclined

HELD_AS = {
    torch.float64: torch.float32,
    torch.bool: torch.int32,
    torch.uint8: torch.int32,
    torch.int8: torch.int32,
    torch.int16: torch.int32,
    torch.int64: torch.int32,
}
"""Dtypes that a graph does not take, and what it takes instead."""

_CHECKED: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}
"""By id of an int64 tensor that lives: itself, its version, the same in 32 bits."""


def held(array: Tensor) -> Tensor:
    """A captured tensor in a dtype that a graph takes. 64-bit integers are checked once per version of the tensor."""
    dtype = HELD_AS.get(array.dtype)
    if dtype is None:
        return array
    if array.dtype != torch.int64:
        return array.to(dtype)
    known = None if array.is_inference() else _CHECKED.get(id(array))
    if known is not None and known[0]() is array and known[1] == array._version:
        return known[2]
    if array.is_cuda and torch.cuda.is_current_stream_capturing():
        raise PlanDeclined("cudnn.int64", "captured tensor", "an int64 tensor first seen under graph capture", "int32")
    narrow = array.to(dtype)
    if bool((narrow != array).any()):
        raise PlanDeclined("cudnn.int64", "captured tensor", "integers beyond 32 bits", "integers of 32 bits")
    if array.is_inference():  # has no version, so nothing about it can be remembered
        return narrow
    place = id(array)
    _CHECKED[place] = (weakref.ref(array, lambda _: _CHECKED.pop(place, None)), array._version, narrow)
    return narrow


def view(array: Tensor, what: View, sizes: Sequence[int], piece: Piece) -> Tensor:
    """A captured tensor as (B or 1, Hq or 1, queries or 1, keys or 1), cut to a piece. sizes: B, Hq."""
    x = held(array)
    for d in reversed(range(len(what.axes))):
        if isinstance(index := what.axes[d], int):
            x = x.select(d, index)
    leaves = [axis for axis in what.axes if isinstance(axis, str)]
    x = x.permute(sorted(range(len(leaves)), key=lambda d: AXES[leaves[d]]))
    cut = {"b": (0, sizes[0]), "h": (0, sizes[1]), "q": (piece.q0, piece.q1), "kv": (piece.k0, piece.k1)}
    for place, axis in enumerate(AXES):
        if axis in what.axes:
            start, stop = cut[axis]
            x = x.narrow(place, start, stop - start)
        else:
            x = x.unsqueeze(place)
    return x.expand(
        [cut[axis][1] - cut[axis][0] if axis in what.spread else size for axis, size in zip(AXES, x.shape, strict=True)]
    )


def number(value: float | int, kind: str) -> Tensor:
    """A pass-by-value operand: a (1, 1, 1, 1) tensor on the host, which outlives the mode in which it is made."""
    with torch.inference_mode(False):
        return torch.full((1, 1, 1, 1), value, dtype=torch.int32 if kind == "i" else torch.float32, device="cpu")


def host_number(what: Operand) -> Tensor:
    """The host tensor of an operand that is no view, not filled yet unless it is a literal."""
    kind = what.kind if isinstance(what, Number | Literal) else "i"
    return number(what.value if isinstance(what, Literal) else 0, kind)


def host_value(program: Program, n: int, scalars: Sequence[float]) -> float | int:
    """The value of an instruction that depends on no position and no tensor."""
    instr = program.instrs[n]
    if instr.op == "scalar":
        return scalars[int(instr.attr)]
    if instr.op == "const_f":
        return float(instr.attr)
    if instr.op == "const_i":
        return int(instr.attr)
    needed = program.reachable([n])
    kept = tuple(one if m in needed else type(one)("const_b", (), "True", "b") for m, one in enumerate(program.instrs[: n + 1]))
    alone = Program(program.arrays, program.scalars, kept, (("value", n),), program.text)
    return evaluate(alone, {}, (), scalars, work=np.float32)["value"].item()  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A view, and the tensor and place that it is a view of."""

    array: weakref.ref[Tensor]
    place: tuple[Any, ...]
    view: Tensor


class Operands:
    """What one graph takes beside q, k, v and its results, by uid. The plan's lock lets one call in at a time.

    Numbers are filled only where they change, views made only for tensors that were not seen in the call before: a call of a
    known shape costs microseconds here.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.all: list[tuple[Operand, int]] = []
        self.hosts: dict[int, Tensor] = {}
        self.filled: tuple[bytes, Piece] | None = None
        self.kept: dict[tuple[int, Piece], _Kept] = {}

    def add(self, what: Operand, uid: int) -> None:
        self.all.append((what, uid))
        if not isinstance(what, View):
            self.hosts[uid] = host_number(what)

    def packed(self, arrays: Sequence[Tensor], scalars: Sequence[float], sizes: Sequence[int], piece: Piece) -> dict[int, Tensor]:
        """Tensors by uid, for a piece. scalars: those of the program. sizes: B, Hq."""
        values = packed_doubles("d", scalars).tobytes(), piece  # bytes: 0.0 and -0.0 are equal floats
        if values != self.filled:
            before, self.filled = self.filled, None
            if before is None or before[0] != values[0]:
                self._fill_numbers(scalars)
            self._fill_places(piece)
            self.filled = values
        found = dict(self.hosts)
        for what, uid in self.all:
            if isinstance(what, View):
                found[uid] = self._view(uid, what, arrays[what.slot], sizes, piece)
        return found

    def _fill_numbers(self, scalars: Sequence[float]) -> None:
        for what, uid in self.all:
            if isinstance(what, Number):
                self.hosts[uid].fill_(host_value(self.program, what.value, scalars))

    def _fill_places(self, piece: Piece) -> None:
        for what, uid in self.all:
            if isinstance(what, Start):
                self.hosts[uid].fill_(piece.q0 if what.axis == "q" else piece.k0)
            elif isinstance(what, Length):
                self.hosts[uid].fill_(piece.q1 - piece.q0 if what.axis == "q" else piece.k1 - piece.k0)

    def _view(self, uid: int, what: View, array: Tensor, sizes: Sequence[int], piece: Piece) -> Tensor:
        """The view of a captured tensor, kept while the tensor lives and stays where it is; copies in other dtypes are not."""
        if array.dtype in HELD_AS:
            return view(array, what, sizes, piece)
        place = array.data_ptr(), array.shape, array.stride(), array.dtype, tuple(sizes)
        known = self.kept.get((uid, piece))
        if known is not None and known.array() is array and known.place == place:
            return known.view
        made, key = view(array.data, what, sizes, piece), (uid, piece)  # a view of array itself would keep it alive
        self.kept[key] = _Kept(weakref.ref(array, lambda _: self.kept.pop(key, None)), place, made)
        return made
