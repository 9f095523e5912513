"""Plans that call torch's fused CPU attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flexsdpa.backends.protocol import BuildSpec
from flexsdpa.backends.sdpa.rules import is_causal
from flexsdpa.plans.plan import Plan, PlanDeclined
from flexsdpa.spec.tensors import ordered_strides

forward_op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
backward_op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


LARGE_LSE = 64.0
"""Above it the rounding of an fp32 LSE changes probabilities by more than 4e-6."""


class SdpaForward:
    """``causal`` is the kernel's own flag: it skips the blocks above the diagonal."""

    def __init__(self, causal: bool) -> None:
        self.causal = causal

    def run(self, q: Tensor, k: Tensor, v: Tensor, arrays: Sequence[Tensor], scalars: Sequence[float]) -> tuple[Tensor, Tensor]:
        out, lse = forward_op(q, k, v, 0.0, self.causal, scale=scalars[0])
        if self.causal:
            _decline_unless_finite([out])
        return _in_order(out, q), lse.contiguous()


class SdpaBackward:
    def __init__(self, causal: bool, needs: tuple[bool, ...]) -> None:
        self.causal = causal
        self.needs = needs

    def run(
        self,
        grad_out: Tensor | None,
        grad_lse: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        arrays: Sequence[Tensor],
        scalars: Sequence[float],
    ) -> list[Tensor | None]:
        assert grad_out is not None
        if bool((lse.abs() > LARGE_LSE).any()):
            raise PlanDeclined("sdpa.large-lse", "values", "an LSE whose rounding changes probabilities", "smaller scores")
        # The backward kernel reads grad_out and LSE with the strides that its own forward produces.
        lse = lse.transpose(1, 2).contiguous().transpose(1, 2)
        grads = backward_op(grad_out.contiguous(), q, k, v, out, lse, 0.0, self.causal, scale=scalars[0])
        if self.causal:
            _decline_unless_finite(list(grads))
        wanted = [_in_order(grad, like) if need else None for grad, like, need in zip(grads, (q, k, v), self.needs, strict=False)]
        return wanted + [torch.zeros_like(a) if need else None for a, need in zip(arrays, self.needs[3:], strict=True)]


def _decline_unless_finite(tensors: list[Tensor]) -> None:
    """The kernel multiplies masked positions by 0, so a nan or inf there spoils rows that must not see it."""
    dtype = torch.float64 if tensors[0].dtype == torch.float64 else torch.float32
    if not bool(torch.isfinite(torch.stack([t.sum(dtype=dtype) for t in tensors])).all()):
        raise PlanDeclined("sdpa.finite", "values", "nan or inf under a causal mask", "finite values under a causal mask")


def _in_order(x: Tensor, like: Tensor) -> Tensor:
    """x in the memory order that the operator promises."""
    strides = ordered_strides(tuple(x.shape), like.stride())
    return x if x.stride() == strides else torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def build(spec: BuildSpec) -> Plan:
    causal = is_causal(spec.request.program)
    return SdpaForward(causal) if spec.derivative is None else SdpaBackward(causal, spec.request.needs)
