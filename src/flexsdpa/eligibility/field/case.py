"""FieldCase: one call of a framework's fused attention, with everything that decides whether cuDNN serves it.

It is wider than what flexsdpa runs: fp8, ragged and paged layouts, context parallelism. Values are those of
TransformerEngine's own arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from flexsdpa.errors import RequestError, nearest
from flexsdpa.spec.families import Family, family_of

Version = tuple[int, int, int]
Number = TypeVar("Number", int, float)
HALF = ("bf16", "fp16")
FP8 = ("fp8_delayed", "fp8_current", "mxfp8", "fp8_block", "nvfp4")
MASKS = ("no_mask", "causal", "padding", "padding_causal", "causal_bottom_right", "padding_causal_bottom_right", "arbitrary")
CAUSAL = ("causal", "padding_causal", "causal_bottom_right", "padding_causal_bottom_right")
CHOICES: dict[str, tuple[str, ...]] = {
    "framework": ("torch", "jax", "flexsdpa"),
    "dtype": (*HALF, "fp32", *FP8),
    "mask": MASKS,
    "diagonal": ("top_left", "bottom_right"),
    "bias": ("no_bias", "post_scale_bias", "pre_scale_bias", "alibi"),
    "softmax": ("vanilla", "off-by-one", "learnable"),
    "score_mod": ("no", "yes", "bprop-only"),
    "kv_cache": ("none", "nonpaged", "paged"),
    "cp": ("none", "p2p", "a2a", "a2a+p2p", "all_gather", "ring"),
}
FLAGS = ("bias_grad", "alibi_slopes", "deterministic", "training", "cuda_graph", "max_logit", "fp8_mha", "pad_between_seqs")
SIZES = ("b", "h_q", "h_kv", "s_q", "s_kv", "d_qk", "d_v", "cp_size", "num_splits")


@dataclass(frozen=True, slots=True)
class FieldCase:
    """One call. cc: compute capability. cudnn: library version. window: (left, right), -1 is open. page: 0 where not paged.

    framework: who calls: torch and jax are TransformerEngine's front doors, flexsdpa is ours. flash: flash-attn's version, empty
    for the newest that is known.
    """

    framework: str
    cc: tuple[int, int]
    cudnn: Version
    dtype: str
    layout: str
    b: int
    h_q: int
    h_kv: int
    s_q: int
    s_kv: int
    d_qk: int
    d_v: int
    mask: str
    window: tuple[int, int]
    diagonal: str
    bias: str
    bias_shape: str
    bias_grad: bool
    alibi_slopes: bool
    dropout: float
    softmax: str
    score_mod: str
    deterministic: bool
    training: bool
    page: int
    kv_cache: str
    cp: str
    cp_size: int
    cuda_graph: bool
    max_logit: bool
    fp8_mha: bool
    num_splits: int
    pad_between_seqs: bool
    flash: Version | tuple[()] = ()

    # The card.

    @property
    def number(self) -> int:
        return 10 * self.cc[0] + self.cc[1]

    @property
    def family(self) -> Family | None:
        return family_of(self.cc)

    def on(self, *names: str) -> bool:
        """Whether the card belongs to one of these families, or to none that is known (empty name)."""
        return (self.family.name if self.family else "") in names

    @property
    def datacenter_blackwell_or_newer(self) -> bool:
        """What sources write as ``sm >= 100``, and what silently includes every newer family."""
        return self.number >= BLACKWELL

    @property
    def first_of_family(self) -> bool:
        return self.family is not None and self.family.low == self.number

    # Tensors.

    @property
    def groups(self) -> tuple[str, ...]:
        """``bshd_bs2hd`` -> ("bshd", "bs2hd"), without the prefix of a paged cache."""
        return tuple(self.layout.removeprefix("paged_kv_").split("_"))

    @property
    def q_format(self) -> str:
        return _letters(self.groups[0])

    @property
    def kv_format(self) -> str:
        return _letters(self.groups[min(1, len(self.groups) - 1)])

    def uniform(self, *formats: str) -> bool:
        """Whether q and kv have one format, and it is one of these."""
        return self.q_format == self.kv_format and self.q_format in formats

    @property
    def ragged(self) -> bool:
        return "thd" in (self.q_format, self.kv_format)

    @property
    def packed_qkv(self) -> bool:
        return len(self.groups) == 1

    @property
    def packed_kv(self) -> bool:
        return len(self.groups) == 2

    @property
    def half(self) -> bool:
        return self.dtype in HALF

    @property
    def fp8(self) -> bool:
        return self.dtype in FP8

    def dims_up_to(self, largest: int) -> bool:
        return max(self.d_qk, self.d_v) <= largest

    @property
    def dims(self) -> tuple[int, int]:
        return self.d_qk, self.d_v

    def lengths_multiple_of(self, n: int) -> bool:
        return self.s_q % n == 0 and self.s_kv % n == 0

    # Mask, window, bias, dropout as the framework's front door hands them on.

    @property
    def padding(self) -> bool:
        return self.mask.startswith("padding")

    @property
    def causal(self) -> bool:
        return self.mask in CAUSAL

    @property
    def bottom_right(self) -> bool:
        return self.mask.endswith("bottom_right")

    @property
    def band(self) -> tuple[int, int]:
        """The window after torch's normalisation; JAX hands it on as it is."""
        left, right = self.window
        if self.framework != "torch":
            return left, right
        if self.causal:
            return left, 0
        return (-1, -1) if (left, right) == (-1, 0) else (left, right)

    @property
    def sliding(self) -> bool:
        return self.band not in ((-1, -1), (-1, 0))

    @property
    def bias_kind(self) -> str:
        """ALiBi with slopes of the user's is a post-scale bias without a gradient."""
        return "post_scale_bias" if self.bias == "alibi" and self.alibi_slopes else self.bias

    @property
    def has_bias(self) -> bool:
        return self.bias_kind != "no_bias"

    @property
    def drops(self) -> bool:
        """Dropout acts in training only."""
        return self.training and self.dropout > 0

    @property
    def plain(self) -> bool:
        """No bias and no dropout: frameworks hand dropout on in inference too, where the graph ignores it."""
        return not self.has_bias and self.dropout == 0

    @property
    def sink(self) -> bool:
        return self.softmax != "vanilla"

    @property
    def aligned_bottom_right(self) -> bool:
        """Bottom-right alignment that reaches the graph: without padding and with equal lengths it is rewritten to top-left."""
        if self.bottom_right:
            return self.padding or self.s_q != self.s_kv
        return self.framework == "torch" and self.diagonal == "bottom_right" and not self.causal

    @property
    def cached(self) -> bool:
        return self.kv_cache != "none"

    @property
    def paged(self) -> bool:
        return self.page > 0

    @staticmethod
    def of(**given: Any) -> FieldCase:
        """From plain arguments; what is not given is plain bf16 self-attention of 2 x 16 heads x 2048 x 128 in inference.

        cc: ``"12.1"``, (12, 1) or ``"sm_121"``. cudnn: ``"9.28.1"`` or a tuple. window: (left, right). paged: page size.
        h_kv, s_kv and d_v follow h_q, s_q and d_qk. Raises RequestError that names the argument.
        """
        unknown = [name for name in given if name not in DEFAULTS]
        if unknown:
            raise RequestError(f"unknown argument {unknown[0]!r}{nearest(unknown[0], list(DEFAULTS))}", field=unknown[0])
        follow = {"h_kv": "h_q", "s_kv": "s_q", "d_v": "d_qk"}
        values = {**DEFAULTS, **{mine: given[other] for mine, other in follow.items() if other in given}, **given}
        row = {name: _as_text(name, value) for name, value in values.items()}
        made = FieldCase.parse(row)
        if made.h_q % made.h_kv:
            raise RequestError(f"h_q {made.h_q} is no multiple of h_kv {made.h_kv}", field="h_kv", got=made.h_kv)
        if made.paged != (made.kv_cache == "paged") or made.paged != made.layout.startswith("paged_kv_"):
            raise RequestError("paged, kv_cache='paged' and a layout paged_kv_... go together", field="paged", got=made.page)
        return made

    @staticmethod
    def parse(row: Mapping[str, str]) -> FieldCase:
        """From the columns of a cases file. Raises RequestError that names the column."""
        values: dict[str, object] = {name: _choice(name, _text(row, name)) for name in CHOICES}
        values |= {name: _flag(name, _text(row, name)) for name in FLAGS}
        values |= {name: _number(name, _text(row, name)) for name in SIZES}
        values["layout"] = _layout(_text(row, "layout"))
        values["bias_shape"] = _text(row, "bias_shape")
        values["cc"] = _parts("cc", _text(row, "cc"), 2)
        values["cudnn"] = _parts("cudnn", _text(row, "cudnn"), 3)
        values["window"] = _window(_text(row, "window"))
        values["dropout"] = _convert("dropout", _text(row, "dropout"), float, "a probability")
        page = _text(row, "paged")
        values["page"] = 0 if page == "none" else _number("paged", page)
        values["flash"] = _parts("flash", row["flash"], 3) if row.get("flash") else ()
        return FieldCase(**values)  # type: ignore[arg-type]


DEFAULTS: dict[str, Any] = {
    "framework": "torch", "cc": "9.0", "cudnn": "9.28.1", "dtype": "bf16", "layout": "bshd_bshd_bshd", "b": 2, "h_q": 16, "h_kv": 16,
    "s_q": 2048, "s_kv": 2048, "d_qk": 128, "d_v": 128, "mask": "no_mask", "window": (-1, -1), "diagonal": "top_left",
    "bias": "no_bias", "bias_shape": "-", "bias_grad": False, "alibi_slopes": False, "dropout": 0.0, "softmax": "vanilla",
    "score_mod": "no", "deterministic": False, "training": False, "paged": "none", "kv_cache": "none", "cp": "none", "cp_size": 1,
    "cuda_graph": False, "max_logit": False, "fp8_mha": False, "num_splits": 1, "pad_between_seqs": False, "flash": "",
}  # fmt: skip
BLACKWELL = 100
"""The capability, times ten, from which sources call a card Blackwell or newer."""
KNOWN_LETTERS = ("bshd", "sbhd", "bhsd", "thd")


def _letters(group: str) -> str:
    return "".join(letter for letter in group if not letter.isdigit())


def _as_text(name: str, value: Any) -> str:
    """An argument in the form of a column."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "cc" and isinstance(value, str) and (card := re.fullmatch(r"sm_?(\d{1,2})(\d)", value)):
        return f"{card[1]}.{card[2]}"
    if isinstance(value, tuple | list):
        return (":" if name == "window" else ".").join(str(part) for part in value)
    return str(value)


def _text(row: Mapping[str, str], name: str) -> str:
    value = row.get(name)
    if value is None:
        raise RequestError(f"column {name!r} is missing", field=name)
    return value.strip()


def _choice(name: str, value: str) -> str:
    if value not in CHOICES[name]:
        raise RequestError(f"{name}: unknown {value!r}{nearest(value, CHOICES[name])}", field=name, got=value)
    return value


def _flag(name: str, value: str) -> bool:
    if value not in ("yes", "no"):
        raise RequestError(f"{name}: expected yes or no, got {value!r}", field=name, got=value)
    return value == "yes"


def _convert(name: str, value: str, kind: Callable[[str], Number], what: str) -> Number:
    try:
        return kind(value)
    except ValueError:
        raise RequestError(f"{name}: expected {what}, got {value!r}", field=name, got=value) from None


def _number(name: str, value: str) -> int:
    number = _convert(name, value, int, "a number")
    if number < 1:
        raise RequestError(f"{name}: expected at least 1, got {value}", field=name, got=value)
    return number


def _parts(name: str, value: str, count: int) -> tuple[int, ...]:
    words = value.split(".")
    if len(words) != count or not all(word.isdigit() for word in words):
        raise RequestError(f"{name}: expected {count} numbers with points, got {value!r}", field=name, got=value)
    return tuple(int(word) for word in words)


def _window(value: str) -> tuple[int, int]:
    words = value.split(":")
    if len(words) != 2:
        raise RequestError(f"window: expected left:right, got {value!r}", field="window", got=value)
    left, right = (_convert("window", word, int, "left:right") for word in words)
    if min(left, right) < -1:
        raise RequestError(f"window: bounds are -1 (open) or at least 0, got {value}", field="window", got=value)
    return left, right


def _layout(value: str) -> str:
    groups = value.removeprefix("paged_kv_").split("_")
    if len(groups) > 3 or any(_letters(group) not in KNOWN_LETTERS for group in groups):
        raise RequestError(f"layout: unknown {value!r}; formats are {', '.join(KNOWN_LETTERS)}", field="layout", got=value)
    return value
