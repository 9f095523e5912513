"""Representative mods whose programs and lowered texts are kept as files."""

import numpy as np

from flexsdpa import mods, ops

TABLE = np.zeros((4, 31), np.float32)
SLOPES = np.zeros(4, np.float32)
BUCKETS = np.zeros((32, 4), np.float32)
IDS = np.zeros((2, 16), np.int32)
LENGTHS = np.zeros(2, np.int64)
ALLOWED = np.zeros((2, 16), bool)
CAP = np.array([30.0], np.float32)


def learned_gate(score, b, h, q_idx, kv_idx):
    """Every kind of value: float and integer arithmetic, casts, comparisons, a pole on the side that is not taken."""
    gate = ops.sigmoid(score * ops.read(SLOPES, h) - 0.5)
    distance = ops.abs(q_idx - kv_idx)
    near = distance <= 8
    return ops.where(near, score * gate, score - ops.log(distance) * 0.25)


MODS = {
    "plain": (None, None),
    "causal": (None, mods.causal),
    "softcap_window": (mods.softcap(30.0), mods.sliding_window(128)),
    "learned_cap": (lambda s, b, h, q, k: ops.read(CAP, h * 0) * ops.tanh(s / ops.read(CAP, h * 0)), None),
    "alibi_causal": (mods.alibi(SLOPES), mods.causal(offset=5)),
    "relative_bias": (mods.relative_bias(TABLE, clip=True), mods.padding(LENGTHS)),
    "t5_bias": (mods.t5_bias(BUCKETS), None),
    "documents": (None, mods.and_masks(mods.document(IDS, padding_id=-1), mods.prefix_lm(LENGTHS))),
    "mask_in_the_score": (lambda s, b, h, q, k: ops.where(ops.read(ALLOWED, b, k), s * 2.0, -float("inf")), None),
    "learned_gate": (learned_gate, lambda b, h, q, k: (q + h) % 4 != 0),
}
