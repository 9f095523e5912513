"""Rows for fp8, KV caches, score_mod, context parallelism and the JAX front door."""

from __future__ import annotations

from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.eligibility.field.row import Row, below, since
from flexsdpa.spec.families import has_exception

JAX_LAYOUTS = ("bs3hd", "bshd_bs2hd", "bshd_bshd_bshd", "t3hd", "thd_t2hd", "thd_thd_thd")
JAX_CP_LAYOUTS = ("bshd_bs2hd", "bshd_bshd_bshd", "thd_t2hd", "thd_thd_thd")


def fp8_served(c: FieldCase) -> bool:
    """Any of the clauses under which the policy takes an fp8 call."""
    in_16s = c.d_qk % 16 == 0 and c.d_v % 16 == 0
    oldest = since(c, 9, 2, 1) and c.on("sm_9x") and c.lengths_multiple_of(128) and c.dims == (128, 128)
    if oldest and c.mask in ("no_mask", "causal"):
        return True
    if since(c, 9, 7) and in_16s and c.mask in ("no_mask", "causal", "padding", "padding_causal"):
        if c.on("sm_9x") and (c.dims == (128, 128) if c.training else c.dims_up_to(256)):
            return True
        if c.datacenter_blackwell_or_newer and c.dims_up_to(128):
            return True
    newest = since(c, 9, 21) and c.datacenter_blackwell_or_newer and in_16s and c.d_qk <= 192 and c.d_v <= 128
    return newest and c.mask in ("no_mask", "causal", "causal_bottom_right")


def fp8_frontend_dims(c: FieldCase) -> bool:
    if c.on("sm_9x"):
        return c.dims == (128, 128) if c.training else c.dims_up_to(256) and c.d_qk % 16 == c.d_v % 16 == 0
    small = c.d_qk <= 128 and c.d_v <= 128 and c.d_qk % 16 == 0
    wide = c.dims == (256, 256) and since(c, 9, 26) and not c.training
    return small or (c.dims == (192, 128) and since(c, 9, 19)) or wide


def _cp(c: FieldCase) -> bool:
    return c.framework == "torch" and c.cp != "none"


def _jax_cp(c: FieldCase) -> bool:
    return c.framework == "jax" and c.cp != "none"


def _bottom_right_bound(c: FieldCase) -> bool:
    """A right bound counted from the end of the keys. fp8 graphs keep it so for equal lengths too."""
    return c.bottom_right or (c.aligned_bottom_right and c.band[1] >= 0)


FP8_ROWS: tuple[Row, ...] = (
    Row("CUDNN-FP8-02", lambda c: c.fp8 and c.number < 90, "fp8 attention needs Hopper", "GATE; FE"),
    Row("CUDNN-FP8-03", lambda c: c.fp8 and not fp8_served(c), "no clause serves these sizes, mask and release in fp8", "GATE"),
    Row("CUDNN-FP8-05", lambda c: c.fp8 and c.bias != "no_bias", "fp8 takes no bias", "GATE; FE"),
    Row("CUDNN-FP8-06", lambda c: c.fp8 and not (c.uniform("bshd", "sbhd") or (c.uniform("bhsd") and since(c, 9, 21))),
        "fp8 takes dense layouts only, bhsd from 9.21", "GATE"),
    Row("CUDNN-FP8-07", lambda c: c.fp8 and c.sink and (below(c, 9, 21) or not c.datacenter_blackwell_or_newer),
        "fp8 with a sink needs Blackwell and 9.21", "GATE; MATRIX"),
    Row("CUDNN-FP8-08", lambda c: c.fp8 and c.sliding and (below(c, 9, 21) or not c.datacenter_blackwell_or_newer),
        "fp8 with a window needs Blackwell and 9.21", "MATRIX"),
    Row("CUDNN-FP8-09", lambda c: c.fp8 and c.max_logit, "no max logit in fp8", "MATRIX; GATE"),
    Row("CUDNN-FP8-10", lambda c: c.dtype == "fp8_current" and (below(c, 9, 14) or not c.datacenter_blackwell_or_newer),
        "half outputs from fp8 need Blackwell and 9.14", "MATRIX; FE"),
    Row("CUDNN-FP8-11", lambda c: c.dtype == "mxfp8" and (below(c, 9, 21) or not c.datacenter_blackwell_or_newer or c.ragged),
        "MXFP8 needs Blackwell, 9.21 and a dense layout", "MATRIX"),
    Row("CUDNN-FP8-12", lambda c: c.dtype == "mxfp8" and c.fp8_mha, "MXFP8 takes and returns half tensors", "MATRIX"),
    Row("CUDNN-FP8-13", lambda c: c.dtype in ("fp8_block", "nvfp4"), "no kernel for this recipe", "MATRIX"),
    Row("CUDNN-DET-06", lambda c: c.fp8 and c.deterministic and c.training and (c.number < 90 or below(c, 9, 19)),
        "deterministic fp8 training needs 9.19", "MATRIX"),
    Row("CUDNN-DET-07", lambda c: c.dtype in ("fp8_delayed", "fp8_current") and c.deterministic and c.datacenter_blackwell_or_newer
        and below(c, 9, 18), "deterministic fp8 on Blackwell needs 9.18", "MATRIX"),
    Row("CUDNN-FE-FP8-01", lambda c: c.dtype == "mxfp8" and not c.on("sm_10x"), "MXFP8 is built for sm_10x only", "FE"),
    Row("CUDNN-FE-FP8-02", lambda c: c.fp8 and c.training and c.on("sm_10x") and (below(c, 9, 19) or c.drops),
        "fp8 backward is deterministic there: it needs 9.19 and no dropout", "FE"),
    Row("CUDNN-FE-FP8-03", lambda c: c.fp8 and not fp8_frontend_dims(c), "no fp8 kernel for these head dims", "FE"),
    Row("CUDNN-FE-FP8-04", lambda c: c.fp8 and c.on("sm_9x") and c.training and c.ragged, "Hopper's fp8 backward takes dense tensors", "FE"),
    Row("CUDNN-FE-MXFP8-01", lambda c: c.dtype == "mxfp8" and below(c, 9, 21), "MXFP8 needs 9.21", "FE"),
    Row("CUDNN-FE-FP8-05", lambda c: c.fp8 and _bottom_right_bound(c) and (
        below(c, 9, 7) or not c.datacenter_blackwell_or_newer
        or (c.training and (not c.lengths_multiple_of(64) or c.s_q > c.s_kv or c.drops))),
        "fp8 bottom-right needs Blackwell, its backward lengths in 64s", "FE"),
)  # fmt: skip

CACHE_ROWS: tuple[Row, ...] = (
    Row("CUDNN-KV-01", lambda c: c.cached and (c.training or not c.padding), "a cache needs inference and a padding mask", "DPA; MATRIX"),
    Row("CUDNN-KV-02", lambda c: c.paged and below(c, 9, 6), "paged caches need 9.6 in practice", "GATE; FE"),
    Row("CUDNN-KV-03", lambda c: c.paged and not c.padding, "paged caches need sequence lengths", "FE"),
    Row("CUDNN-KV-04", lambda c: c.paged and c.training, "the backward has no page table", "FE"),
    Row("CUDNN-KV-05", lambda c: c.cached and c.fp8, "no fp8 with a cache", "MATRIX"),
    Row("CUDNN-KV-06", lambda c: c.cached and c.cp != "none", "a cache cannot be split along the sequence", "MATRIX"),
    Row("CUDNN-KV-07", lambda c: c.cached and c.q_format == "thd" and c.pad_between_seqs, "cached ragged queries have no gaps", "MATRIX"),
    Row("CUDNN-KV-08", lambda c: c.paged and c.q_format == "thd" and below(c, 9, 7), "paged with ragged queries needs 9.7", "GATE"),
    Row("CUDNN-KV-09", lambda c: c.paged and not c.dims_up_to(128) and below(c, 9, 10, 2), "large paged head dims need 9.10.2", "GATE"),
    Row("CUDNN-KV-10", lambda c: c.paged and c.s_kv % c.page != 0, "the cache's length is a multiple of its page", "DPA"),
    Row("CUDNN-KV-16", lambda c: c.paged and c.page & (c.page - 1) != 0, "pages are powers of two", "LIB 9.28.1"),
)  # fmt: skip


def _modded(c: FieldCase) -> bool:
    return c.score_mod != "no"


ASK = "flexsdpa explain -s module:function --device sm_121 for flexsdpa's own lowering; flexsdpa oracle show mod: for what cuDNN planned"
SCORE_MOD_ROWS: tuple[Row, ...] = (
    Row("CUDNN-SCOREMOD-02", lambda c: _modded(c) and c.mask != "no_mask", "express the mask inside score_mod", "MATRIX; FE"),
    Row("CUDNN-SCOREMOD-03", lambda c: _modded(c) and c.band != (-1, -1), "express the window inside score_mod", "MATRIX; FE"),
    Row("CUDNN-SCOREMOD-04", lambda c: _modded(c) and c.bias != "no_bias", "pass the bias as a tensor of score_mod", "MATRIX"),
    Row("CUDNN-SCOREMOD-05", lambda c: _modded(c) and c.dropout > 0, "no dropout with score_mod", "MATRIX"),
    Row("CUDNN-SCOREMOD-06", lambda c: _modded(c) and c.sink, "score_mod works with the plain softmax", "MATRIX"),
    Row("CUDNN-SCOREMOD-07", lambda c: _modded(c) and (c.ragged or c.pad_between_seqs), "no ragged inputs with score_mod", "MATRIX"),
    Row("CUDNN-SCOREMOD-08", lambda c: _modded(c) and c.cached, "no cache with score_mod", "MATRIX"),
    Row("CUDNN-SCOREMOD-09", lambda c: _modded(c) and c.cp != "none", "score_mod cannot be split over devices", "MATRIX"),
    Row("CUDNN-SCOREMOD-10", lambda c: _modded(c) and not c.half, "score_mod needs fp16 or bf16", "MATRIX"),
    Row("CUDNN-SCOREMOD-11", lambda c: _modded(c) and c.cuda_graph, "score_mod graphs are built at first use", "MATRIX"),
    Row("CUDNN-SCOREMOD-12", lambda c: _modded(c) and (c.max_logit or c.num_splits != 1), "not with score_mod", "MATRIX"),
    Row("CUDNN-SCOREMOD-13", lambda c: c.score_mod == "bprop-only", "a backward function needs its forward", "MATRIX"),
    Row("CUDNN-SCOREMOD-14", lambda c: _modded(c) and not (
        c.layout == "bshd_bshd_bshd" if c.framework == "jax" else c.uniform("bshd", "sbhd")), "pass dense tensors", "MATRIX; JAX"),
    Row("CUDNN-SCOREMOD-15", lambda c: _modded(c) and c.on("sm_8x"), "depends on the function: ask by building", "LIB", opens=True, hint=ASK),
    Row("CUDNN-SCOREMOD-16", lambda c: _modded(c) and c.on("sm_12x"), "depends on the function: ask by building", "LIB", opens=True, hint=ASK),
    Row("CUDNN-SCOREMOD-17", lambda c: _modded(c) and below(c, 9, 23), "no source states a floor below 9.23", "TESTS", opens=True),
)  # fmt: skip

PARALLEL_ROWS: tuple[Row, ...] = (
    Row("CUDNN-CP-02", lambda c: _cp(c) and c.bottom_right, "bottom-right masks cannot be split along the sequence", "MATRIX"),
    Row("CUDNN-CP-03", lambda c: _cp(c) and c.causal and c.s_q != c.s_kv, "causal needs equal lengths here", "MATRIX"),
    Row("CUDNN-CP-04", lambda c: _cp(c) and c.bias not in ("no_bias", "post_scale_bias"), "only a post-scale bias", "MATRIX"),
    Row("CUDNN-CP-05", lambda c: _cp(c) and c.has_bias and c.cp != "p2p", "only p2p carries a bias", "MATRIX; CP"),
    Row("CUDNN-CP-06", lambda c: _cp(c) and c.has_bias and (c.ragged or c.padding), "no bias with variable lengths", "MATRIX; CP"),
    Row("CUDNN-CP-07", lambda c: _cp(c) and c.fp8 and (c.ragged or c.has_bias), "fp8 is dense and without bias here", "MATRIX"),
    Row("CUDNN-CP-08", lambda c: _cp(c) and c.sliding and c.cp in ("p2p", "a2a+p2p"), "windows need a2a or all_gather", "MATRIX; CP"),
    Row("CUDNN-CP-09", lambda c: _cp(c) and c.cp.startswith("a2a") and (c.h_q % 2 == 1 or c.h_kv % 2 == 1), "even heads", "MATRIX"),
    Row("CUDNN-CP-10", lambda c: _cp(c) and c.sink and (c.cp != "a2a" or (c.ragged and below(c, 9, 18))), "sinks need a2a", "MATRIX; CP"),
    Row("CUDNN-CP-11", lambda c: _cp(c) and c.uniform("bshd", "sbhd") and c.padding and c.cp in ("a2a", "all_gather"),
        "padding with dense layouts needs p2p", "CP"),
    Row("CUDNN-CP-14", lambda c: _cp(c) and not c.lengths_multiple_of(2 * c.cp_size), "lengths in multiples of 2 * cp_size", "CP"),
    Row("CUDNN-CP-15", lambda c: _cp(c) and c.cp == "a2a" and (c.h_q % c.cp_size != 0 or c.h_kv % c.cp_size != 0),
        "heads in multiples of cp_size", "CP"),
    Row("CUDNN-CP-16", lambda c: _cp(c) and (not c.uniform("bshd", "sbhd", "thd") or (c.ragged and not c.padding)),
        "layout not served by this exchange", "CP"),
    Row("CUDNN-CP-20", lambda c: _cp(c) and c.training and c.dims == (256, 256) and not (
        c.cp in ("p2p", "all_gather") and has_exception(c.cc, "wide-context-parallel")), "tested on two cards and two exchanges only",
        "TESTS", opens=True),
    Row("CUDNN-JAX-01", lambda c: c.framework == "jax" and c.fp8, "the primitive knows half precision only", "JAX"),
    Row("CUDNN-JAX-02", lambda c: c.framework == "jax" and c.layout not in JAX_LAYOUTS, "JAX has six layouts", "JAX"),
    Row("CUDNN-JAX-04", lambda c: c.framework == "jax" and c.on("sm_12x") and c.ragged,
        "JAX sizes packed statistics, the core writes dense ones: safe with one segment a row", "JAX", opens=True),
    Row("CUDNN-JAX-CP-01", lambda c: _jax_cp(c) and c.cp in ("ring", "p2p") and c.mask not in (
        ("padding_causal",) if c.ragged else ("no_mask", "causal")), "ring attention serves no mask and causal, padding_causal where ragged", "JAX"),
    Row("CUDNN-JAX-CP-02", lambda c: _jax_cp(c) and c.dropout > 0, "no dropout under JAX context parallelism", "JAX"),
    Row("CUDNN-JAX-CP-03", lambda c: _jax_cp(c) and c.layout not in JAX_CP_LAYOUTS, "packed qkv is out", "JAX"),
    Row("CUDNN-JAX-CP-04", lambda c: _jax_cp(c) and c.has_bias, "no bias under JAX context parallelism", "JAX"),
    Row("CUDNN-JAX-CP-05", lambda c: _jax_cp(c) and c.sink, "no sinks under JAX context parallelism", "JAX"),
    Row("CUDNN-JAX-CP-06", lambda c: _jax_cp(c) and c.cp == "all_gather" and c.mask not in (
        ("padding_causal",) if c.ragged else ("no_mask", "causal")),
        "all-gather serves padding_causal where ragged, else no mask and causal", "JAX"),
    Row("CUDNN-JAX-CP-10", lambda c: _jax_cp(c) and (c.cp_size % 2 == 1 or not c.lengths_multiple_of(2 * c.cp_size)),
        "an even cp_size, lengths in multiples of twice it", "JAX"),
)  # fmt: skip
