"""The matrix: features against cards, for releases of cuDNN and both directions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.eligibility.field.decide import decide_case
from flexsdpa.eligibility.field.row import Answer

CARDS = ("8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1")
RELEASES = ("9.10.2", "9.19.0", "9.23.2", "9.28.1")
DIRECTIONS = ("forward", "backward")
CAUSAL = {"mask": "causal", "window": (-1, 0)}
RAGGED = {"layout": "thd_thd_thd", "mask": "padding_causal", "window": (-1, 0)}
CACHE = {
    "mask": "padding_causal_bottom_right",
    "diagonal": "bottom_right",
    "window": (-1, 0),
    "kv_cache": "nonpaged",
    "s_q": 128,
    "s_kv": 2048,
}
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": CAUSAL,
    "grouped heads": {**CAUSAL, "h_kv": 4},
    "head dim 64": {**CAUSAL, "d_qk": 64},
    "head dim 256": {**CAUSAL, "d_qk": 256},
    "head dims 192 and 128 (MLA)": {**CAUSAL, "d_qk": 192, "d_v": 128},
    "padding": {"mask": "padding"},
    "padding, causal": {"mask": "padding_causal", "window": (-1, 0)},
    "causal, bottom-right": {"mask": "causal_bottom_right", "diagonal": "bottom_right", "window": (-1, 0), "s_q": 1024, "s_kv": 2048},
    "window 128, causal": {"mask": "causal", "window": (128, 0)},
    "window 128 on both sides": {"window": (128, 128)},
    "bias": {**CAUSAL, "bias": "post_scale_bias", "bias_shape": "1hss"},
    "ALiBi": {**CAUSAL, "bias": "alibi"},
    "dropout": {**CAUSAL, "dropout": 0.1},
    "bias and dropout": {**CAUSAL, "bias": "post_scale_bias", "bias_shape": "1hss", "dropout": 0.1},
    "learned sink": {**CAUSAL, "softmax": "learnable"},
    "deterministic": {**CAUSAL, "deterministic": True},
    "score_mod": {"score_mod": "yes"},
    "ragged (thd)": RAGGED,
    "ragged, grouped heads": {**RAGGED, "h_kv": 4},
    "ragged, packed qkv (t3hd)": {**RAGGED, "layout": "t3hd"},
    "ragged, deterministic": {**RAGGED, "deterministic": True},
    "ragged, learned sink": {**RAGGED, "softmax": "learnable"},
    "bhsd layout": {**CAUSAL, "layout": "bhsd_bhsd_bhsd"},
    "KV cache": CACHE,
    "paged KV cache": {**CACHE, "kv_cache": "paged", "paged": 64, "layout": "paged_kv_bshd_bshd_bshd"},
    "max logit": {**CAUSAL, "max_logit": True},
    "fp8, delayed scaling": {**CAUSAL, "dtype": "fp8_delayed"},
    "fp8, current scaling": {**CAUSAL, "dtype": "fp8_current"},
    "MXFP8": {**CAUSAL, "dtype": "mxfp8"},
    "context parallel, p2p": {**CAUSAL, "cp": "p2p", "cp_size": 2},
    "context parallel, a2a, window": {"mask": "causal", "window": (128, 0), "cp": "a2a", "cp_size": 2},
}  # fmt: skip
"""Name of a feature -> what it changes of a plain bf16 call."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One answer. rules: ids of the rows that decline it or leave it open."""

    feature: str
    card: str
    cudnn: str
    direction: str
    answer: Answer
    rules: tuple[str, ...]
    backend: str = "cudnn"
    framework: str = "torch"


def cells(
    releases: Sequence[str] = RELEASES,
    cards: Sequence[str] = CARDS,
    directions: Sequence[str] = DIRECTIONS,
    backend: str = "cudnn",
    framework: str = "torch",
) -> Iterator[Cell]:
    """Every feature on every card, by release of cuDNN and direction. Raises RequestError for a card or release that is none."""
    for cudnn in releases:
        for direction in directions:
            for feature, changes in FEATURES.items():
                for card in cards:
                    case = FieldCase.of(**changes, cc=card, cudnn=cudnn, training=direction == "backward", framework=framework)
                    decision = decide_case(case, backend)
                    rules = tuple(row.id for row in (*decision.declines, *decision.opens))
                    yield Cell(feature, ".".join(map(str, case.cc)), cudnn, direction, decision.answer, rules, backend, framework)
