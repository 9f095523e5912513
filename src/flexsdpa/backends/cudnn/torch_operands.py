"""Operands of a cuDNN graph at run time: numbers on the host, views of captured tensors on the device."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from flexsdpa.backends.cudnn.layout import Piece
from flexsdpa.backends.cudnn.lower import AXES, View
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
    if torch.cuda.is_current_stream_capturing():
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
