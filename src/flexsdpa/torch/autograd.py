"""Gradients of the operators: an Autograd kernel for ordinary calls, and a function for torch.func transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flexsdpa.errors import UnsupportedError
from flexsdpa.torch.operators import LIBRARY, backward_op, forward_op

DOUBLE_BACKWARD = (
    "double backward through flexsdpa attention is not supported: the second derivative of the kernel does not exist. "
    "Drop create_graph=True, or compute the penalty on a small dense attention"
)
JVP = (
    "forward-mode differentiation (torch.func.jvp) through flexsdpa attention is not supported: use reverse mode "
    "(torch.func.grad or vjp)"
)
VMAP = (
    "torch.vmap over flexsdpa attention is not supported: a mod's batch index would change its meaning. "
    "Fold the mapped dimension into the batch dimension and call attention once"
)


class _Attention(torch.autograd.Function):
    """The Autograd kernel of flexsdpa::forward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scalars: Tensor, program: str, backend: str, *arrays: Tensor) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            out, lse = forward_op(q, k, v, arrays, scalars, program, backend)
        ctx.save_for_backward(q, k, v, scalars, out, lse, *arrays)
        ctx.program, ctx.backend = program, backend
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> Any:
        return _gradients(ctx, grad_out, grad_lse)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise UnsupportedError(JVP)


class _FunctionalAttention(torch.autograd.Function):
    """The same for torch.func.grad, vjp and jacrev, which need ``setup_context``; the operator is called normally inside."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, scalars: Tensor, program: str, backend: str, *arrays: Tensor) -> Any:
        return forward_op(q, k, v, arrays, scalars, program, backend)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        q, k, v, scalars, program, backend, *arrays = inputs
        ctx.save_for_backward(q, k, v, scalars, *output, *arrays)
        ctx.program, ctx.backend = program, backend
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> Any:
        return _gradients(ctx, grad_out, grad_lse)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise UnsupportedError(JVP)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        raise UnsupportedError(VMAP)


class _Gradient(torch.autograd.Function):
    """backward_op, whose own derivative is an error rather than silently absent."""

    @staticmethod
    def forward(
        grad_out: Tensor | None, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
        scalars: Tensor, program: str, backend: str, needs: list[bool], *arrays: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        return tuple(backward_op(grad_out, grad_lse, q, k, v, out, lse, arrays, scalars, program, backend, needs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise UnsupportedError(DOUBLE_BACKWARD)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        raise UnsupportedError(VMAP)


def _apply(function: Any, *args: Any) -> Any:
    return function.apply(*args)


def _gradients(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, scalars, out, lse, *arrays = ctx.saved_tensors
    floats = [a.is_floating_point() for a in arrays]
    needs = [*ctx.needs_input_grad[:3], *[n and f for n, f in zip(ctx.needs_input_grad[6:], floats, strict=True)]]
    if grad_out is None and grad_lse is None:
        return (None,) * (6 + len(arrays))
    if torch.is_grad_enabled():
        grads = list(_apply(_Gradient, grad_out, grad_lse, q, k, v, out, lse, scalars, ctx.program, ctx.backend, needs, *arrays))
    else:
        grads = backward_op(grad_out, grad_lse, q, k, v, out, lse, arrays, scalars, ctx.program, ctx.backend, needs)
    given = iter(grads)
    spread = [next(given) if need else None for need in needs]
    return (*spread[:3], None, None, None, *spread[3:])


def _forward_autograd(
    q: Tensor, k: Tensor, v: Tensor, arrays: Sequence[Tensor], scalars: Tensor, program: str, backend: str
) -> Any:
    tensors = (q, k, v, *arrays)
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise UnsupportedError(JVP)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _apply(_Attention, q, k, v, scalars, program, backend, *arrays)
    with torch._C._AutoDispatchBelowAutograd():
        return forward_op(q, k, v, arrays, scalars, program, backend)


def _backward_autograd(
    grad_out: Tensor | None, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    arrays: Sequence[Tensor], scalars: Tensor, program: str, backend: str, needs: list[bool],
) -> Any:  # fmt: skip
    with torch._C._AutoDispatchBelowAutograd():
        return backward_op(grad_out, grad_lse, q, k, v, out, lse, arrays, scalars, program, backend, needs)


LIBRARY.impl("forward", _forward_autograd, "Autograd")
LIBRARY.impl("backward", _backward_autograd, "Autograd")


def run_forward(q: Tensor, k: Tensor, v: Tensor, arrays: list[Tensor], scalars: Tensor, program: str, backend: str) -> Any:
    """(out, lse), differentiable, by the route that the active transforms need."""
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return _apply(_FunctionalAttention, q, k, v, scalars, program, backend, *arrays)
    return forward_op(q, k, v, arrays, scalars, program, backend)
