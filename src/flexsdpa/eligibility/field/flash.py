"""Rows for FlashAttention 2, 3 and 4, as frameworks select them and as FlashAttention 4 checks its own calls."""

from __future__ import annotations

from math import gcd

from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.eligibility.field.row import Row
from flexsdpa.spec.families import cards_with, has_exception

OLDEST_2, FIRST_WITHOUT_2, OLDEST_2_ON_BLACKWELL = (2, 1, 1), (2, 8, 4), (2, 7, 3)
NEWEST_2 = (2, 8, 3)
"""What is assumed where no version is given."""


def _version(c: FieldCase) -> tuple[int, int, int]:
    return c.flash or NEWEST_2


def _unequal(c: FieldCase) -> bool:
    return c.s_q != c.s_kv


def _aligned(c: FieldCase) -> bool:
    """Bottom-right alignment asked for, by the mask or by the diagonal."""
    return c.bottom_right or c.diagonal == "bottom_right"


def _biased(c: FieldCase) -> bool:
    return c.bias in ("post_scale_bias", "pre_scale_bias")


def _dims_of_3(c: FieldCase) -> bool:
    """FlashAttention 3's pairs of unequal head dims."""
    deep = 128 < c.d_qk <= 192 and 96 < c.d_v <= 128
    return c.d_qk == c.d_v or deep or (c.d_qk <= 64 and c.d_v <= 512 and (c.d_v <= 256 or c.half))


def _in_8s(c: FieldCase, largest: int) -> bool:
    return all(8 <= d <= largest and d % 8 == 0 for d in c.dims)


def _dims_of_4(c: FieldCase) -> bool:
    """FlashAttention 4's pairs on Blackwell for data centres; 512 and 512 overflows its tensor memory."""
    return _in_8s(c, 128) or c.dims in ((192, 128), (64, 512), (256, 256))


def _misread_gradient(c: FieldCase) -> bool:
    """FlashAttention 4 on Blackwell would misread the gradient of v."""
    half_v, half_qk = (-(-d // 2 // 16) * 16 for d in (c.d_v, c.d_qk))
    return c.d_qk >= 128 and c.d_qk != c.d_v and half_v % gcd(32, half_qk) != 0


DATACENTER = ("sm_10x", "sm_11x")


COMMON: tuple[Row, ...] = (
    Row("FA-JAX-01", lambda c: c.framework == "jax", "a torch library here", "MATRIX"),
    Row("FA-COMMON-01a", _biased, "FlashAttention takes no bias tensor", "MATRIX", hint="score_mod through cuDNN or FlashAttention 4"),
    Row("FA-COMMON-01b", lambda c: c.sink, "sinks are not offered through FlashAttention here", "MATRIX"),
    Row("FA-COMMON-01c", lambda c: c.max_logit, "no max logit", "MATRIX"),
    Row("FA-COMMON-01d", lambda c: c.mask == "arbitrary", "no free-form mask", "MATRIX"),
    Row("FA-COMMON-02", lambda c: c.mask in ("causal", "padding_causal") and _unequal(c),
        "causal masks of unequal lengths are aligned bottom-right", "MATRIX", hint="ask for the bottom-right mask"),
    Row("FA-COMMON-03", lambda c: c.on("sm_12x") and (c.fp8 or c.cached), "fp8 and KV caches are off on this family", "MATRIX"),
    Row("FA-COMMON-04", lambda c: c.cp != "none" and (c.fp8 or c.bottom_right or (c.causal and _unequal(c)) or c.bias == "alibi"
        or c.uniform("sbhd")), "not under context parallelism", "MATRIX; CP"),
    Row("FA-COMMON-05", lambda c: c.cached and ((c.fp8 and c.fp8_mha) or (c.ragged and c.pad_between_seqs) or c.cp != "none"),
        "not with a KV cache", "MATRIX"),
    Row("FA-COMMON-06", lambda c: c.cp in ("p2p", "a2a+p2p", "ring") and c.sliding, "windows need a2a or all_gather", "CP"),
    Row("FA-COMMON-06b", lambda c: c.cp not in ("none", "p2p") and c.d_qk != c.d_v, "only p2p is tested with unequal head dims", "TESTS",
        opens=True),
    Row("FA-DTYPE-01", lambda c: c.dtype == "fp32", "fp16 and bf16", "MATRIX", hint="cast, or run under autocast"),
)  # fmt: skip

FA2: tuple[Row, ...] = (
    Row("FA2-ARCH-01", lambda c: c.number < 80, "FlashAttention 2 needs Ampere", "MATRIX"),
    Row("FA2-VER-01", lambda c: not OLDEST_2 <= _version(c) < FIRST_WITHOUT_2
        or (c.datacenter_blackwell_or_newer and _version(c) < OLDEST_2_ON_BLACKWELL),
        "releases from 2.1.1 to 2.8.3, on Blackwell from 2.7.3", "MATRIX", hint="install a flash-attn release inside the range"),
    Row("FA2-DTYPE-01", lambda c: c.fp8, "fp16 and bf16", "MATRIX"),
    Row("FA2-SCOREMOD-01", lambda c: c.score_mod != "no", "no score_mod", "MATRIX"),
    Row("FA2-HEADDIM-01", lambda c: max(c.dims) > 256 or max(c.dims) % 8 != 0, "head dims in 8s up to 256", "MATRIX"),
    Row("FA2-HEADDIM-02", lambda c: 192 < max(c.dims) <= 256 and not has_exception(c.cc, "flash2-head-dim-256"),
        f"head dims above 192 on {cards_with('flash2-head-dim-256')} only", "MATRIX"),
    Row("FA2-WIN-01", lambda c: c.sliding and (_version(c) < (2, 3) or (_unequal(c) and not _aligned(c))),
        "windows need 2.3, and bottom-right alignment for unequal lengths", "MATRIX"),
    Row("FA2-ALIBI-01", lambda c: c.bias == "alibi" and (_version(c) < (2, 4) or (_unequal(c) and not _aligned(c))),
        "ALiBi needs 2.4, and bottom-right alignment for unequal lengths", "MATRIX"),
    Row("FA2-DET-01", lambda c: c.deterministic and _version(c) < (2, 4, 1), "deterministic needs 2.4.1", "MATRIX"),
    Row("FA2-KV-01", lambda c: (c.paged and (_version(c) < (2, 5) or c.page % 256 != 0))
        or (c.kv_cache == "nonpaged" and c.s_kv % 256 != 0), "pages, or the cache's length, in 256s", "MATRIX"),
    Row("FA2-THD-01", lambda c: c.ragged and c.pad_between_seqs, "ragged without gaps", "MATRIX", hint="remove the gaps"),
    Row("FA2-SPLIT-01", lambda c: c.num_splits != 1, "splitting keys by hand needs FlashAttention 3 or 4", "MATRIX"),
)  # fmt: skip

FA3: tuple[Row, ...] = (
    Row("FA3-ARCH-01", lambda c: not c.on("sm_9x"), "FlashAttention 3 runs on Hopper only", "MATRIX"),
    Row("FA3-DTYPE-01", lambda c: c.fp8 and (c.training or c.dtype not in ("fp8_delayed", "fp8_current")),
        "fp16, bf16, and e4m3 for inference", "MATRIX"),
    Row("FA3-SCOREMOD-01", lambda c: c.score_mod != "no", "no score_mod", "MATRIX"),
    Row("FA3-HEADDIM-01", lambda c: c.d_qk > 256, "head dims up to 256", "MATRIX"),
    Row("FA3-HEADDIM-02", lambda c: not _dims_of_3(c), "no kernel for this pair of head dims", "MATRIX"),
    Row("FA3-DROPOUT-01", lambda c: c.dropout > 0 or c.bias == "alibi", "no dropout and no ALiBi", "MATRIX"),
    Row("FA3-DET-01", lambda c: c.deterministic and c.training and max(c.dims) >= 256, "deterministic below head dim 256", "MATRIX"),
    Row("FA3-KV-01", lambda c: c.fp8 and c.cached and c.q_format != "thd", "an fp8 cache needs ragged queries", "MATRIX"),
)  # fmt: skip

FA4: tuple[Row, ...] = (
    Row("FA4-ARCH-01", lambda c: c.number < 90 or c.family is None, "Hopper or newer, of a family that is known", "MATRIX; FA4"),
    Row("FA4-DTYPE-01", lambda c: c.fp8, "fp16 and bf16 here; its own fp8 is forward only on sm_10x", "MATRIX; FA4"),
    Row("FA4-HEADDIM-01", lambda c: c.on("sm_9x") and not _in_8s(c, 256), "head dims of 8 to 256 in 8s", "FA4"),
    Row("FA4-HEADDIM-02", lambda c: c.on(*DATACENTER) and not _dims_of_4(c),
        "head dims up to 128 in 8s, or 192 and 128, 64 and 512, 256 and 256", "FA4; MATRIX"),
    Row("FA4-HEADDIM-03", lambda c: c.on("sm_12x") and max(c.dims) > 192, "shared memory decides when it is compiled", "FA4", opens=True),
    Row("FA4-HEADDIM-04", lambda c: c.on(*DATACENTER) and c.dims == (256, 256) and (_unequal(c) or c.sliding or c.score_mod != "no"),
        "the 256-wide kernel serves plain self-attention only", "MATRIX; FA4"),
    Row("FA4-HEADDIM-05", lambda c: c.on(*DATACENTER) and c.training and _misread_gradient(c),
        "the gradient of v would be misread for these head dims", "MATRIX"),
    Row("FA4-DROPOUT-01", lambda c: c.dropout > 0 or c.bias == "alibi" or c.cached or c.cp != "none" or (c.ragged and c.pad_between_seqs),
        "no dropout, ALiBi, KV cache, context parallelism or gaps", "MATRIX", hint="write ALiBi as a score_mod"),
    Row("FA4-SPLIT-01", lambda c: c.num_splits != 1 and not c.on(*DATACENTER), "splits on sm_10x and sm_11x only", "MATRIX; FA4"),
    Row("FA4-SM12X-02", lambda c: c.on("sm_12x") and c.training and (c.deterministic or c.score_mod != "no"),
        "the backward on this family has no deterministic mode and no mods", "FA4"),
    Row("FA4-SCOREMOD-02", lambda c: c.score_mod != "no" and c.framework == "torch", "no score_mod reaches FlashAttention here", "MATRIX",
        hint="flash-attention 4 itself takes one; framework='library' asks about that"),
    Row("FA4-SCOREMOD-01", lambda c: c.score_mod == "bprop-only", "a backward function needs its forward", "FA4"),
)  # fmt: skip
