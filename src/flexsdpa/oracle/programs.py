"""Mods whose graphs the oracle asks about, one for each class of op, lowered as the cudnn backend lowers them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flexsdpa import mods, ops
from flexsdpa.backends.cudnn.layout import Piece, guarded, layout
from flexsdpa.backends.cudnn.lower import Literal, Lowering, Number, Operand, View
from flexsdpa.backends.cudnn.rules import lowered_program, needs_wide_views
from flexsdpa.backends.cudnn.tune import finished
from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.oracle.graphs import Asked
from flexsdpa.spec.device import Device
from flexsdpa.spec.request import AttentionRequest, Direction
from flexsdpa.spec.tensors import TensorSpec, contiguous_strides
from flexsdpa.trace.recorder import NUMPY_NAMES, Frontend
from flexsdpa.trace.run import Trace, trace

BATCH, HEADS, QUERIES, KEYS = 2, 16, 1024, 1024
Mod = Callable[..., Any]

PER_HEAD = np.zeros(HEADS, np.float32)
PER_BATCH = np.zeros(BATCH, np.float32)
PER_QUERY = np.zeros(QUERIES, np.float32)
PER_KEY = np.zeros(KEYS, np.float32)
BIAS = np.broadcast_to(np.float32(0), (BATCH, HEADS, QUERIES, KEYS))
HEAD_BIAS = np.broadcast_to(np.float32(0), (HEADS, QUERIES, KEYS))
ONE = np.zeros(1, np.float32)
IDS = np.zeros((BATCH, KEYS), np.int32)
ALLOWED = np.zeros((BATCH, KEYS), bool)


def _float(function: Callable[[Any], Any]) -> tuple[Mod, None]:
    """A score mod of the score alone."""
    return lambda s, b, h, q, k: function(s), None


def _integer(function: Callable[[Any, Any], Any]) -> tuple[Mod, None]:
    """A score mod that adds an integer function of query and key position."""
    return lambda s, b, h, q, k: s + function(q, k) * 0.5, None


def _mask(mask: Mod) -> tuple[None, Mod]:
    return None, mask


PROGRAMS: Mapping[str, tuple[Mod | None, Mod | None]] = {
    "softcap": (mods.softcap(30.0), None),
    "softcap, causal": (mods.softcap(30.0), mods.causal),
    "softcap, window": (mods.softcap(30.0), mods.sliding_window(512)),
    "alibi, causal": (mods.alibi(PER_HEAD), mods.causal),
    "relative distance": (lambda s, b, h, q, k: s + (q - k), None),
    "scaled": _float(lambda s: s * 0.5),
    "divided": _float(lambda s: s / 3.0),
    "exp": _float(lambda s: ops.exp(s)),
    "exp2": _float(lambda s: ops.exp2(s)),
    "expm1": _float(lambda s: ops.expm1(s)),
    "log": _float(lambda s: ops.log(s)),
    "log1p": _float(lambda s: ops.log1p(s)),
    "log2": _float(lambda s: ops.log2(s)),
    "sqrt": _float(lambda s: ops.sqrt(s)),
    "rsqrt": _float(lambda s: ops.rsqrt(s)),
    "sigmoid gate": _float(lambda s: s * ops.sigmoid(s)),
    "erf": _float(lambda s: ops.erf(s)),
    "sin": _float(lambda s: ops.sin(s)),
    "cos": _float(lambda s: ops.cos(s)),
    "floor": _float(lambda s: s + ops.floor(s)),
    "ceil": _float(lambda s: s + ops.ceil(s)),
    "trunc": _float(lambda s: s + ops.trunc(s)),
    "abs": _float(lambda s: ops.abs(s)),
    "sign": _float(lambda s: s + ops.sign(s)),
    "square": _float(lambda s: s * s),
    "minimum": _float(lambda s: ops.minimum(s, 1.5)),
    "maximum": _float(lambda s: ops.maximum(s, -1.5)),
    "clamp": _float(lambda s: ops.clamp(s, -2.5, 2.5)),
    "where": _float(lambda s: ops.where(s > 0.5, s, s * 0.1)),
    "remainder": _float(lambda s: s % 3.5),
    "floor division": _float(lambda s: s + s // 3.5),
    "integer distance": _integer(lambda q, k: ops.abs(q - k)),
    "integer sign": _integer(lambda q, k: ops.sign(q - k)),
    "integer minimum": _integer(lambda q, k: ops.minimum(q - k, 8)),
    "integer division": _integer(lambda q, k: (q - k) // 16),
    "integer remainder": _integer(lambda q, k: (q - k) % 16),
    "integer product": _integer(lambda q, k: q * k),
    "comparison as number": _integer(lambda q, k: ops.where(q > k, 1, 0)),
    "head and batch": (lambda s, b, h, q, k: s * (h + 1) + b, None),
    "causal as score": (lambda s, b, h, q, k: ops.where(q >= k, s, -float("inf")), None),
    "odd keys": _mask(lambda b, h, q, k: (k % 2) == 1),
    "dilated window": _mask(lambda b, h, q, k: ((q - k) % 4 == 0) & (q >= k)),
    "either side": _mask(lambda b, h, q, k: (k < 64) | (q - k < 128)),
    "not the diagonal": _mask(lambda b, h, q, k: ~(q == k)),
    "documents": _mask(mods.document(IDS)),
    "documents, causal": _mask(mods.and_masks(mods.document(IDS), mods.causal)),
    "padding": _mask(mods.padding(np.zeros(BATCH, np.int32))),
    "prefix": _mask(mods.prefix_lm(np.zeros(BATCH, np.int32))),
    "allowed keys": _mask(lambda b, h, q, k: ops.read(ALLOWED, b, k)),
    "per head": (lambda s, b, h, q, k: s * ops.read(PER_HEAD, h), None),
    "per batch": (lambda s, b, h, q, k: s + ops.read(PER_BATCH, b), None),
    "per query": (lambda s, b, h, q, k: s + ops.read(PER_QUERY, q), None),
    "per key": (lambda s, b, h, q, k: s + ops.read(PER_KEY, k), None),
    "one learned number": (lambda s, b, h, q, k: s * ops.read(ONE, 0), None),
    "bias of head, query, key": (lambda s, b, h, q, k: s + ops.read(HEAD_BIAS, h, q, k), None),
    "full bias": (lambda s, b, h, q, k: s + ops.read(BIAS, b, h, q, k), None),
    "full bias, softcap": (lambda s, b, h, q, k: 20.0 * ops.tanh((s + ops.read(BIAS, b, h, q, k)) / 20.0), None),
}  # fmt: skip
"""Name -> (score_mod, mask_mod) over BATCH, HEADS, QUERIES, KEYS."""


def traced(name: str) -> Trace:
    return trace(*PROGRAMS[name], Frontend())


def request_for(case: FieldCase, direction: Direction, program: str) -> AttentionRequest:
    """The request that flexsdpa itself would make of a described card for a program; nobody wants captured gradients."""
    return _request(case, direction, traced(program))


def own_request(case: FieldCase, direction: Direction) -> AttentionRequest | None:
    """The same for another framework's call, where flexsdpa would put it to cuDNN as one graph with native flags; else None."""
    dense = len(case.groups) == 3 and not case.ragged and not case.padding and not case.cached
    if not (dense and case.half and case.plain and not case.sink and not case.max_logit):
        return None
    (left, right), shift = case.band, case.s_kv - case.s_q if case.aligned_bottom_right else 0
    clauses: list[Mod] = []
    if left >= 0:
        clauses.append(lambda b, h, q, k: k >= q + (shift - left))
    if right >= 0 or case.causal:
        clauses.append(lambda b, h, q, k: k <= q + (shift + max(right, 0)))
    request = _request(case, direction, trace(None, mods.and_masks(*clauses) if clauses else None, Frontend()))
    plan = layout(lowered_program(request), direction, case.s_q, case.s_kv)
    return request if plan.native is not None and plan.whole(case.s_q, case.s_kv) else None


def _request(case: FieldCase, direction: Direction, found: Trace) -> AttentionRequest:
    device = Device.parse(f"sm_{case.number}", ".".join(str(part) for part in case.cudnn))
    arrays = tuple(TensorSpec(NUMPY_NAMES[str(x.dtype)], x.shape, contiguous_strides(x.shape)) for x in found.arrays)
    q, k, v = ((case.b, h, s, d) for h, s, d in (
        (case.h_q, case.s_q, case.d_qk), (case.h_kv, case.s_kv, case.d_qk), (case.h_kv, case.s_kv, case.d_v)))  # fmt: skip
    dtype = "bf16" if case.dtype == "bf16" else "f16"
    specs = [TensorSpec(dtype, shape, contiguous_strides(shape)) for shape in (q, k, v)]
    return AttentionRequest(
        direction, device, specs[0], specs[1], specs[2], found.text, arrays, len(found.scalars), (True, True, True),
        deterministic=case.deterministic, backend="cudnn",
    )  # fmt: skip


def callbacks(asked: Asked, direction: Direction, program: str) -> dict[str, Any]:
    """The arguments of ``graph.sdpa`` or ``sdpa_backward`` that a program becomes: native bounds, or callbacks.

    What the backend runs in bands is asked as one graph, with the operands that bands have.
    """
    if not program:
        return {}
    request = request_for(asked.case, direction, program)
    lowered = finished(lowered_program(request))
    plan = layout(lowered, direction, asked.case.s_q, asked.case.s_kv)
    if plan.native is not None:
        bounds = {"diagonal_band_left_bound": plan.native.left, "diagonal_band_right_bound": plan.native.right}
        return {name: bound for name, bound in bounds.items() if bound is not None}
    moving = tuple(axis for axis, starts in plan.starts().items() if any(starts))
    wide = needs_wide_views(request)
    whole = Piece(0, asked.case.s_q, 0, asked.case.s_kv)
    lowering = Lowering(
        lowered, asked.types, lambda what: _declared(asked, request, what), guarded(direction, whole), moving, wide
    )
    found: dict[str, Any] = {"score_mod": lowering.score_mod}
    if direction == "backward":
        found["score_mod_bprop"] = lowering.score_mod_bprop
    return found


def _declared(asked: Asked, request: AttentionRequest, what: Operand) -> Any:
    """The graph's input for an operand, shaped as torch_operands.view shapes it at run time."""
    if not isinstance(what, View):
        kind = what.kind if isinstance(what, Number | Literal) else "i"
        held = asked.types.FLOAT if kind == "f" else asked.types.INT32
        return asked.tensor(f"operand {what}", (1, 1, 1, 1), kind=held, is_pass_by_value=True)
    dim, stride = view_place(request, what, Piece(0, asked.case.s_q, 0, asked.case.s_kv))
    return asked.tensor(f"operand {what}", dim, stride, asked.types.FLOAT if what.kind == "f" else asked.types.INT32)


def view_place(request: AttentionRequest, what: View, piece: Piece) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Dims and strides of a view: axes of size 1 where nothing indexes, of stride 0 where it is spread."""
    own = dict(zip(what.axes, contiguous_strides(request.arrays[what.slot].shape), strict=True))
    lengths = {"b": request.q.shape[0], "h": request.q.shape[1], "q": piece.q1 - piece.q0, "kv": piece.k1 - piece.k0}
    dim = tuple(size if axis in own or axis in what.spread else 1 for axis, size in lengths.items())
    return dim, tuple(own.get(axis, 0 if axis in what.spread else 1) for axis in lengths)
