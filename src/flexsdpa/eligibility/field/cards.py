"""Rows about cards and releases: architecture floors, releases known to be bad, the sm_12x family."""

from __future__ import annotations

from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.eligibility.field.row import Row, below, between, since
from flexsdpa.spec.families import has_exception

BAD_HALF = ((9, 10, 0), (9, 10, 1))
BAD_MXFP8 = ((9, 23, 0), (9, 23, 1))
NEWEST_KNOWN = 130


def _under_128(c: FieldCase) -> bool:
    return c.uniform("bshd", "sbhd") and c.s_kv % 128 != 0 and not c.padding and c.cuda_graph


def _large_unequal(c: FieldCase) -> bool:
    return min(c.dims) >= 128 and c.d_qk != c.d_v and c.dims != (192, 128)


def _beyond_12x(c: FieldCase) -> bool:
    return c.dtype == "fp8_current" or c.dropout > 0 or not c.dims_up_to(128)


ASKED = "LIB 9.19.0, 9.23.2, 9.28.1"
ROWS: tuple[Row, ...] = (
    Row("CUDNN-ARCH-01", lambda c: c.number < 80, "fused attention needs an Ampere card or newer", "MATRIX; FE", binds=True),
    Row("CUDNN-ARCH-02", lambda c: c.half and below(c, 8, 9, 3) and not (c.on("sm_8x", "sm_9x") and c.first_of_family),
        "this card needs cuDNN 8.9.3", "GATE", binds=True),
    Row("CUDNN-ARCH-03", lambda c: c.half and c.datacenter_blackwell_or_newer and below(c, 9, 7), "Blackwell needs cuDNN 9.7", "GATE", binds=True),
    Row("CUDNN-ARCH-05", lambda c: c.number >= NEWEST_KNOWN, "a family that no source knows", "GATE; FA4", opens=True, binds=True),
    Row("CUDNN-ARCH-06", lambda c: between(c, (9, 7), (9, 11)) and (c.on("sm_11x") or (c.on("sm_10x") and not c.first_of_family)),
        "the release is older than the chip; sources disagree on the floor", "GATE; jax", opens=True, binds=True),
    Row("CUDNN-VER-01", lambda c: c.half and below(c, 8, 9), "8.9.0 is the oldest usable release", "GATE", binds=True),
    Row("CUDNN-DTYPE-01", lambda c: c.dtype == "fp32", "inputs are fp16, bf16 or fp8", "MATRIX; GATE", binds=True),
    Row("CUDNN-MISC-01", lambda c: c.num_splits != 1, "splitting keys by hand is FlashAttention's", "MATRIX"),
    Row("CUDNN-BAD-01", lambda c: c.half and c.cudnn in BAD_HALF, "this release computes half-precision attention wrongly", "GATE; FE", binds=True),
    Row("CUDNN-BAD-02", lambda c: c.fp8 and c.cudnn in BAD_HALF[:1], "this release computes fp8 attention wrongly", "GATE; FE", binds=True),
    Row("CUDNN-BAD-03", lambda c: between(c, (9, 14, 0), (9, 14, 1)) and c.s_kv > 1024 and c.band[0] >= 0
        and c.mask not in ("causal", "causal_bottom_right"), "windows over long sequences are wrong in 9.14.0", "GATE; FE", binds=True),
    Row("CUDNN-BAD-04", lambda c: c.half and c.training and below(c, 9, 15, 1) and c.framework != "jax" and _under_128(c),
        "backward under graph capture needs s_kv to be a multiple of 128 before 9.15.1", "GATE", binds=True),
    Row("CUDNN-BAD-05", lambda c: c.dtype == "mxfp8" and c.cudnn in BAD_MXFP8, "this release has MXFP8 bugs", "MATRIX", binds=True),
    Row("CUDNN-BAD-06", lambda c: c.training and c.ragged and c.sink and below(c, 9, 26),
        "ragged backward with a sink reads out of bounds before 9.26", "FE", binds=True),
    Row("CUDNN-BAD-07", lambda c: c.half and c.on("sm_9x") and c.training and since(c, 9, 11) and _large_unequal(c),
        "backward with two large unequal head dims is wrong on Hopper", "GATE", binds=True),
    Row("CUDNN-BAD-08", lambda c: c.cached and has_exception(c.cc, "kv-cache-bug"), "open library bug with KV caches on this card", "MATRIX", binds=True),
    Row("CUDNN-BAD-13", lambda c: c.dtype == "mxfp8" and has_exception(c.cc, "mxfp8-one-query") and c.s_q == 1 and not c.training
        and not c.sink and not c.paged, "asking the library for this kills the process", "FE", binds=True),
    Row("CUDNN-PLAN-02", lambda c: c.half and has_exception(c.cc, "no-ragged-backward") and c.ragged and c.training,
        "the library plans no ragged backward for this card, though it does for its family", ASKED, opens=True),
    Row("CUDNN-PLAN-03", lambda c: c.on("sm_11x") and c.fp8 and c.training and c.dims == (192, 128),
        "the library plans no fp8 backward for these head dims on this family", ASKED),
    Row("CUDNN-PLAN-04", lambda c: c.half and c.on("sm_11x") and c.training and c.ragged and c.deterministic,
        "the library plans no ragged deterministic backward on this family", ASKED),
    Row("CUDNN-PLAN-05", lambda c: c.half and c.on("sm_10x") and c.training and c.deterministic and below(c, 9, 20)
        and (c.bias_kind == "post_scale_bias" or c.score_mod != "no"),
        "this release cannot compile a deterministic backward with a bias or a score_mod on this family", "LIB 9.19.0"),
    Row("CUDNN-PLAN-06", lambda c: c.half and c.on("sm_12x") and c.training and c.packed_qkv and c.q_format == "thd",
        "the library plans no backward of ragged packed tensors on this family", ASKED),
    Row("CUDNN-PLAN-07", lambda c: c.fp8 and c.on("sm_12x") and (c.training or _beyond_12x(c)),
        "the library plans fp8 forward only on this family: delayed scaling, head dims up to 128, no dropout", ASKED),
    Row("CUDNN-PLAN-08", lambda c: c.fp8 and c.on("sm_9x") and c.sink, "the library cannot compile fp8 with a sink on Hopper", ASKED),
    Row("CUDNN-PLAN-09", lambda c: c.half and c.on("sm_10x", "sm_11x") and between(c, (9, 23), (9, 24)) and not c.training
        and c.d_qk > c.d_v == 128 and c.d_qk != 192,
        "this release cannot compile these unequal head dims on this family", "LIB 9.23.2"),
    Row("CUDNN-PLAN-10", lambda c: c.half and c.on("sm_10x") and c.training and c.ragged and c.dims == (256, 256) and below(c, 9, 24),
        "this release cannot compile a ragged backward of head dim 256", "LIB 9.23.2"),
    Row("CUDNN-PLAN-11", lambda c: c.dtype == "mxfp8" and c.dims == (256, 256),
        "the library cannot compile MXFP8 of head dim 256", "LIB 9.28.1"),
    Row("CUDNN-PLAN-13", lambda c: c.half and c.on("sm_8x", "sm_12x") and c.training and c.bias_kind == "post_scale_bias" and c.s_kv == 1,
        "the library plans no backward with a bias over one key on these families", ASKED),
    Row("CUDNN-PLAN-12", lambda c: c.fp8 and has_exception(c.cc, "no-fp8"),
        "the library plans no fp8 for this card, though it does for its family", ASKED),
    Row("CUDNN-12X-01", lambda c: c.half and c.on("sm_12x") and below(c, 9, 18, 1), "the family needs cuDNN 9.18.1", "GATE"),
    Row("CUDNN-12X-03", lambda c: c.on("sm_12x") and c.packed_qkv and c.q_format == "thd", "use thd_t2hd or three tensors", "GATE; MATRIX"),
    Row("CUDNN-12X-04", lambda c: c.half and c.on("sm_12x") and c.deterministic and c.training,
        "no deterministic training on this family", "GATE"),
    Row("CUDNN-12X-05", lambda c: c.on("sm_12x") and c.fp8, "fp8 attention is off on this family", "MATRIX"),
    Row("CUDNN-12X-06", lambda c: c.on("sm_12x") and c.cached, "open bug with KV caches on this family", "MATRIX"),
    Row("CUDNN-12X-07", lambda c: c.on("sm_12x") and c.training and c.d_qk != c.d_v and (c.d_qk > 128 or c.d_qk % 8 != 0),
        "no backward for these unequal head dims on this family", "MATRIX"),
    Row("CUDNN-FE-DET-02", lambda c: c.on("sm_8x", "sm_12x") and since(c, 9, 18, 1) and c.ragged and c.deterministic and c.training,
        "no ragged deterministic backward on sm_8x and sm_12x", "FE"),
)  # fmt: skip
