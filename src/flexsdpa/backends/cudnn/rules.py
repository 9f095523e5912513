"""Limits of cuDNN's fused attention, as data. Each was found by building or running; sources are named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flexsdpa.backends.cudnn.known_bad import known_bad
from flexsdpa.backends.cudnn.layout import layout
from flexsdpa.backends.cudnn.lower import RULES as LOWERED
from flexsdpa.backends.cudnn.lower import view_of
from flexsdpa.eligibility.rule import Rule
from flexsdpa.ir.canonical import derivative_of, program_of
from flexsdpa.ir.program import Program
from flexsdpa.spec.request import AttentionRequest
from flexsdpa.spec.tensors import TensorSpec
from flexsdpa.structure.intervals import Interval, bounds

FAMILIES = ("sm_8x", "sm_9x", "sm_10x", "sm_11x", "sm_12x")
OLDEST_CUDNN = (9, 10, 2)
OLDEST_FRONTEND = (1, 23)
LEAVES = ("score", "b", "h", "q", "kv", "read", "scalar", "const_f", "const_i", "const_b")
WIDE_VIEWS = ("sm_8x", "sm_12x")
"""Families that plan a backward under a mod only where what is read by batch or query has a key axis."""
WIDE_FLOATS_UNTIL = (9, 24)
"""Releases before it plan such views of floats; 9.23.2 does, 9.28.1 does not, nothing between was asked."""
LARGE_BACKWARD: dict[str, dict[tuple[int, int], tuple[int, ...]]] = {
    "sm_9x": dict.fromkeys([(d, dv) for d in range(8, 257, 8) for dv in range(8, 257, 8)], ()),
    "sm_10x": {(192, 128): (9, 11), (256, 256): (9, 23)},
}
"""Family -> pairs of head dims beyond 128 that have a backward, with the first release that plans it."""
UNEQUAL_FORWARD = ("sm_10x", "sm_11x")
UNEQUAL_FORWARD_RELEASE = (9, 23)
"""Families and the release whose forward kernels do not compile for a value head dim of 128 under a larger one, but 192."""
DETERMINISTIC_UNDER_A_MOD = (9, 20)
"""9.19.0 cannot compile a deterministic backward under a mod for sm_10x; 9.23.2 and 9.28.1 do, nothing between was asked."""
SMALLEST_QUERY = 16
"""A graph holds every length, so decoding with a growing cache would build one a token: only on request."""
EXACT_IN_FLOAT = 1 << 20
"""Integers up to this size are divided exactly by way of floats (see lower.int_quotient)."""


def _device(request: AttentionRequest) -> str | None:
    return None if request.device.kind == "cuda" else request.device.kind


def _family(request: AttentionRequest) -> str | None:
    if request.device.kind != "cuda" or request.device.family_name in FAMILIES:
        return None
    return str(request.device)


def _frontend(request: AttentionRequest) -> str | None:
    if request.device.kind != "cuda":
        return None
    text = request.device.library("cudnn-frontend")
    if not text:
        return "not installed"
    return text if version_of(text) < OLDEST_FRONTEND else None


def _known_bad(request: AttentionRequest) -> str | None:
    text = request.device.library("cudnn")
    row = known_bad(request, version_of(text)) if text else None
    return f"{text}, which gets wrong: {row.what} ({row.source})" if row is not None else None


def _version(request: AttentionRequest) -> str | None:
    text = request.device.library("cudnn")
    return text if text and version_of(text) < OLDEST_CUDNN else None


def version_of(text: str) -> tuple[int, ...]:
    """``9.19.0`` -> (9, 19, 0); what is no number counts as 0."""
    return tuple(int(part) if part.isdigit() else 0 for part in text.split(".")[:3])


def _two_copies(request: AttentionRequest) -> str | None:
    mine, torchs = request.device.library("cudnn"), request.device.library("cudnn of torch")
    return f"{mine} beside torch's {torchs}" if mine and torchs and mine != torchs else None


def _dtype(request: AttentionRequest) -> str | None:
    return None if request.q.dtype in ("f16", "bf16") else request.q.dtype


def _head_dims(request: AttentionRequest) -> str | None:
    dims = request.q.shape[3], request.v.shape[3]
    return None if all(d % 8 == 0 and 8 <= d <= 256 for d in dims) else f"{dims[0]} and {dims[1]}"


def needs_wide_views(request: AttentionRequest) -> bool:
    """Whether views need a key axis; see ``view_of``."""
    return request.direction == "backward" and request.device.family_name in WIDE_VIEWS


def _backward_under_a_mod(request: AttentionRequest) -> str | None:
    family = request.device.family_name
    if not needs_wide_views(request):
        return None
    program, text = lowered_program(request), request.device.library("cudnn")
    views = [view_of(program, program.instrs[n], wide=True) for n in program.reads()]
    rows = [str(view.slot) for view in views if view is not None and view.kind == "f" and "kv" in view.spread]
    if not rows or not text or version_of(text) < WIDE_FLOATS_UNTIL:
        return None
    return f"backward of captured floats read by batch or query ({', '.join(rows)}) on {family} with {text}"


def _backward_head_dims(request: AttentionRequest) -> str | None:
    dims, family = (request.q.shape[3], request.v.shape[3]), request.device.family_name
    if request.direction == "forward" or family not in FAMILIES or max(dims) <= 128:
        return None
    first = LARGE_BACKWARD.get(family, {}).get(dims)
    text = request.device.library("cudnn")
    served = first is not None and (not text or version_of(text) >= first)
    return None if served else f"{dims[0]} and {dims[1]}, backward, on {family}"


def _forward_head_dims(request: AttentionRequest) -> str | None:
    (d_qk, d_v), text = (request.q.shape[3], request.v.shape[3]), request.device.library("cudnn")
    served = not d_qk > d_v == 128 or d_qk == 192 or request.device.family_name not in UNEQUAL_FORWARD
    if request.direction == "backward" or served or not text or version_of(text)[:2] != UNEQUAL_FORWARD_RELEASE:
        return None
    return f"{d_qk} and {d_v} on {request.device.family_name} with {text}"


def _one_by_one(request: AttentionRequest) -> str | None:
    one = request.direction == "backward" and request.q.shape[2] == request.k.shape[2] == 1
    return "one query and one key, backward" if one else None


def _deterministic(request: AttentionRequest) -> str | None:
    text, family = request.device.library("cudnn"), request.device.family_name
    asked = request.deterministic and request.direction == "backward" and family == "sm_10x"
    if not asked or not text or version_of(text) >= DETERMINISTIC_UNDER_A_MOD:
        return None
    plan = layout(lowered_program(request), request.direction, request.q.shape[2], request.k.shape[2])
    return f"deterministic backward under a mod on {family} with {text}" if plan.native is None else None


def _empty(request: AttentionRequest) -> str | None:
    return "a dimension of size 0" if 0 in (*request.q.shape, *request.k.shape, *request.v.shape) else None


def _strides(request: AttentionRequest) -> str | None:
    if _head_dims(request) is not None:
        return None  # its strides follow from it
    for name, x in (("q", request.q), ("k", request.k), ("v", request.v)):
        if x.strides and (x.strides[3] != 1 or any(stride % 8 for stride in x.strides[:3])):
            return f"{name} with strides {x.strides}"
    return None


def _decoding(request: AttentionRequest) -> str | None:
    q_len = request.q.shape[2]
    return f"q_len {q_len}" if q_len < SMALLEST_QUERY and request.backend != "cudnn" else None


def _lse_gradient(request: AttentionRequest) -> str | None:
    return "with it" if request.lse_gradient else None


def _captured_gradient(request: AttentionRequest) -> str | None:
    slots = [str(slot) for slot, need in enumerate(request.needs[3:]) if need]
    return f"of captured tensor {', '.join(slots)}" if slots else None


def lowered_program(request: AttentionRequest) -> Program:
    """What the graph holds: the program, or its derivative with respect to the score."""
    return program_of(request.program) if request.direction == "forward" else derivative_of(request.program, frozenset()).program


def _ops(request: AttentionRequest) -> str | None:
    program = lowered_program(request)
    missing = set()
    for n in program.reachable([n for _, n in program.results]):
        instr = program.instrs[n]
        if instr.op in LEAVES:
            continue
        kind = program.instrs[instr.args[-1]].kind
        if f"{instr.op}({kind})" not in LOWERED:
            missing.add(f"{instr.op} of {'floats' if kind == 'f' else 'integers'}")
    return ", ".join(sorted(missing)) or None


def _reads(request: AttentionRequest) -> str | None:
    program = lowered_program(request)
    length = {"b": request.q.shape[0], "h": request.q.shape[1], "q": request.q.shape[2], "kv": request.k.shape[2]}
    for n in program.reads():
        instr = program.instrs[n]
        view, spec = view_of(program, instr), request.arrays[int(instr.attr)]
        if view is None:
            return f"captured tensor {instr.attr} read at computed positions"
        for axis, size in zip(view.axes, spec.shape, strict=True):
            if isinstance(axis, str) and size < length[axis]:
                return f"captured tensor {instr.attr} of shape {spec.shape}, shorter than {axis}"
            if isinstance(axis, int) and not -size <= axis < size:
                return f"captured tensor {instr.attr} of shape {spec.shape} read at {axis}"
    return None


def _integers(request: AttentionRequest) -> str | None:
    if request.device.kind != "cuda":
        return None  # refused already, and this rule costs most
    return next(_too_large(request), None)


def _too_large(request: AttentionRequest) -> Iterator[str]:
    program = lowered_program(request)
    sizes = {"b": request.q.shape[0], "h": request.q.shape[1], "q": request.q.shape[2], "kv": request.k.shape[2]}
    boxes: dict[str, Interval] = {name: (np.asarray(0, np.int64), np.asarray(size - 1, np.int64)) for name, size in sizes.items()}
    ranges: list[Any] = [_StoredIntegers() if spec.dtype != "bool" else None for spec in request.arrays]
    for n, interval in enumerate(bounds(program, boxes, ranges)):
        instr = program.instrs[n]
        if interval is None or instr.kind != "i":
            continue
        if int(interval[0]) < -(2**31) or int(interval[1]) >= 2**31:
            yield f"{instr.op} beyond 32 bits"
    for instr in program.instrs:
        if instr.op in ("floordiv", "mod") and instr.kind == "i":
            divisor = program.instrs[instr.args[1]]
            low, high = _bounds_of(program, instr.args[0], boxes, ranges)
            if divisor.op != "const_i" or int(divisor.attr) <= 0 or max(-low, high) > EXACT_IN_FLOAT:
                yield f"{instr.op} of integers that may be large, or by a divisor that is not a positive constant"


def _bounds_of(program: Program, n: int, boxes: dict[str, Interval], ranges: list[Any]) -> tuple[int, int]:
    interval = bounds(program, boxes, ranges, roots=[n])[n]
    assert interval is not None
    return int(interval[0]), int(interval[1])


class _StoredIntegers:
    """Captured integers as the plan holds them: 32 bits, which it checks of the tensors that it is given."""

    def query(self, indices: list[Interval]) -> tuple[Interval, Any]:
        return (np.asarray(-(2**31)), np.asarray(2**31 - 1)), np.asarray(True)


def _rank(request: AttentionRequest) -> str | None:
    wide = [str(slot) for slot, spec in enumerate(request.arrays) if not _fits(spec)]
    return f"captured tensor {', '.join(wide)}" if wide else None


def _fits(spec: TensorSpec) -> bool:
    return spec.rank <= 4


PLANS = "plans of cuDNN 9.19.0, 9.23.2 and 9.28.1 for described cards of every family; flexsdpa oracle show"
PROBES = "built and run on sm_90 with cuDNN 9.19.0 and frontend 1.32.0; benchmarks/results"

RULES: tuple[Rule, ...] = (
    Rule("cudnn.device", "device", _device, "cuda", "", "cuDNN runs on NVIDIA cards"),
    Rule("cudnn.family", "device", _family, f"one of {', '.join(FAMILIES)}", "", "cuDNN support matrix: Ampere or newer"),
    Rule("cudnn.frontend", "nvidia-cudnn-frontend", _frontend, "nvidia-cudnn-frontend 1.23 or newer",
         "pip install 'flexsdpa[cuda]'", "the graph API comes with it"),
    Rule("cudnn.version", "cuDNN", _version, "9.10.2 or newer", "upgrade cuDNN", "the oldest that is not known to be bad"),
    Rule("cudnn.known-bad", "cuDNN", _known_bad, "a release that computes it correctly", "see flexsdpa doctor",
         "the table known_bad.py"),
    Rule("cudnn.two-copies", "cuDNN", _two_copies, "one cuDNN in the process",
         "install the cuDNN that torch was built with", "handles of one copy are not those of another"),
    Rule("cudnn.dtype", "dtype", _dtype, "f16 or bf16", "cast q, k and v, or run under autocast", PROBES),
    Rule("cudnn.head-dims", "head_dim", _head_dims, "multiples of 8 from 8 to 256", "pad head_dim", PROBES),
    Rule("cudnn.backward-head-dims", "head_dim", _backward_head_dims,
         "up to 128 backward; up to 256 on sm_9x; on sm_10x 192 and 128 from 9.11, 256 and 256 from 9.23", "", PLANS),
    Rule("cudnn.forward-head-dims", "head_dim", _forward_head_dims, "other head dims, or another release of cuDNN", "", PLANS),
    Rule("cudnn.one-by-one", "sizes", _one_by_one, "a backward of more than one query or key", "", PLANS),
    Rule("cudnn.deterministic", "deterministic", _deterministic, "deterministic backward under a mod from 9.20 there",
         "upgrade cuDNN", PLANS),
    Rule("cudnn.backward-rows", "captured tensor", _backward_under_a_mod,
         f"such reads on {', '.join(WIDE_VIEWS)} up to cuDNN 9.23", "read it by key too, table[b, q_idx, kv_idx]", PLANS),
    Rule("cudnn.empty", "sizes", _empty, "sizes of at least 1", "", PROBES),
    Rule("cudnn.strides", "strides", _strides, "a last stride of 1, others multiples of 8", "make the tensors contiguous",
         PROBES),
    Rule("cudnn.decoding", "q_len", _decoding, f"{SMALLEST_QUERY} or more, unless backend='cudnn' is asked for",
         "", "a graph is built for every length, in 0.05 to 1 s"),
    Rule("cudnn.lse-gradient", "return_lse", _lse_gradient, "backward without a gradient of the LSE", "", PROBES),
    Rule("cudnn.captured-gradient", "gradient", _captured_gradient, "gradients of q, k and v only",
         "detach the captured tensor if its gradient is not wanted", PROBES),
    Rule("cudnn.ops", "score_mod", _ops, "the ops of backends/cudnn/lower.py", "", PROBES),
    Rule("cudnn.reads", "captured tensor", _reads, "reads at bare indices, table[b, h, q_idx, kv_idx] or fewer, each once",
         "materialise the bias, or use another backend", PROBES),
    Rule("cudnn.integers", "integers", _integers, "32-bit integers", "", PROBES),
    Rule("cudnn.rank", "captured tensor", _rank, "up to 4 dimensions", "", PROBES),
)  # fmt: skip
