"""What the oracle asks, as data: calls of other frameworks, and mods of one op class each."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flexsdpa.backends.cudnn.layout import Piece, guarded
from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.oracle.cards import description
from flexsdpa.oracle.programs import BATCH, HEADS, KEYS, PROGRAMS, QUERIES, traced
from flexsdpa.spec.families import CARDS

DIRECTIONS = ("forward", "backward")
ALL_CARDS = tuple(card.number for card in CARDS)
ONE_OF_EACH = (80, 90, 100, 120)
"""A card of each family that has kernels of its own, for the many questions of one op class each."""


GRAPHS = 2
"""Increase it when graphs.py, ragged.py or the cudnn backend make graphs in another way: everything is asked again."""
DESCRIBED = [description(card) for card in CARDS]


@dataclass(frozen=True)
class Question:
    """One question, to be asked of every card and release. changes: of a plain bf16 call (``FieldCase.of``).

    statistics: of a ragged call, dense or ragged; "as served" is what ``ragged_statistics`` says. program: a name of
    programs.PROGRAMS, or empty. cards: which ones are asked.
    """

    name: str
    changes: Mapping[str, Any]
    directions: tuple[str, ...] = DIRECTIONS
    statistics: str = "as served"
    program: str = ""
    cards: tuple[int, ...] = ALL_CARDS

    def case(self, card: int, cudnn: str, direction: str) -> FieldCase:
        return FieldCase.of(**self.arguments(card, cudnn, direction))

    def arguments(self, card: int, cudnn: str, direction: str) -> dict[str, Any]:
        """Plain arguments, so that they travel to the child process."""
        return {**self.changes, "cc": f"{card // 10}.{card % 10}", "cudnn": cudnn, "training": direction == "backward"}

    @property
    def _guarded(self) -> bool:
        case = FieldCase.of(**self.changes)
        return guarded("backward", Piece(0, case.s_q, 0, case.s_kv))

    def digest(self) -> str:
        """What an answer depends on, but for the code that makes graphs, whose number is GRAPHS. Another question under an old
        name makes its records stale."""
        return self._digest

    @functools.cached_property
    def _digest(self) -> str:
        program = [traced(self.program).text, self._guarded] if self.program else []
        facts = [GRAPHS, asdict(FieldCase.of(**self.changes)), self.statistics, program, DESCRIBED]
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=list).encode()).hexdigest()[:12]


CAUSAL: dict[str, Any] = {"mask": "causal", "window": (-1, 0)}
PADDED: dict[str, Any] = {"mask": "padding_causal", "window": (-1, 0)}
BOTTOM: dict[str, Any] = {"mask": "causal_bottom_right", "diagonal": "bottom_right", "window": (-1, 0)}
RAGGED: dict[str, Any] = {**PADDED, "layout": "thd_thd_thd"}
CACHED: dict[str, Any] = {
    "mask": "padding_causal_bottom_right", "diagonal": "bottom_right", "window": (-1, 0), "s_q": 128, "s_kv": 2048, "kv_cache": "nonpaged",
}  # fmt: skip
PAGED: dict[str, Any] = {**CACHED, "kv_cache": "paged", "paged": 64, "layout": "paged_kv_bshd_bshd_bshd"}
BIAS: dict[str, Any] = {"bias": "post_scale_bias", "bias_shape": "1hss"}
SINK: dict[str, Any] = {"softmax": "learnable"}
FORWARD = ("forward",)
BACKWARD = ("backward",)


def _fp8(recipe: str) -> list[Question]:
    """The same questions for each way of scaling."""
    base = {"dtype": recipe}
    changes: dict[str, dict[str, Any]] = {
        "plain": {}, "causal": CAUSAL, "padding": {"mask": "padding"}, "padding, causal": PADDED, "grouped heads": {**CAUSAL, "h_kv": 4},
        "head dim 64": {**CAUSAL, "d_qk": 64}, "head dim 256": {**CAUSAL, "d_qk": 256},
        "head dims 192 and 128": {**CAUSAL, "d_qk": 192, "d_v": 128}, "bottom-right": {**BOTTOM, "s_q": 1024, "s_kv": 2048},
        "window": {"mask": "causal", "window": (128, 0)}, "sink": {**CAUSAL, **SINK}, "deterministic": {**CAUSAL, "deterministic": True},
        "odd lengths": {**CAUSAL, "s_q": 1000}, "bhsd": {**CAUSAL, "layout": "bhsd_bhsd_bhsd"}, "ragged": RAGGED,
    }  # fmt: skip
    found = [Question(f"{recipe}, {name}", {**base, **change}) for name, change in changes.items()]
    if recipe != "mxfp8":
        found.append(Question(f"{recipe}, dropout", {**base, **CAUSAL, "dropout": 0.1}))
        found.append(Question(f"{recipe}, bias", {**base, **CAUSAL, **BIAS}, FORWARD))
    return found


FIELD: tuple[Question, ...] = (
    Question("plain", {}), Question("causal", CAUSAL), Question("fp16", {**CAUSAL, "dtype": "fp16"}),
    *(Question(f"head dim {d}", {**CAUSAL, "d_qk": d}) for d in (16, 32, 64, 72, 80, 96, 100, 136, 160, 192, 256, 264, 512)),
    *(Question(f"head dims {dqk} and {dv}", {**CAUSAL, "d_qk": dqk, "d_v": dv})
      for dqk, dv in ((64, 128), (128, 64), (96, 128), (160, 128), (192, 128), (192, 64), (128, 192), (256, 128), (576, 512))),
    Question("grouped heads", {**CAUSAL, "h_kv": 4}), Question("one kv head", {**CAUSAL, "h_kv": 1}),
    Question("heads that do not divide into powers of two", {**CAUSAL, "h_q": 24, "h_kv": 8}),
    *(Question(f"layout {layout}", {**CAUSAL, "layout": layout}) for layout in (
        "bs3hd", "bsh3d", "bshd_bs2hd", "bshd_bsh2d", "sbhd_sbhd_sbhd", "sb3hd", "sbh3d", "bhsd_bhsd_bhsd")),
    Question("mixed formats, sbhd and bshd", {**CAUSAL, "layout": "sbhd_bshd_bshd"}),
    Question("odd lengths", {**CAUSAL, "s_q": 1000, "s_kv": 1000}), Question("very short", {**CAUSAL, "s_q": 7, "s_kv": 7}),
    Question("one by one", {"s_q": 1, "s_kv": 1}), Question("more keys than queries", {"s_q": 512, "s_kv": 2048}),
    Question("more queries than keys", {"s_kv": 512}), Question("one query", {"s_q": 1, "s_kv": 2048}),
    Question("one query, causal", {**CAUSAL, "s_q": 1, "s_kv": 2048}, FORWARD), Question("one query, head dim 256", {"s_q": 1, "s_kv": 2048, "d_qk": 256}, FORWARD),
    Question("padding", {"mask": "padding"}), Question("padding, causal", PADDED),
    Question("bottom-right, equal lengths", BOTTOM), Question("bottom-right, more keys", {**BOTTOM, "s_q": 1024, "s_kv": 2048}),
    Question("bottom-right, odd lengths", {**BOTTOM, "s_q": 1000, "s_kv": 1900}),
    Question("bottom-right, more queries", {**BOTTOM, "s_kv": 1024}),
    Question("bottom-right, padding", {**BOTTOM, "mask": "padding_causal_bottom_right", "s_q": 1024, "s_kv": 2048}),
    Question("bottom-right, padding, more queries", {**BOTTOM, "mask": "padding_causal_bottom_right", "s_kv": 1024}),
    Question("bottom-right, bias", {**BOTTOM, **BIAS, "s_q": 1024, "s_kv": 2048}), Question("bottom-right, dropout", {**BOTTOM, "s_q": 1024, "s_kv": 2048, "dropout": 0.1}),
    Question("window 128", {"mask": "causal", "window": (128, 0)}), Question("window on both sides", {"window": (128, 128)}),
    Question("window, right bound beyond the diagonal", {"window": (128, 64), "framework": "jax"}),
    Question("window, left only", {"window": (128, -1), "framework": "jax"}),
    Question("window, bottom-right", {**BOTTOM, "window": (128, 0), "s_q": 1024, "s_kv": 2048}),
    Question("window, bottom-right, equal lengths", {**BOTTOM, "window": (128, 0)}),
    Question("window, padding", {"mask": "padding_causal", "window": (128, 0)}),
    Question("window, dropout", {"mask": "causal", "window": (128, 0), "dropout": 0.1}),
    Question("window, bias", {**BIAS, "mask": "causal", "window": (128, 0)}),
    Question("window, bhsd", {"mask": "causal", "window": (128, 0), "layout": "bhsd_bhsd_bhsd"}),
    Question("window, more queries", {"mask": "causal", "window": (128, 0), "s_kv": 1024}),
    *(Question(f"bias {shape}", {**CAUSAL, **BIAS, "bias_shape": shape}) for shape in ("1hss", "bhss", "b1ss", "11ss", "111s")),
    *(Question(f"bias {shape}, its gradient", {**CAUSAL, **BIAS, "bias_shape": shape, "bias_grad": True}, BACKWARD)
      for shape in ("1hss", "bhss", "b1ss", "11ss", "111s")),
    Question("bias, odd lengths, its gradient", {**BIAS, "bias_grad": True, "s_q": 1000, "s_kv": 1000}, BACKWARD),
    Question("bias, one key", {**BIAS, "s_kv": 1}), Question("one key", {"s_kv": 1}),
    Question("bias, padding", {**BIAS, "mask": "padding"}), Question("bias, dropout", {**CAUSAL, **BIAS, "dropout": 0.1}),
    Question("bias, head dim 256", {**CAUSAL, **BIAS, "d_qk": 256}),
    Question("alibi", {**CAUSAL, "bias": "alibi"}), Question("alibi, padding", {**PADDED, "bias": "alibi"}),
    Question("alibi, no mask", {"bias": "alibi"}), Question("alibi, dropout", {**CAUSAL, "bias": "alibi", "dropout": 0.1}),
    Question("dropout", {**CAUSAL, "dropout": 0.1}), Question("dropout, padding", {**PADDED, "dropout": 0.1}),
    Question("dropout, bhsd, padding", {"mask": "padding", "dropout": 0.1, "layout": "bhsd_bhsd_bhsd"}),
    Question("dropout, head dim 256", {**CAUSAL, "dropout": 0.1, "d_qk": 256}),
    Question("dropout of 1", {**CAUSAL, "dropout": 1.0}),
    Question("sink", {**CAUSAL, **SINK}), Question("sink, one query", {**SINK, "s_q": 1, "s_kv": 2048}, FORWARD),
    Question("sink, head dim 256", {**CAUSAL, **SINK, "d_qk": 256}), Question("sink, window", {**SINK, "mask": "causal", "window": (128, 0)}),
    Question("sink, dropout", {**CAUSAL, **SINK, "dropout": 0.1}), Question("sink, deterministic", {**CAUSAL, **SINK, "deterministic": True}),
    Question("max logit", {**CAUSAL, "max_logit": True}, FORWARD),
    *(Question(f"deterministic{name}", {**CAUSAL, "deterministic": True, **more}, BACKWARD) for name, more in (
        ("", {}), (", grouped heads", {"h_kv": 4}), (", head dim 256", {"d_qk": 256}), (", dropout", {"dropout": 0.1}),
        (", bias", BIAS), (", bias gradient", {**BIAS, "bias_grad": True}), (", alibi", {"bias": "alibi"}), (", padding", PADDED),
        (", window", {"window": (128, 0)}), (", head dims 192 and 128", {"d_qk": 192, "d_v": 128}))),
    Question("ragged", RAGGED), Question("ragged, dense statistics", RAGGED, statistics="dense"),
    Question("ragged, ragged statistics", RAGGED, statistics="ragged"),
    Question("ragged, no mask but padding", {**RAGGED, "mask": "padding", "window": (-1, -1)}),
    Question("ragged without lengths", {"layout": "thd_thd_thd"}),
    Question("ragged, grouped heads", {**RAGGED, "h_kv": 4}), Question("ragged, head dim 256", {**RAGGED, "d_qk": 256}),
    Question("ragged, head dims 192 and 128", {**RAGGED, "d_qk": 192, "d_v": 128}),
    *(Question(f"ragged {layout}", {**RAGGED, "layout": layout}) for layout in ("thd_t2hd", "thd_th2d", "t3hd", "th3d")),
    Question("ragged queries, dense keys", {**RAGGED, "layout": "thd_bshd_bshd"}, FORWARD),
    Question("ragged, window", {**RAGGED, "window": (128, 0)}), Question("ragged, sink", {**RAGGED, **SINK}),
    Question("ragged, dropout", {**RAGGED, "dropout": 0.1}), Question("ragged, deterministic", {**RAGGED, "deterministic": True}, BACKWARD),
    Question("ragged, bottom-right", {**RAGGED, "mask": "padding_causal_bottom_right", "diagonal": "bottom_right", "s_q": 1024, "s_kv": 2048}),
    Question("KV cache", CACHED, FORWARD), Question("KV cache, one query", {**CACHED, "s_q": 1, "s_kv": 2048}, FORWARD),
    Question("paged KV cache", PAGED, FORWARD), Question("paged KV cache, one query", {**PAGED, "s_q": 1, "s_kv": 2048}, FORWARD),
    Question("paged KV cache, grouped heads", {**PAGED, "h_kv": 4}, FORWARD),
    Question("paged KV cache, head dim 256", {**PAGED, "d_qk": 256}, FORWARD),
    *(Question(f"paged KV cache, pages of {page}", {**PAGED, "paged": page, "s_kv": length}, FORWARD)
      for page, length in ((1, 2048), (16, 2048), (48, 1920), (50, 2000), (256, 2048))),
    *_fp8("fp8_delayed"), *_fp8("fp8_current"), *_fp8("mxfp8"),
)  # fmt: skip
WIDELY_USED = (
    "softcap",
    "softcap, causal",
    "alibi, causal",
    "relative distance",
    "documents",
    "padding",
    "full bias",
    "causal as score",
)
MODDED: tuple[Question, ...] = (
    *(Question(f"mod: {name}", {"b": BATCH, "h_q": HEADS, "s_q": QUERIES, "s_kv": KEYS}, program=name,
               cards=ALL_CARDS if name in WIDELY_USED else ONE_OF_EACH) for name in PROGRAMS),
    Question("mod: softcap, fp16", {"b": BATCH, "h_q": HEADS, "s_q": QUERIES, "dtype": "fp16"}, program="softcap"),
    *(Question(f"mod: softcap, head dim {d}", {"b": BATCH, "h_q": HEADS, "s_q": QUERIES, "d_qk": d}, program="softcap")
      for d in (32, 64, 72, 96, 192, 256)),
    Question("mod: softcap, head dims 192 and 128", {"b": BATCH, "h_q": HEADS, "s_q": QUERIES, "d_qk": 192, "d_v": 128}, program="softcap"),
    Question("mod: softcap, grouped heads", {"b": BATCH, "h_q": HEADS, "h_kv": 4, "s_q": QUERIES}, program="softcap"),
    Question("mod: softcap, deterministic", {"b": BATCH, "h_q": HEADS, "s_q": QUERIES, "deterministic": True}, BACKWARD, program="softcap"),
    Question("mod: softcap, odd lengths", {"b": BATCH, "h_q": HEADS, "s_q": 1000, "s_kv": 777}, program="softcap"),
)  # fmt: skip
QUESTIONS: dict[str, Question] = {question.name: question for question in (*FIELD, *MODDED)}
