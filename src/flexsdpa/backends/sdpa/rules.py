"""Limits of torch's fused CPU attention (aten::_scaled_dot_product_flash_attention_for_cpu)."""

from __future__ import annotations

from flexsdpa.eligibility.rule import Rule
from flexsdpa.ir.canonical import program_of
from flexsdpa.spec.request import AttentionRequest
from flexsdpa.structure.affine import Affine
from flexsdpa.structure.analyse import Band, analyse, describe

CAUSAL = (Band(upper=Affine(0, 0, 0, ())),)


def is_causal(program: str) -> bool:
    """Whether the program's mask is exactly ``kv <= q``."""
    return analyse(program_of(program)).clauses == CAUSAL


def _device(request: AttentionRequest) -> str | None:
    return None if request.device.kind == "cpu" else request.device.kind


def _score(request: AttentionRequest) -> str | None:
    program = program_of(request.program)
    root = program.result("score")
    return None if root is not None and program.instrs[root].op == "score" else "a score_mod"


def _mask(request: AttentionRequest) -> str | None:
    program = program_of(request.program)
    structure = analyse(program)
    return None if structure.clauses in ((), CAUSAL) else ", ".join(describe(program, structure))


def _causal_lengths(request: AttentionRequest) -> str | None:
    q_len, kv_len = request.q.shape[2], request.k.shape[2]
    return f"q_len {q_len}, kv_len {kv_len}" if q_len != kv_len and is_causal(request.program) else None


def _dtype(request: AttentionRequest) -> str | None:
    return request.q.dtype if request.q.dtype in ("f16", "bf16") else None


def _empty(request: AttentionRequest) -> str | None:
    sizes = (*request.q.shape, *request.k.shape, *request.v.shape)
    return "a dimension of size 0" if 0 in sizes else None


def _head_dims(request: AttentionRequest) -> str | None:
    d, dv = request.q.shape[3], request.v.shape[3]
    return f"{d} and {dv}" if d != dv else None


def _last_stride(request: AttentionRequest) -> str | None:
    strided = [name for name, x in (("q", request.q), ("k", request.k), ("v", request.v)) if x.strides and x.strides[3] != 1]
    return f"{', '.join(strided)} strided" if strided else None


def _lse_gradient(request: AttentionRequest) -> str | None:
    return "with it" if request.lse_gradient else None


SOURCE = "torch 2.13 aten/native/transformers/attention.cpp; tests/front_torch/test_sdpa_backend.py"

RULES: tuple[Rule, ...] = (
    Rule("sdpa.device", "device", _device, "cpu", "", SOURCE),
    Rule("sdpa.half", "dtype", _dtype, "f32 and f64 (its LSE of half inputs is off by up to 6e-5)", "", SOURCE),
    Rule("sdpa.score-mod", "score_mod", _score, "none", "", SOURCE),
    Rule("sdpa.mask", "mask_mod", _mask, "none or causal", "", SOURCE),
    Rule("sdpa.causal-lengths", "lengths", _causal_lengths, "q_len = kv_len under a causal mask", "", SOURCE),
    Rule("sdpa.empty", "sizes", _empty, "sizes of at least 1", "", SOURCE),
    Rule("sdpa.head-dims", "head_dim", _head_dims, "one head_dim for q, k and v", "", SOURCE),
    Rule("sdpa.last-stride", "strides", _last_stride, "a last stride of 1", "make the tensors contiguous", SOURCE),
    Rule("sdpa.lse-gradient", "return_lse", _lse_gradient, "backward without a gradient of the LSE", "", SOURCE),
)
