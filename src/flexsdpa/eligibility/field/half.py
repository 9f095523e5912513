"""Rows for fp16 and bf16: head dims, bias, masks, windows, softmax, determinism, layouts."""

from __future__ import annotations

from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.eligibility.field.row import Row, below, between, since

LARGEST_32 = 2**31 - 1


def head_dims_served(c: FieldCase) -> bool:
    """Any of the clauses under which the policy takes a pair of head dims."""
    if c.dims_up_to(128):
        return True
    if c.training:
        hopper = c.on("sm_9x") and c.dims_up_to(256) and since(c, 9, 5)
        mla = c.dims == (192, 128) and c.datacenter_blackwell_or_newer and since(c, 9, 11)
        return hopper or mla or _wide_backward(c)
    hopper = c.on("sm_9x") and c.dims_up_to(256) and since(c, 9, 1)
    blackwell = c.datacenter_blackwell_or_newer and since(c, 9, 9) and c.s_q > 1 and not c.paged
    newer = since(c, 9, 10, 2) and (c.paged or c.s_q > 1 or c.mask not in ("causal", "padding_causal"))
    return hopper or blackwell or newer


def _wide_backward(c: FieldCase) -> bool:
    """256 and 256 in training, on sm_10x."""
    window = c.band == (-1, -1) or (c.causal and c.band[1] in (-1, 0))
    floor = since(c, 9, 25) if c.ragged else since(c, 9, 23)
    return c.dims == (256, 256) and c.on("sm_10x") and not c.paged and c.plain and not c.sink and window and floor


def frontend_backward_dims(c: FieldCase) -> bool:
    if c.on("sm_9x"):
        return c.dims_up_to(256)
    if c.on("sm_10x") and since(c, 9, 11):
        return c.dims_up_to(128) or c.dims == (192, 128) or (c.dims == (256, 256) and since(c, 9, 23))
    return c.dims_up_to(128)


def frontend_forward_dims(c: FieldCase) -> bool:
    if c.on("sm_8x") and below(c, 9, 10):
        return c.dims_up_to(128)
    if c.on("sm_9x") and below(c, 9, 10):
        return c.dims_up_to(256)
    if c.on("sm_10x") and (below(c, 9, 9) or (c.s_q == 1 and below(c, 9, 10))):
        return c.dims_up_to(128)
    return True


def right_bounded(c: FieldCase) -> bool:
    """Whether a right bound reaches the graph: the builder hands a window's right bound on from 9.6 only."""
    return c.causal or (since(c, 9, 6) and c.band[1] != -1)


def mask_served(c: FieldCase) -> bool:
    """Any of the clauses under which the policy takes a mask in a layout."""
    if c.mask == "arbitrary":
        return False
    if below(c, 8, 9, 6):
        return c.mask == "causal"
    by_64 = c.lengths_multiple_of(64) and c.s_q <= c.s_kv and c.plain
    if c.mask == "causal_bottom_right":
        early = since(c, 9, 3) and c.uniform("bshd", "sbhd") and by_64
        return early or (since(c, 9, 7) and c.s_q <= c.s_kv)
    if c.mask == "padding_causal_bottom_right":
        return (
            (since(c, 9, 6) and by_64)
            or (since(c, 9, 7) and (c.plain or c.s_q <= c.s_kv))
            or (c.paged and since(c, 9, 5) and by_64)
        )
    if c.uniform("bshd", "sbhd"):
        return True
    if c.uniform("thd") and c.padding:
        return since(c, 9, 1)
    return since(c, 9, 7) and (not c.padding or c.plain)


def window_served(c: FieldCase) -> bool:
    """Any of the clauses under which the policy takes a window with a mask."""
    left, right = c.band
    if below(c, 9, 2):
        return left == -1 and right in (-1, 0)
    causal_window = (
        right == 0 and c.s_q <= c.s_kv and c.plain and c.uniform("bshd", "sbhd")
        and (c.mask in ("no_mask", "causal") or (c.mask == "causal_bottom_right" and c.s_q == c.s_kv))
    )  # fmt: skip
    if below(c, 9, 6):
        return causal_window or ((left, right) == (-1, -1) and c.mask == "no_mask")
    if not c.sliding:
        return True
    return causal_window or (c.mask != "causal" and c.s_q <= c.s_kv and c.plain)


def largest_offset(c: FieldCase) -> int:
    """Elements that the largest ragged offset can reach, from the maximum lengths, as the policy counts them."""
    if c.packed_qkv:
        return 3 * c.h_q * c.d_qk * c.s_q
    kv = 2 * c.h_kv * c.d_qk * c.s_kv if c.packed_kv else c.h_kv * max(c.dims) * c.s_kv
    return max(c.h_q * c.d_qk * c.s_q, kv)


def _det_training(c: FieldCase) -> bool:
    return c.half and c.deterministic and c.training


def _torch(c: FieldCase) -> bool:
    return c.framework == "torch"


def _bias_or_dropout(c: FieldCase) -> bool:
    return c.bias_kind != "no_bias" or c.drops


ROWS: tuple[Row, ...] = (
    Row("CUDNN-F16-SEQLEN-01", lambda c: c.half and below(c, 9) and not c.lengths_multiple_of(64), "lengths in 64s before 9.0", "GATE"),
    Row("CUDNN-F16-GQA-01", lambda c: c.half and c.h_q != c.h_kv and below(c, 8, 9, 7), "grouped heads need 8.9.7", "GATE"),
    Row("CUDNN-F16-GQA-02", lambda c: c.h_q % c.h_kv != 0, "query heads must be a multiple of kv heads", "FE"),
    Row("CUDNN-FE-SHAPE-01", lambda c: c.training and c.s_q == c.s_kv == 1, "a one by one matrix has no backward kernel", "FE"),
    Row("CUDNN-F16-HEADDIM-01", lambda c: c.half and (c.d_qk % 8 != 0 or c.d_v % 8 != 0), "head dims in 8s", "GATE; FE"),
    Row("CUDNN-F16-HEADDIM-02", lambda c: c.half and not head_dims_served(c), "no clause serves these head dims", "GATE"),
    Row("CUDNN-FE-HEADDIM-01", lambda c: c.half and c.training and not frontend_backward_dims(c), "no backward for these head dims", "FE"),
    Row("CUDNN-FE-HEADDIM-03", lambda c: c.half and not frontend_forward_dims(c), "larger head dims need a newer release", "FE"),
    Row("CUDNN-F16-BIAS-01", lambda c: c.half and c.has_bias and below(c, 8, 9, 6), "bias needs 8.9.6", "GATE"),
    Row("CUDNN-F16-BIAS-02", lambda c: c.half and c.bias_kind == "post_scale_bias" and c.on("sm_8x") and below(c, 9),
        "bias on Ampere needs 9.0", "GATE"),
    Row("CUDNN-F16-BIAS-03", lambda c: c.half and c.bias_kind == "pre_scale_bias", "bias is added after scaling only", "GATE"),
    Row("CUDNN-F16-BIAS-04", lambda c: c.half and c.bias_kind == "post_scale_bias" and c.mask in ("padding", "padding_causal"),
        "no bias with variable lengths", "GATE"),
    Row("CUDNN-F16-BIAS-05", lambda c: c.half and (_torch(c) or c.training) and c.bias_shape == "111s" and c.bias_grad,
        "the gradient of a bias of shape (1, 1, 1, s) is not computed", "MATRIX; GATE"),
    Row("CUDNN-F16-BIAS-06", lambda c: c.half and c.training and c.datacenter_blackwell_or_newer and c.has_bias and c.dropout > 0,
        "Blackwell's backward takes bias or dropout, not both", "GATE"),
    Row("CUDNN-F16-ALIBI-01", lambda c: c.half and c.bias_kind == "alibi" and (
        below(c, 8, 9, 6) or not c.number >= 90 or c.mask not in ("causal", "causal_bottom_right")),
        "ALiBi needs 8.9.6, Hopper or newer, and a causal mask without padding", "GATE"),
    Row("CUDNN-FE-ALIBI-01", lambda c: c.half and c.bias_kind == "alibi" and not c.causal, "ALiBi needs a causal mask", "FE"),
    Row("CUDNN-FE-BIAS-02", lambda c: c.half and c.bias_grad and c.training and below(c, 9, 5)
        and (c.padding or not c.lengths_multiple_of(64)), "bias gradients need 9.5 for this", "FE"),
    Row("CUDNN-F16-MASK-01", lambda c: c.half and not mask_served(c), "no clause serves this mask in this layout and release", "GATE"),
    Row("CUDNN-FE-MASK-01", lambda c: c.half and c.causal and c.aligned_bottom_right and _bias_or_dropout(c),
        "bottom-right causal excludes bias, ALiBi and dropout", "FE"),
    Row("CUDNN-CP-17", lambda c: _torch(c) and c.half and c.cp == "all_gather" and c.causal and c.drops,
        "all-gather makes the mask bottom-right, which excludes dropout", "CP; FE"),
    Row("CUDNN-FE-BAND-01", lambda c: c.bottom_right and c.s_q > c.s_kv and not c.padding, "slice q so that s_q = s_kv", "FE"),
    Row("CUDNN-FE-DROPOUT-01", lambda c: c.drops and c.dropout >= 1, "dropout of 1 rescales by infinity", "FE"),
    Row("CUDNN-F16-WIN-01", lambda c: c.half and not window_served(c), "no clause serves this window with this mask and release", "GATE"),
    Row("CUDNN-F16-WIN-04", lambda c: _torch(c) and c.sliding and (c.dropout > 0 or c.has_bias or c.s_q > c.s_kv),
        "windows exclude dropout, bias and longer q than kv", "GATE; MATRIX"),
    Row("CUDNN-F16-WIN-07", lambda c: c.half and c.datacenter_blackwell_or_newer and between(c, (9, 7, 0), (9, 7, 1)) and c.bottom_right
        and c.sliding and c.s_q != c.s_kv, "bottom-right windows of unequal lengths need a release after 9.7.0", "GATE"),
    Row("CUDNN-F16-WIN-10", lambda c: _torch(c) and (c.window[0] == -1 and c.window[1] > 0 if c.causal else -1 in c.band and max(c.band) > -1),
        "one-sided windows, and causal with a right bound alone, are refused at torch's front door", "MATRIX"),
    Row("CUDNN-FE-WIN-01", lambda c: c.half and between(c, (9, 2), (9, 10, 2)) and c.band[0] >= 0 and (not right_bounded(c) or not c.plain),
        "a left bound needs a right bound before 9.10.2", "FE"),
    Row("CUDNN-FE-WIN-02", lambda c: c.half and c.on("sm_9x") and below(c, 9, 10) and c.band[0] >= 0 and c.aligned_bottom_right
        and right_bounded(c) and c.s_q == c.s_kv, "left bound, bottom-right and equal lengths: known gap on Hopper up to 9.9", "FE"),
    Row("CUDNN-FE-WIN-04", lambda c: c.half and c.band[0] >= 0 and c.s_q > c.s_kv, "a left bound needs s_q <= s_kv", "FE; LIB"),
    Row("CUDNN-FE-DECODE-01", lambda c: c.half and c.s_q == 1 and below(c, 9, 9, 1) and right_bounded(c),
        "a single query takes no right bound up to 9.9.0", "FE"),
    Row("CUDNN-F16-SOFTMAX-01", lambda c: c.half and c.sink and below(c, 9, 13, 1), "sinks need 9.13.1", "GATE; FE"),
    Row("CUDNN-F16-SOFTMAX-02", lambda c: c.half and _torch(c) and c.sink and c.uniform("thd") and below(c, 9, 18),
        "ragged sinks need 9.18", "MATRIX; CP"),
    Row("CUDNN-FE-SINK-01", lambda c: c.half and c.sink and c.s_q == 1, "no sink with a single query", "FE"),
    Row("CUDNN-F16-MAXLOGIT-01", lambda c: c.half and c.max_logit and below(c, 9, 21), "the row maximum needs 9.21", "GATE; FE"),
    Row("CUDNN-DET-01", lambda c: _torch(c) and _det_training(c) and c.number < 90, "deterministic backward needs Hopper or newer", "MATRIX"),
    Row("CUDNN-DET-02", lambda c: _torch(c) and _det_training(c) and c.bias_grad, "bias gradients are summed in no fixed order", "MATRIX"),
    Row("CUDNN-DET-02b", lambda c: _torch(c) and _det_training(c) and below(c, 8, 9, 5), "deterministic backward needs 8.9.5", "MATRIX"),
    Row("CUDNN-DET-03", lambda c: _det_training(c) and c.datacenter_blackwell_or_newer and (below(c, 9, 18, 1) or not c.plain),
        "deterministic backward on Blackwell needs 9.18.1, no dropout and no bias", "GATE; JAX"),
    Row("CUDNN-FE-DET-01", lambda c: c.half and c.training and c.on("sm_10x") and (c.deterministic or c.dims == (256, 256))
        and (c.drops or c.bias_grad or c.bias_kind == "alibi"),
        "deterministic backward, which 256 and 256 always is, excludes dropout, bias gradients and ALiBi there", "FE"),
    Row("CUDNN-DET-05", lambda c: _torch(c) and c.deterministic and c.sink, "sinks count as not deterministic", "MATRIX"),
    Row("CUDNN-LAYOUT-02", lambda c: c.half and c.uniform("thd") and (
        c.number < 90 or not (since(c, 9, 6) or (c.h_q == c.h_kv and since(c, 9, 1)))),
        "ragged inputs need Hopper or newer and 9.1, with grouped heads 9.6", "GATE"),
    Row("CUDNN-LAYOUT-03", lambda c: c.half and c.q_format != c.kv_format and below(c, 9, 7), "mixed formats need 9.7", "GATE"),
    Row("CUDNN-LAYOUT-05", lambda c: c.half and c.uniform("bhsd") and below(c, 9, 7), "bhsd needs 9.7", "GATE"),
    Row("CUDNN-LAYOUT-06", lambda c: (c.packed_qkv and (c.s_q != c.s_kv or c.h_q != c.h_kv or c.d_qk != c.d_v))
        or (c.packed_kv and c.d_qk != c.d_v), "packed tensors need equal sizes", "DPA; JAX"),
    Row("CUDNN-FE-THD-01", lambda c: c.ragged and c.number < 90 and below(c, 9, 18, 1), "ragged needs Hopper or 9.18.1", "FE"),
    Row("CUDNN-FE-THD-02", lambda c: c.ragged and c.training and c.bias_grad and c.on("sm_10x"), "no ragged bias gradient there", "FE"),
    Row("CUDNN-FE-THD-04", lambda c: c.ragged and c.training and c.h_q != c.h_kv and below(c, 9, 6), "grouped ragged heads need 9.6", "FE"),
    Row("CUDNN-THD-04", lambda c: c.ragged and not c.padding and c.score_mod == "no", "ragged inputs need sequence lengths", "DPA; FE"),
    Row("CUDNN-THD-03", lambda c: c.half and c.uniform("thd") and below(c, 9, 5) and largest_offset(c) > LARGEST_32,
        "64-bit offsets need 9.5", "GATE"),
    Row("CUDNN-MLA-01", lambda c: _torch(c) and c.d_qk != c.d_v and (len(c.groups) != 3 or c.layout.startswith("paged")),
        "unequal head dims need three separate tensors", "MATRIX"),
    Row("CUDNN-MLA-04", lambda c: c.half and c.on("sm_9x") and c.training and between(c, (9, 11), (9, 13)) and 128 < c.d_qk < 192
        and 64 < c.d_v < 128, "no backward for these head dims in 9.11 and 9.12", "FE"),
)  # fmt: skip
