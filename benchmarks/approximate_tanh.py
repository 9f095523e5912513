"""tanh as one hardware instruction (PTX tanh.approx.f32) inside compiled FlexAttention: the fast peer of a soft-cap.

Eagerly it is torch.tanh. Its error is about 5e-4, which the tables say.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("flexsdpa_bench::tanh", mutates_args=())
def _tanh(x: Tensor) -> Tensor:
    return torch.tanh(x)


@_tanh.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class _ApproximateTanh(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.ops.flexsdpa_bench.tanh(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return grad * (1 - y * y)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int | None]:
        return _ApproximateTanh.apply(x), in_dims[0]


def approximate_tanh(x: Tensor) -> Tensor:
    """tanh(x), differentiable and vmappable."""
    return _ApproximateTanh.apply(x)


@functools.cache
def lower_to_ptx() -> None:
    """Tells Inductor to emit the instruction. Private interfaces of torch: raises where a release has others."""
    from torch._inductor.lowering import make_pointwise, register_lowering
    from torch._inductor.virtualized import ops

    emit = functools.partial(ops.inline_asm_elementwise, asm="tanh.approx.f32 $0, $1;")
    register_lowering(torch.ops.flexsdpa_bench.tanh)(lambda x: make_pointwise(emit)(x))
