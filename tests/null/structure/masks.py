"""Masks with captured tensors that the structure tests share. B = 3, H = 4, lengths up to 96."""

import numpy as np

from flexsdpa import mods, ops

B, H, S = 3, 4, 96
_random = np.random.default_rng(11)

LENGTHS = np.array([70, 0, 33])
PREFIXES = np.array([5, 40, 0], np.int32)
OFFSETS = np.array([0, -7, 20])
WINDOWS = np.array([1, 4, 16, 200], np.int16)
SORTED_IDS = np.sort(_random.integers(0, 5, S))
SORTED_ROWS = np.sort(_random.integers(0, 4, (B, S)), axis=1).astype(np.int32)
SHUFFLED_IDS = _random.integers(0, 3, S)
SHUFFLED_ROWS = _random.integers(-1, 2, (B, S)).astype(np.int8)
ALLOWED_KEYS = _random.random((B, S)) < 0.5
ALLOWED_RUNS = np.arange(S) // 32 % 2 == 0
ALLOWED_PAIRS = _random.random((S, S)) < 0.3
WEIGHTS = _random.normal(size=S).astype(np.float32)

MASKS = {
    "causal": mods.causal,
    "causal from the right": mods.causal(offset=26),
    "causal above the corner": mods.causal(offset=-9),
    "causal with an offset per batch": mods.causal(offset=OFFSETS),
    "window": mods.sliding_window(12),
    "window of one key": mods.sliding_window(1),
    "window on both sides": mods.sliding_window(9, causal=False),
    "window per head": lambda b, h, q, k: (q - k < ops.read(WINDOWS, h)) & (k <= q),
    "documents": mods.document(SORTED_IDS),
    "documents per batch": mods.document(SORTED_ROWS),
    "documents with padding": mods.document(SORTED_ROWS, padding_id=0),
    "shuffled documents": mods.document(SHUFFLED_IDS),
    "shuffled documents per batch": mods.document(SHUFFLED_ROWS, padding_id=-1),
    "documents of keys": mods.document(SORTED_IDS, kv_ids=SHUFFLED_IDS),
    "prefix": mods.prefix_lm(30),
    "prefix per batch": mods.prefix_lm(PREFIXES),
    "padding": mods.padding(50),
    "padding per batch": mods.padding(LENGTHS),
    "padding of queries too": mods.padding(LENGTHS, LENGTHS),
    "causal documents": mods.and_masks(mods.causal, mods.document(SORTED_IDS)),
    "window or prefix": mods.or_masks(mods.sliding_window(8), mods.prefix_lm(PREFIXES)),
    "not causal": mods.not_mask(mods.causal),
    "not documents": mods.not_mask(mods.document(SORTED_IDS)),
    "not padding": mods.not_mask(mods.padding(LENGTHS)),
    "chunks": lambda b, h, q, k: q // 16 == k // 16,
    "shifted chunks": lambda b, h, q, k: (q + 5) // 16 == (k + 5) // 16,
    "dilated": lambda b, h, q, k: ((q - k) % 4 == 0) & (k <= q),
    "allowed keys": lambda b, h, q, k: ops.read(ALLOWED_KEYS, b, k),
    "allowed runs of keys": lambda b, h, q, k: ops.read(ALLOWED_RUNS, k) & (k <= q),
    "allowed pairs": lambda b, h, q, k: ops.read(ALLOWED_PAIRS, q, k),
    "heavy keys": lambda b, h, q, k: ops.read(WEIGHTS, k) > 0.25,
    "half of the heads": lambda b, h, q, k: (h < 2) | (k <= q),
    "nothing": lambda b, h, q, k: k < 0,
    "everything": lambda b, h, q, k: k >= 0,
    "a float comparison": lambda b, h, q, k: (q - k) * 0.37 <= 4.5,
}  # fmt: skip
