"""The registered operators ``flexsdpa::forward`` and ``flexsdpa::backward``: kernels, fake kernels, flop counts.

Both take program text, not a function, so that compile, export and serialisation see plain data.
``scalars`` is one float64 tensor on the CPU: the softmax scale, then the program's scalars.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from flexsdpa import config
from flexsdpa.engine import ENGINE
from flexsdpa.spec.tensors import ordered_strides
from flexsdpa.torch.contracts import Signature, request_of, signature_of

LIBRARY = torch.library.Library("flexsdpa", "DEF")
LIBRARY.define(
    "forward(Tensor q, Tensor k, Tensor v, Tensor[] arrays, Tensor scalars, str program, str backend) -> (Tensor, Tensor)"
)
LIBRARY.define(
    "backward(Tensor? grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor[] arrays, "
    "Tensor scalars, str program, str backend, bool[] needs) -> Tensor[]"
)


def empty_ordered(like: Tensor, last: int) -> Tensor:
    """What backends allocate for out, dq, dk and dv: (B, H, S, last) in the memory order of ``like``."""
    shape = (*like.shape[:3], last)
    return like.new_empty_strided(shape, ordered_strides(shape, like.stride()))


def lse_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def forward_kernel(
    q: Tensor, k: Tensor, v: Tensor, arrays: Sequence[Tensor], scalars: Tensor, program: str, backend: str
) -> tuple[Tensor, Tensor]:
    signature = signature_of("forward", q, k, v, arrays, program, backend or config.get("backend"))
    values = scalars.tolist()
    out, lse = _run(q.device.type, signature, len(values) - 1, q, k, v, arrays, values)
    return out, lse


def _run(device_type: str, signature: Signature, scalars: int, *tensors: Any) -> Any:
    """Runs a plan with autocast off: the inputs are cast already, and a plan's own products must not be."""
    if device_type != "meta" and torch.is_autocast_enabled(device_type):
        with torch.autocast(device_type, enabled=False):
            return ENGINE.run(signature, lambda: request_of(signature, scalars), *tensors)
    return ENGINE.run(signature, lambda: request_of(signature, scalars), *tensors)


def forward_fake(
    q: Tensor, k: Tensor, v: Tensor, arrays: Sequence[Tensor], scalars: Tensor, program: str, backend: str
) -> tuple[Tensor, Tensor]:
    return empty_ordered(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=lse_dtype(q))


def backward_kernel(
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    arrays: Sequence[Tensor],
    scalars: Tensor,
    program: str,
    backend: str,
    needs: Sequence[bool],
) -> list[Tensor]:
    wanted = tuple(needs)
    named = backend or config.get("backend")
    signature = signature_of("backward", q, k, v, arrays, program, named, wanted, grad_lse is not None)
    values = scalars.tolist()
    grads = _run(q.device.type, signature, len(values) - 1, grad_out, grad_lse, q, k, v, out, lse, arrays, values)
    return [grad for grad, need in zip(grads, wanted, strict=True) if need]


def backward_fake(
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    arrays: Sequence[Tensor],
    scalars: Tensor,
    program: str,
    backend: str,
    needs: Sequence[bool],
) -> list[Tensor]:
    wanted = [n for n, need in enumerate(needs) if need]
    ordered = (q, k, v)
    return [empty_ordered(ordered[n], ordered[n].shape[3]) if n < 3 else _dense_like(arrays[n - 3]) for n in wanted]


def _dense_like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


LIBRARY.impl("forward", forward_kernel, "CompositeExplicitAutograd")
LIBRARY.impl("backward", backward_kernel, "CompositeExplicitAutograd")
torch.library.register_fake("flexsdpa::forward", forward_fake, lib=LIBRARY)
torch.library.register_fake("flexsdpa::backward", backward_fake, lib=LIBRARY)

forward_op = torch.ops.flexsdpa.forward.default
backward_op = torch.ops.flexsdpa.backward.default


def _scores(q_shape: Sequence[int], k_shape: Sequence[int]) -> int:
    return q_shape[0] * q_shape[1] * q_shape[2] * k_shape[2]


@register_flop_formula(torch.ops.flexsdpa.forward)
def forward_flops(q: Sequence[int], k: Sequence[int], v: Sequence[int], *_: object, **__: object) -> int:
    """Two products over all scores, masked or not, as torch counts its own attention."""
    return 2 * _scores(q, k) * (q[3] + v[3])


@register_flop_formula(torch.ops.flexsdpa.backward)
def backward_flops(
    grad_out: object, grad_lse: object, q: Sequence[int], k: Sequence[int], v: Sequence[int], *_: object, **__: object
) -> int:
    """Five products: the scores again, dp, dv, dq and dk."""
    return 2 * _scores(q, k) * (3 * q[3] + 2 * v[3])
