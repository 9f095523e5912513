"""flexsdpa.torch.attention."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value

from flexsdpa.engine import ENGINE
from flexsdpa.errors import ReadError, RequestError
from flexsdpa.torch.autograd import run_forward
from flexsdpa.torch.contracts import check_arrays, check_layout, check_qkv, from_bhsd, refuse_keywords, to_bhsd
from flexsdpa.torch.dynamo import comparisons_are_asked
from flexsdpa.torch.functions import ReadMode, TorchFrontend
from flexsdpa.trace.capture import capture_name
from flexsdpa.trace.run import IDENTITY_TEXT, OFFSET_KINDS, trace

Mod = Callable[..., Any]
WORKING = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}
LARGEST_FLOAT = sys.float_info.max
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score_mod: Mod | None = None,
    mask_mod: Mod | None = None,
    scale: float | None = None,
    layout: str = "bhsd",
    return_lse: bool = False,
    sink: Tensor | None = None,
    q_offset: int | Tensor | None = None,
    backend: str | None = None,
    **other: Any,
) -> Any:
    """Attention with any score function and any mask, exact, with gradients for everything it reads.

    Equivalent code, with ``i`` and ``j`` the positions of query and key::

        s = scale * einsum("bhqd,bhkd->bhqk", q, k)     # k and v repeated over the heads of a group (GQA)
        s = score_mod(s, b, h, i, j)                    # computed in fp32 (fp64 for fp64 inputs)
        s = where(mask_mod(b, h, i, j), s, -inf)
        lse = logsumexp(s, -1)                          # natural logarithm
        out = exp(s - lse) @ v                          # a row without keys: out 0, lse -inf, gradients 0

    Args:
        q: (B, Hq, Sq, D), fp16, bf16, fp32 or fp64, any strides. Sq may be 1 and may differ from Skv. Jagged nested tensors
            work too: each sequence attends within itself (see ``varlen_attention`` for packed ones).
        k: (B, Hkv, Skv, D), dtype and device of q. Hkv divides Hq.
        v: (B, Hkv, Skv, Dv). Dv may differ from D.
        score_mod: ``f(score, b, h, q_idx, kv_idx) -> score``, written with Python operators, torch functions or
            ``flexsdpa.ops``. It is traced at every call, so changed globals, closures and attributes count at once.
            ``h`` is the query head; positions start at 0. Tensors that it reads (``table[h, q_idx - kv_idx]``) may
            have any integer or float dtype; float ones receive gradients.
        mask_mod: ``f(b, h, q_idx, kv_idx) -> bool``, True where attention is allowed. Blocks that it proves empty
            are skipped. A read out of range is harmless where the mask excludes the position.
        scale: softmax scale, a finite number; 1 / sqrt(D) by default. It never causes a rebuild.
        layout: order of the dimensions of q, k, v and the result: "bhsd", "bshd" or "sbhd". Views, no copies.
        return_lse: also return the LSE, (B, Hq, Sq), fp32 (fp64 for fp64 inputs), differentiable.
        sink: (Hq,) extra logit per head that takes part in the softmax without a value (attention sinks):
            ``lse = logaddexp(lse, sink)``. Differentiable.
        q_offset: added to ``q_idx`` as the mods see it: the position of the first query when decoding with a cache.
            An integer, a 0-D or a (B,) integer tensor. Unlike an integer that a mod captures, a new value builds nothing.
        backend: a backend's name, which then never falls back; by default the option ``backend`` ("auto").

    Returns:
        out (B, Hq, Sq, Dv), dtype of q, in q's memory order; with ``return_lse`` the pair (out, lse).

    Runs on CPU and CUDA, eagerly, under torch.compile(fullgraph=True), torch.func.grad, autocast (as SDPA does:
    q, k and v are cast) and activation checkpointing. Memory is O(S).

    Raises:
        RequestError: arguments that do not fit together; a keyword of other attention functions (``attn_mask``, ``is_causal``)
        with what to write instead. TraceError: a mod does what a traced mod cannot.
        ReadError: a captured tensor is read out of range where the mask keeps the position. UnsupportedError: no
        backend serves the request; lists every reason.

    Example:
        >>> import torch
        >>> from flexsdpa.torch import attention
        >>> q = k = v = torch.randn(1, 2, 16, 8)
        >>> out = attention(
        ...     q, k, v,
        ...     score_mod=lambda score, b, h, i, j: 20.0 * torch.tanh(score / 20.0),
        ...     mask_mod=lambda b, h, i, j: i >= j,
        ... )
        >>> out.shape
        torch.Size([1, 2, 16, 8])
    """
    if other:
        refuse_keywords(other)
    if any(isinstance(x, Tensor) and x.is_nested for x in (q, k, v)):
        from flexsdpa.torch.varlen import nested_attention

        given = {"score_mod": score_mod, "mask_mod": mask_mod, "scale": scale, "sink": sink, "backend": backend}
        return nested_attention(q, k, v, layout=layout, return_lse=return_lse, q_offset=q_offset, **given)
    if backend is not None and not isinstance(backend, str):
        raise RequestError(f"backend must be a backend's name, got {type(backend).__name__}", field="backend", got=backend)
    compiling = torch.compiler.is_dynamo_compiling()
    tensors = isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)
    if layout != "bhsd" or not (tensors and q.dim() == k.dim() == v.dim() == 4):
        check_layout(layout, q, k, v)
        q, k, v = to_bhsd(q, layout), to_bhsd(k, layout), to_bhsd(v, layout)
    if q.device.type != "meta" and torch.is_autocast_enabled(q.device.type):
        q, k, v = autocast_inputs(q, k, v)
    if not _fit(q, k, v):
        check_qkv(q, k, v)
    operands: list[Any] = [softmax_scale(scale, q.shape[3], compiling)]
    offset = offset_tensor(q_offset, q.shape[0], q.device, compiling)
    program, arrays = IDENTITY_TEXT, []
    if score_mod is not None or mask_mod is not None:
        trusted = not compiling or comparisons_are_asked()
        frontend = TorchFrontend(WORKING[q.dtype], q.device, compiling, trusted)
        with ReadMode():
            traced = trace(score_mod, mask_mod, frontend, offset)
        if not compiling:
            ENGINE.cache.count("traces")
        program, arrays = traced.text, traced.arrays
        operands += traced.scalars
        check_arrays(arrays, q.device, (score_mod, mask_mod, sink))
    scalars = scalar_tensor(operands, compiling)
    if compiling:
        out, lse = run_forward(q, k, v, arrays, scalars, program, backend or "")
    else:
        try:
            out, lse = run_forward(q, k, v, arrays, scalars, program, backend or "")
        except ReadError as error:
            raise named(error, arrays, (score_mod, mask_mod)) from None
    if sink is not None:
        out, lse = with_sink(out, lse, sink)
    if layout != "bhsd":
        out = from_bhsd(out, layout)
    return (out, lse) if return_lse else out


def _fit(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """The checks of check_qkv in their shortest form; it then says what is wrong."""
    (b, hq, _, d), (bk, hk, sk, dk), (bv, hv, sv, _) = q.shape, k.shape, v.shape
    same = b == bk == bv and hk == hv and sk == sv and d == dk
    whole = hk > 0 and d > 0 and hq % hk == 0
    return same and whole and q.dtype == k.dtype == v.dtype and q.dtype in WORKING and q.device == k.device == v.device


def autocast_inputs(*tensors: Tensor) -> list[Tensor]:
    """Tensors as SDPA sees them under autocast: floats but fp64 are cast to the autocast dtype."""
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return [x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors]


def softmax_scale(scale: Any, head_dim: int, compiling: bool) -> Any:
    """The scale, checked. A symbolic one is checked by nobody: torch.compile only keeps finite floats symbolic."""
    if scale is None:
        return 1.0 / math.sqrt(head_dim)
    if isinstance(scale, Tensor):
        raise RequestError(
            "scale must be a Python number, got a tensor: a learned temperature belongs in score_mod (score * temperature), "
            "where it receives a gradient",
            field="scale",
            got=scale,
        )
    if compiling and not has_static_value(scale):
        return scale
    if isinstance(scale, bool) or (not isinstance(scale, int | float) and not hasattr(scale, "__float__")):
        raise RequestError(f"scale must be a number, got {type(scale).__name__}", field="scale", got=scale)
    if (isinstance(scale, int) and abs(scale) > LARGEST_FLOAT) or not math.isfinite(scale):
        raise RequestError(f"scale must be finite, got {str(scale)[:20]}", field="scale", got=scale)
    return float(scale)


def offset_tensor(q_offset: Any, batch: int, device: torch.device, compiling: bool = False) -> Any:
    """A q_offset that moves from call to call as a tensor, so that a new position is no new program."""
    if q_offset is None:
        return None
    if isinstance(q_offset, Tensor):
        if q_offset.dim() > 1 or q_offset.dtype not in INTEGERS or (q_offset.dim() == 1 and q_offset.shape[0] != batch):
            got = f"{str(q_offset.dtype).removeprefix('torch.')} of shape {tuple(q_offset.shape)}"
            raise RequestError(f"{OFFSET_KINDS}; got {got}, batch {batch}", field="q_offset", got=q_offset)
        if q_offset.device != device and (q_offset.dim() or q_offset.device.type != "cpu"):
            raise RequestError(f"q_offset is on {q_offset.device}, but q is on {device}: move it", field="q_offset", got=q_offset)
        return q_offset
    if isinstance(q_offset, bool) or not (isinstance(q_offset, int) or hasattr(q_offset, "__index__")):
        raise RequestError(f"{OFFSET_KINDS}; got {type(q_offset).__name__}", field="q_offset", got=q_offset)
    if not compiling:
        q_offset = operator.index(q_offset)
    if not compiling and not -(2**62) < q_offset < 2**62:
        raise RequestError(f"q_offset must lie within 62 bits, got {q_offset}", field="q_offset", got=q_offset)
    return torch.ones((), dtype=torch.int64, device=device) * q_offset


def scalar_tensor(numbers: list[Any], compiling: bool) -> Tensor:
    """Float operands as one float64 CPU tensor. Under torch.compile they are products with a tensor, the form in which
    a symbolic float becomes a graph input instead of a constant to guard on."""
    if not compiling:
        return torch.tensor(numbers, dtype=torch.float64, device="cpu")
    one = torch.ones((), dtype=torch.float64, device="cpu")
    return torch.stack([one * x for x in numbers])


def with_sink(out: Tensor, lse: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """(out, lse) with an extra logit per head: the keys' share of the softmax is sigmoid(lse - sink)."""
    if not isinstance(sink, Tensor) or sink.shape != (out.shape[1],) or not sink.is_floating_point():
        got = tuple(sink.shape) if isinstance(sink, Tensor) else type(sink).__name__
        raise RequestError(
            f"sink must be a float tensor of shape (heads,) = ({out.shape[1]},), got {got}", field="sink", got=sink
        )
    if sink.device != out.device:
        raise RequestError(
            f"sink is on {sink.device}, but q is on {out.device}: move it before the call", field="sink", got=sink.device
        )
    logit = sink.to(lse.dtype)[None, :, None]
    nothing = (lse == -torch.inf) & (logit == -torch.inf)  # neither keys nor sink: the row stays as it is, gradients 0
    keys, logit = lse.masked_fill(nothing, 0.0), logit.expand_as(lse).masked_fill(nothing, 0.0)
    share = torch.sigmoid(keys - logit)
    return (out * share[..., None]).to(out.dtype), torch.logaddexp(keys, logit).masked_fill(nothing, -torch.inf)


def named(error: ReadError, arrays: list[Tensor], mods: tuple[Any, ...]) -> ReadError:
    """The error with the user's name for the captured tensor."""
    slot = getattr(error, "slot", None)
    if slot is None:
        return error
    name = capture_name(mods, arrays[slot])
    return ReadError(str(error).replace(f"captured tensor number {slot}", f"captured tensor {name!r}")) if name else error
