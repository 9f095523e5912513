"""Helpers that lowered text calls, compilation of that text, and reads that cannot go out of range."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flexsdpa.spec.tensors import ordered_strides

TileFunction = Callable[..., tuple[Any, ...]]


def int_floordiv(x: Tensor, y: Tensor) -> Tensor:
    zero = y == 0
    return torch.div(x, torch.where(zero, 1, y), rounding_mode="floor").masked_fill(zero, 0)


def int_mod(x: Tensor, y: Tensor) -> Tensor:
    zero = y == 0
    return torch.remainder(x, torch.where(zero, 1, y)).masked_fill(zero, 0)


def int_shl(x: Tensor, y: Tensor) -> Tensor:
    inside = (y >= 0) & (y < 64)
    return torch.where(inside, torch.bitwise_left_shift(x, torch.where(inside, y, 0)), 0)


def int_shr(x: Tensor, y: Tensor) -> Tensor:
    return torch.bitwise_right_shift(x, torch.where((y >= 0) & (y < 64), y, 63))


def careful_read(table: Tensor, indices: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(table[indices], out of range) with every index clamped into range."""
    outside = torch.zeros((), dtype=torch.bool, device=table.device)
    places = []
    for index, size in zip(indices, table.shape, strict=True):
        index = index.to(table.device)
        outside = outside | (index < -size) | (index >= size)
        places.append(torch.where(index < 0, index + size, index).clamp(0, max(size - 1, 0)))
    if table.numel() == 0:
        return torch.zeros(outside.shape, dtype=dtype, device=table.device), outside
    return (table[tuple(places)] if places else table).to(dtype), outside


NAMESPACE = {
    "torch": torch, "INF": math.inf, "NAN": math.nan, "int_floordiv": int_floordiv, "int_mod": int_mod,
    "int_shl": int_shl, "int_shr": int_shr, "careful_read": careful_read,
}  # fmt: skip


@functools.lru_cache(maxsize=512)
def compile_text(text: str) -> TileFunction:
    """The function that lowered text defines. The text holds no user input but numbers and slots."""
    scope: dict[str, Any] = dict(NAMESPACE)
    exec(compile(text, "<flexsdpa lowered program>", "exec"), scope)
    function: TileFunction = scope["tile"]
    return function


def empty_ordered(like: Tensor, last: int) -> Tensor:
    """An uninitialised (B, H, S, last) tensor in the memory order of ``like``."""
    shape = (*like.shape[:3], last)
    return torch.empty_strided(shape, ordered_strides(shape, like.stride()), dtype=like.dtype, device=like.device)


class _Scratch(threading.local):
    """Tile buffers of one thread, kept between calls: fresh pages cost more than the arithmetic of a tile."""

    def __init__(self) -> None:
        self.buffers: dict[tuple[str, torch.dtype], Tensor] = {}


_SCRATCH = _Scratch()
KEPT_BYTES = 1 << 25
"""Buffers up to this size are kept, one per thread, dtype and use."""


def scratch(use: str, elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised buffer that nobody else in this thread uses for ``use``."""
    if device.type != "cpu" or elements * dtype.itemsize > KEPT_BYTES:
        return torch.empty(elements, dtype=dtype, device=device)
    found = _SCRATCH.buffers.get((use, dtype))
    if found is None or found.numel() < elements:
        with torch.inference_mode(False):  # a buffer outlives the mode in which it is first needed
            found = _SCRATCH.buffers[use, dtype] = torch.empty(elements, dtype=dtype)
    return found[:elements]


def all_finite(tensors: list[Tensor | None], dtype: torch.dtype) -> bool:
    """Whether every element is finite, by sums: one pass, no temporaries. Waits for the device."""
    sums = [torch.sum(t, dtype=dtype) for t in tensors if t is not None and t.is_floating_point() and t.numel()]
    return not sums or bool(torch.isfinite(torch.stack(sums)).all())
