"""Ready mods. Score mods: softcap, alibi, relative_bias, t5_bias, chain. Masks: causal, sliding_window, document, prefix_lm,
padding, and_masks, or_masks, not_mask. from_graph_callback takes a score function that is written as cuDNN graph calls.

Each is a small immutable object that can be called on traced values, on tensors and on numbers, compared, pickled and printed.
Captured tensors (slopes, tables, document ids) are torch tensors (or arrays of the front end in use).
"""

from typing import Any

from flexsdpa.errors import nearest
from flexsdpa.mods.callbacks import from_graph_callback
from flexsdpa.mods.masks import and_masks, causal, document, not_mask, or_masks, padding, prefix_lm, sliding_window
from flexsdpa.mods.scores import alibi, alibi_slopes, chain, relative_bias, softcap, t5_bias, t5_bucket

__all__ = [
    "alibi",
    "alibi_slopes",
    "and_masks",
    "causal",
    "chain",
    "document",
    "from_graph_callback",
    "not_mask",
    "or_masks",
    "padding",
    "prefix_lm",
    "relative_bias",
    "sliding_window",
    "softcap",
    "t5_bias",
    "t5_bucket",
]


def __getattr__(name: str) -> Any:
    raise AttributeError(f"flexsdpa.mods has no {name!r}{nearest(name, __all__)}")
