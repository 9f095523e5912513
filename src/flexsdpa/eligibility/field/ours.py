"""Rows of the interval kernels and of FlexAttention, and what flexsdpa does not run."""

from __future__ import annotations

from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.eligibility.field.row import Row
from flexsdpa.spec.families import cards_with, has_exception


def _interval_dims(c: FieldCase) -> bool:
    return all(8 <= d <= 128 and d % 8 == 0 for d in c.dims) or c.dims in ((192, 128), (256, 256))


INTERVAL: tuple[Row, ...] = (
    Row("CUDNN-FLEX-JAX", lambda c: c.framework == "jax", "a torch library", "FEFLEX"),
    Row("CUDNN-FLEX-01", lambda c: not has_exception(c.cc, "interval-kernels"), f"kernels exist for {cards_with('interval-kernels')}", "FEFLEX"),
    Row("CUDNN-FLEX-02", lambda c: not c.half, "fp16 or bf16", "FEFLEX"),
    Row("CUDNN-FLEX-03", lambda c: not _interval_dims(c), "head dims of 8 to 128 in 8s, 192 and 128, or 256 and 256", "FEFLEX"),
    Row("CUDNN-FLEX-04", lambda c: c.h_q % c.h_kv != 0, "query heads must be a multiple of kv heads", "FEFLEX"),
    Row("CUDNN-FLEX-08", lambda c: c.score_mod != "no" or c.has_bias, "masks of key intervals only, no score change", "FEFLEX",
        hint="cuDNN or FlexAttention with a score_mod"),
    Row("CUDNN-FLEX-09", lambda c: c.drops or c.sink or c.cached or c.cp != "none", "no dropout, sink, KV cache or context parallelism", "FEFLEX"),
)  # fmt: skip

FLEX: tuple[Row, ...] = (
    Row("FLEX-JAX-01", lambda c: c.framework == "jax", "a torch library", "torch 2.13, flex_attention"),
    Row("FLEX-ARCH-01", lambda c: c.number < 80, "Triton's kernels need Ampere", "torch 2.13, flex_attention"),
    Row("FLEX-DTYPE-01", lambda c: c.fp8, "fp16, bf16 and fp32", "torch 2.13, flex_attention"),
    Row("FLEX-DROPOUT-01", lambda c: c.drops, "no dropout", "torch 2.13, flex_attention"),
    Row("FLEX-SINK-01", lambda c: c.sink, "no sink; rescale with the LSE outside", "torch 2.13, flex_attention"),
    Row("FLEX-LAYOUT-01", lambda c: c.ragged, "dense tensors; write documents as a mask_mod", "torch 2.13, flex_attention"),
    Row("FLEX-KV-01", lambda c: c.cached, "a cache goes through its own PagedAttention helper", "torch 2.13, flex_attention"),
    Row("FLEX-CP-01", lambda c: c.cp != "none", "one device", "torch 2.13, flex_attention"),
    Row("FLEX-DET-01", lambda c: c.deterministic and c.training and c.bias_grad, "gradients of captured tensors add in no fixed order",
        "torch 2.13, flex_attention"),
)  # fmt: skip

YET = "flexsdpa"
NOT_YET: tuple[Row, ...] = (
    Row("FLEXSDPA-FP8", lambda c: c.fp8, "flexsdpa does not run fp8 yet", YET, kind="not yet"),
    Row("FLEXSDPA-DROPOUT", lambda c: c.drops, "flexsdpa does not run dropout yet", YET, kind="not yet"),
    Row("FLEXSDPA-CACHE", lambda c: c.paged, "flexsdpa does not run paged caches yet", YET, kind="not yet",
        hint="gather the pages, or pass a contiguous cache with q_offset"),
    Row("FLEXSDPA-CP", lambda c: c.cp != "none", "flexsdpa does not split a sequence over devices yet", YET, kind="not yet"),
    Row("FLEXSDPA-MAX", lambda c: c.max_logit, "flexsdpa does not return the largest logit yet", YET, kind="not yet"),
    Row("FLEXSDPA-SPLIT", lambda c: c.num_splits != 1, "flexsdpa does not split keys by hand yet", YET, kind="not yet"),
    Row("FLEXSDPA-GAPS", lambda c: c.pad_between_seqs, "flexsdpa does not skip gaps between sequences yet", YET, kind="not yet"),
    Row("FLEXSDPA-LAYOUT", lambda c: c.packed_qkv or c.packed_kv, "flexsdpa takes three tensors", YET, kind="not yet",
        hint="pass views of the packed tensor: q, k, v = qkv.unbind(...)"),
)  # fmt: skip
"""What holds whoever computes: calls that flexsdpa does not make."""
CUDNN: tuple[Row, ...] = (
    Row("FLEXSDPA-CUDNN-VERSION", lambda c: c.cudnn < (9, 10, 2), "flexsdpa calls cuDNN from 9.10.2", YET, hint="upgrade cuDNN"),
    Row("FLEXSDPA-CUDNN-FAMILY", lambda c: c.family is None, "a family that no backend of flexsdpa knows", YET),
    Row("FLEXSDPA-CUDNN-DTYPE", lambda c: not c.half, "flexsdpa calls cuDNN in fp16 and bf16", YET, hint="cast q, k and v"),
    Row("FLEXSDPA-CUDNN-HEADDIM", lambda c: max(c.dims) > 256, "flexsdpa calls cuDNN with head dims up to 256", YET),
    Row("FLEXSDPA-CUDNN-QLEN", lambda c: c.s_q < 16, "a graph is built for every length, which decoding would do for every token", YET,
        hint="backend='cudnn' asks for it all the same"),
)  # fmt: skip
"""What flexsdpa's own cudnn backend refuses beyond the library's limits."""
RUN: dict[str, tuple[Row, ...]] = {"cudnn": CUDNN, "reference": ()}
"""Those of decide.BACKENDS that flexsdpa calls -> its own rows."""
NO_BACKEND = Row("FLEXSDPA-BACKEND", lambda c: True, "flexsdpa does not call this library yet", YET, kind="not yet",
    hint="cudnn and reference are what it runs")  # fmt: skip
REFERENCE: tuple[Row, ...] = NOT_YET
