"""Gradients of captured tensors: sums over the positions that read one element, the same from run to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from flexsdpa.backends.reference.torch_call import Call
from flexsdpa.ir.derivative import Derivative, ReadGradient
from flexsdpa.ir.ops import INDICES

WIDE_UP_TO = 1 << 22
"""Sums of up to this many elements are kept in fp64: one element may gather millions of terms."""


class ReadSums:
    """One sum per captured tensor that needs a gradient."""

    def __init__(self, call: Call, derivative: Derivative, needed: Sequence[bool]) -> None:
        self.call = call
        self.reads = [read for read in derivative.reads if needed[read.slot]]
        self.leaves = [_leaves(derivative, read) for read in self.reads]
        self.sums: list[Tensor | None] = []
        for array, need in zip(call.arrays, needed, strict=True):
            dtype = torch.float64 if array.numel() <= WIDE_UP_TO else call.F
            self.sums.append(torch.zeros(array.shape, dtype=dtype, device=array.device) if need else None)

    def add(self, results: Mapping[str, Tensor], ds: Tensor, dead: Tensor | None, at: tuple[slice, ...]) -> None:
        """Adds one tile: ds (nb, nh, Tq, Tk) is the gradient of the mod's result. dead: positions that count for nothing."""
        for read, leaves in zip(self.reads, self.leaves, strict=True):
            partial = results[read.partial]
            part = ds * partial
            if dead is not None:
                part.masked_fill_(dead, 0.0)
            total = self.sums[read.slot]
            assert total is not None
            if leaves is not None:
                _add_slice(total, part, leaves, at)
            else:
                _add_scattered(total, part, [results[name] for name in read.indices])

    def finish(self) -> list[Tensor | None]:
        """The sums in the dtypes of their tensors."""
        return [
            None if total is None else total.to(array.dtype) for total, array in zip(self.sums, self.call.arrays, strict=True)
        ]


def _leaves(derivative: Derivative, read: ReadGradient) -> list[int] | None:
    """The axes that index a read, when they are bare index leaves, each once; None otherwise."""
    program = derivative.program
    ops = [program.instrs[n].op for name in read.indices if (n := program.result(name)) is not None]
    if any(op not in INDICES for op in ops) or len(set(ops)) != len(ops):
        return None
    return [INDICES.index(op) for op in ops]


def _add_slice(total: Tensor, part: Tensor, leaves: list[int], at: tuple[slice, ...]) -> None:
    """A read at bare indices: a sum over the other axes, added to a slice."""
    gone = [axis for axis in range(4) if axis not in leaves]
    summed = part.sum(gone) if gone else part
    order = sorted(leaves)
    summed = summed.permute([order.index(axis) for axis in leaves])
    places = tuple(slice(at[axis].start, min(at[axis].stop, size)) for axis, size in zip(leaves, total.shape, strict=True))
    inside = total[places]
    inside.add_(summed[tuple(slice(0, size) for size in inside.shape)])


def _add_scattered(total: Tensor, part: Tensor, indices: list[Tensor]) -> None:
    """Any read: a sum over the axes that no index depends on, then a scatter in a fixed order."""
    if total.numel() == 0:
        return
    flat = torch.zeros((), dtype=torch.int64, device=total.device)
    for index, size in zip(indices, total.shape, strict=True):
        flat = flat * size + torch.where(index < 0, index + size, index).clamp(0, max(size - 1, 0))
    flat = flat.view((1,) * (4 - flat.dim()) + flat.shape)
    gone = [axis for axis in range(4) if flat.shape[axis] == 1 and part.shape[axis] != 1]
    if gone:
        part = part.sum(gone, keepdim=True)
    place, value = flat.expand(part.shape).reshape(-1), part.reshape(-1).to(total.dtype)
    if total.device.type == "cpu":
        total.view(-1).scatter_add_(0, place, value)
    else:  # sorted, unlike scatter_add_, so the order of the sum does not change from run to run
        total.view(-1).index_put_((place,), value, accumulate=True)
