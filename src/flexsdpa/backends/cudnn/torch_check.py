"""Every program is tried on a small problem before it is trusted: cuDNN builds graphs that it computes wrongly.

Seen with cuDNN 9.19 on sm_90, without an error: tensors without a query axis read at other positions, and gradients of
order 1e10 after a value minus itself. A kernel that disagrees with the interpreter is a refusal, with the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flexsdpa.backends.cudnn.lower import view_of
from flexsdpa.ir.evaluate import evaluate
from flexsdpa.ir.program import Program
from flexsdpa.spec.request import AttentionRequest
from flexsdpa.spec.tensors import TensorSpec, contiguous_strides

B, HKV = 2, 2
TILE = 128
SPREAD = 3.0
"""Factor on q: scores of some size, so that a wrong slope shows."""
ALLOWED = 0.02
"""Root mean square error over root mean square, of half-precision results. Right kernels stay below 0.005."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """A small problem with the program of a request: the request for it, its tensors, and the answers."""

    request: AttentionRequest
    q: Tensor
    k: Tensor
    v: Tensor
    grad_out: Tensor
    out: Tensor
    lse: Tensor
    arrays: tuple[Tensor, ...]
    answers: dict[str, Array]


def make_trial(request: AttentionRequest, program: Program, arrays: Sequence[Tensor], scalars: Sequence[float]) -> Trial:
    """Random inputs from a generator of its own, answers in float64 on the host."""
    device, dtype = device_of_request(request), {"f16": torch.float16, "bf16": torch.bfloat16}[request.q.dtype]
    generator = torch.Generator().manual_seed(0)
    heads, d, dv = HKV * request.group, request.q.shape[3], request.v.shape[3]
    q_len, kv_len = (TILE + (x.shape[2] % TILE or TILE) for x in (request.q, request.k))  # the last tile as full as there

    def random(*shape: int, factor: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=generator) * factor).to(dtype)

    q, k, v = random(B, heads, q_len, d, factor=SPREAD), random(B, HKV, kv_len, d), random(B, HKV, kv_len, dv)
    grad_out = random(B, heads, q_len, dv)
    length = {"b": B, "h": heads, "q": q_len, "kv": kv_len}
    small = tuple(_small_array(program, slot, array, length, generator) for slot, array in enumerate(arrays))
    host = [x.double().numpy() for x in (q, k, v, grad_out)]
    answers = _answers(program, host[0], host[1], host[2], host[3], small, scalars)
    out, lse = torch.from_numpy(answers["out"]).to(dtype), torch.from_numpy(answers["lse"]).float()
    of_q, of_k, of_v = (TensorSpec(request.q.dtype, tuple(x.shape), contiguous_strides(tuple(x.shape))) for x in (q, k, v))
    shapes = tuple(
        TensorSpec(spec.dtype, tuple(x.shape), contiguous_strides(tuple(x.shape)))
        for spec, x in zip(request.arrays, small, strict=True)
    )
    asked = AttentionRequest(
        request.direction, request.device, of_q, of_k, of_v, request.program, shapes, request.scalars, request.needs,
        deterministic=request.deterministic, backend=request.backend,
    )  # fmt: skip
    q, k, v, grad_out, out, lse = (x.to(device) for x in (q, k, v, grad_out, out, lse))
    return Trial(asked, q, k, v, grad_out, out, lse, tuple(x.to(device) for x in small), answers)


def device_of_request(request: AttentionRequest) -> torch.device:
    return torch.device(request.device.kind, request.device.index)


def _small_array(program: Program, slot: int, array: Tensor, length: dict[str, int], generator: torch.Generator) -> Tensor:
    """A captured tensor with random contents, as long as the axes that index it."""
    views = (view_of(program, program.instrs[n]) for n in program.reads())
    axes = next((view.axes for view in views if view is not None and view.slot == slot), None)
    sizes = zip(axes or (), array.shape, strict=False)
    shape = tuple(length[axis] if isinstance(axis, str) else size for axis, size in sizes) if axes else (1,) * array.dim()
    if array.is_floating_point():
        return (torch.randn(shape, generator=generator) * 0.5).to(array.dtype)
    return torch.randint(0, 2 if array.dtype == torch.bool else 4, shape, generator=generator).to(array.dtype)


def _answers(
    program: Program, q: Array, k: Array, v: Array, grad_out: Array, arrays: Sequence[Tensor], scalars: Sequence[float]
) -> dict[str, Array]:
    """out, lse, dq, dk and dv of dense attention in float64."""
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = (x.repeat(group, axis=1) for x in (k, v))
    scale = 1 / math.sqrt(q.shape[3])
    grid = {"b": np.arange(B).reshape(-1, 1, 1, 1), "h": np.arange(q.shape[1]).reshape(-1, 1, 1),
            "q": np.arange(q.shape[2])[:, None], "kv": np.arange(k.shape[2])}  # fmt: skip
    score = scale * q @ wide_k.swapaxes(2, 3)
    host = [(x.float() if x.dtype == torch.bfloat16 else x).numpy() for x in arrays]
    results = evaluate(program, {"score": score, **grid}, host, scalars[1:])
    new = np.broadcast_to(results["score"], score.shape)
    new = np.where(results["keep"], new, -np.inf) if "keep" in results else new
    with np.errstate(all="ignore"):
        top = np.max(new, -1, keepdims=True)
        top = np.where(np.isfinite(top), top, 0.0)
        p = np.exp(new - top)
        total = p.sum(-1, keepdims=True)
        lse = np.log(total) + top
        p = np.where(total == 0, 0.0, p / np.where(total == 0, 1.0, total))
        out = p @ wide_v
        dp = grad_out @ wide_v.swapaxes(2, 3)
        ds = p * (dp - (grad_out * out).sum(-1, keepdims=True)) * results.get("dscore", np.zeros(()))
        ds = np.where(p == 0, 0.0, ds)
    shared = (B, k.shape[1], group, k.shape[2])
    return {
        "out": out,
        "lse": lse[..., 0],
        "dq": scale * ds @ wide_k,
        "dk": (scale * ds.swapaxes(2, 3) @ q).reshape(*shared, -1).sum(2),
        "dv": (p.swapaxes(2, 3) @ grad_out).reshape(*shared, -1).sum(2),
    }


def disagreement(answers: dict[str, Array], found: dict[str, Tensor]) -> str:
    """What a kernel computed wrongly; empty if nothing."""
    for name, tensor in found.items():
        want, got = answers[name], tensor.double().cpu().numpy()
        regular = np.isfinite(want)
        size = math.sqrt(float(np.mean(np.square(want[regular])))) if regular.any() else 0.0
        error = np.where(regular, got - want, 0.0)
        rms = math.sqrt(float(np.mean(np.square(error)))) if np.isfinite(error).all() else math.inf
        if not rms <= ALLOWED * max(size, 1e-3):
            return f"{name} is off by {rms:.2g} (rms) where values are about {size:.2g}"
    return ""
