"""FieldCase: one call of a framework's fused attention, with everything that decides whether cuDNN serves it.

It is wider than what flexsdpa runs: fp8, ragged and paged layouts, context parallelism. Values are those of
TransformerEngine's own arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flexsdpa.errors import RequestError, nearest
from flexsdpa.spec.device import ASSUMED_CUDNN, VERSION
from flexsdpa.spec.families import Family, as_number, capability_of, family_of

Version = tuple[int, int, int]
Number = TypeVar("Number", int, float)
HALF = ("bf16", "fp16")
FP8 = ("fp8_delayed", "fp8_current", "mxfp8", "fp8_block", "nvfp4")
MASKS = ("no_mask", "causal", "padding", "padding_causal", "causal_bottom_right", "padding_causal_bottom_right", "arbitrary")
CAUSAL = ("causal", "padding_causal", "causal_bottom_right", "padding_causal_bottom_right")
CHOICES: dict[str, tuple[str, ...]] = {
    "framework": ("torch", "jax", "flexsdpa", "library"),
    "dtype": (*HALF, "fp32", *FP8),
    "mask": MASKS,
    "diagonal": ("top_left", "bottom_right"),
    "bias": ("no_bias", "post_scale_bias", "pre_scale_bias", "alibi"),
    "softmax": ("vanilla", "off-by-one", "learnable"),
    "score_mod": ("no", "yes", "bprop-only"),
    "kv_cache": ("none", "nonpaged", "paged"),
    "cp": ("none", "p2p", "a2a", "a2a+p2p", "all_gather", "ring", "default"),
}
TORCH_CP, JAX_CP = ("none", "p2p", "a2a", "a2a+p2p", "all_gather"), ("none", "ring", "p2p", "all_gather", "default")
BIAS_SHAPES = ("1hss", "b1ss", "bhss", "11ss", "111s", "1h1s", "b11s")
"""Batch, heads, queries and keys of a bias: 1 where it is broadcast."""
FLAGS = ("bias_grad", "alibi_slopes", "deterministic", "training", "cuda_graph", "max_logit", "fp8_mha", "pad_between_seqs")
SIZES = ("b", "h_q", "h_kv", "s_q", "s_kv", "d_qk", "d_v", "cp_size", "num_splits")


@dataclass(frozen=True, slots=True)
class FieldCase:
    """One call. cc: compute capability. cudnn: library version. window: (left, right), -1 is open. page: 0 where not paged.

    framework: who calls: torch and jax are TransformerEngine's front doors, flexsdpa is ours, library is nobody. flash: flash-attn's version, empty
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
        return as_number(self.cc)

    @property
    def family(self) -> Family | None:
        return family_of(self.cc)

    @property
    def family_name(self) -> str:
        """Empty for a card that belongs to no family that is known."""
        return self.family.name if self.family is not None else ""

    def on(self, *names: str) -> bool:
        """Whether the card belongs to one of these families, or to none that is known (empty name)."""
        return self.family_name in names

    @property
    def datacenter_blackwell_or_newer(self) -> bool:
        """What sources write as ``sm >= 100``, and what silently includes every newer family."""
        return self.number >= BLACKWELL

    @property
    def first_of_family(self) -> bool:
        """Whether the card is the family's first, minor 0, which the oldest releases know alone."""
        return self.cc[1] < 1

    # Tensors.

    @property
    def groups(self) -> tuple[str, ...]:
        """``bshd_bs2hd`` -> ("bshd", "bs2hd"), without the prefix of a paged cache."""
        return tuple(self.layout.removeprefix("paged_kv_").split("_"))

    @property
    def q_format(self) -> str:
        return letters_of(self.groups[0])

    @property
    def kv_format(self) -> str:
        return letters_of(self.groups[min(1, len(self.groups) - 1)])

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

        The caller: framework (torch or jax for TransformerEngine's front doors, flexsdpa for ours, library for nobody: what
        the library itself refuses, and what it is known to compute wrongly).
        The card and libraries: cc (``"12.1"``, (12, 1) or ``"sm_121"``), cudnn (``"9.28.1"`` or a tuple), flash (flash-attn's
        version, by default the newest that is known).
        Tensors: dtype (bf16, fp16, fp32, fp8_delayed, fp8_current, mxfp8, fp8_block, nvfp4), b, h_q, h_kv, s_q, s_kv, d_qk, d_v
        (h_kv, s_kv and d_v follow h_q, s_q and d_qk), layout: formats of q, k and v (bshd, sbhd, bhsd, thd) joined by _, or
        packed ones (bs3hd, t3hd, bshd_bs2hd, thd_th2d, ...; one format stands for three), after paged_kv_ for a paged cache; pad_between_seqs (gaps between
        ragged sequences).
        The score: mask (no_mask, causal, padding, padding_causal, causal_bottom_right, padding_causal_bottom_right, arbitrary),
        window (left, right) in tokens, -1 for open, diagonal (top_left, bottom_right: what a window without a mask is aligned
        to), bias (no_bias, post_scale_bias, pre_scale_bias, alibi), bias_shape (1hss, bhss, b1ss, 11ss, 111s, 1h1s, b11s),
        bias_grad, alibi_slopes (of the user's), dropout (a probability), softmax (vanilla, off-by-one, learnable), score_mod
        (no, yes, bprop-only).
        The run: training (forward and backward), deterministic, max_logit (return it), cuda_graph, fp8_mha (fp8 in and out),
        num_splits (of FlashAttention), kv_cache (none, nonpaged, paged), paged (tokens of a page), cp (none, p2p, a2a, a2a+p2p,
        all_gather, ring, and JAX's default: context parallelism), cp_size (devices).

        Raises RequestError that names the argument.
        """
        unknown = [name for name in given if name not in DEFAULTS]
        if unknown:
            known = ", ".join(DEFAULTS)
            hint = nearest(unknown[0], list(DEFAULTS))
            raise RequestError(f"unknown argument {unknown[0]!r}{hint}; known: {known}", field=unknown[0])
        follow = {"h_kv": "h_q", "s_kv": "s_q", "d_v": "d_qk"}
        values = {**DEFAULTS, **{mine: given[other] for mine, other in follow.items() if other in given}, **given}
        row = {name: _as_text(name, value) for name, value in values.items()}
        made = FieldCase.parse(row)
        if made.h_q % made.h_kv:
            raise RequestError(f"h_q {made.h_q} is no multiple of h_kv {made.h_kv}", field="h_kv", got=made.h_kv)
        if made.paged != (made.kv_cache == "paged") or made.paged != made.layout.startswith("paged_kv_"):
            raise RequestError("paged, kv_cache='paged' and a layout paged_kv_... go together", field="paged", got=made.page)
        for flag, needed in (("bias_grad", made.bias != "no_bias"), ("alibi_slopes", made.bias == "alibi")):
            if getattr(made, flag) and not needed:
                raise RequestError(f"{flag} without such a bias", field=flag, got=True)
        exchanges = JAX_CP if made.framework == "jax" else TORCH_CP
        if made.framework in ("torch", "jax") and made.cp not in exchanges:
            known = ", ".join(exchanges)
            raise RequestError(f"cp: {made.framework} has no {made.cp!r}; known: {known}", field="cp", got=made.cp)
        if (made.cp != "none") != (made.cp_size > 1):
            raise RequestError("cp and a cp_size of 2 or more go together", field="cp_size", got=made.cp_size)
        return made

    @staticmethod
    def parse(row: Mapping[str, str]) -> FieldCase:
        """From the columns of a cases file. Raises RequestError that names the column."""
        values: dict[str, object] = {name: _choice(name, _text(row, name)) for name in CHOICES}
        values |= {name: _flag(name, _text(row, name)) for name in FLAGS}
        values |= {name: _number(name, _text(row, name)) for name in SIZES}
        values["layout"] = _layout(_text(row, "layout"))
        values["bias_shape"] = _bias_shape(_text(row, "bias_shape"))
        values["cc"] = _capability(_text(row, "cc"))
        values["cudnn"] = _release("cudnn", _text(row, "cudnn"))
        values["window"] = _window(_text(row, "window"))
        values["dropout"] = _probability("dropout", _text(row, "dropout"))
        page = _text(row, "paged")
        values["page"] = 0 if page == "none" else _number("paged", page)
        values["flash"] = _release("flash", row["flash"]) if row.get("flash") else ()
        return FieldCase(**values)._as_handed_on()  # type: ignore[arg-type]

    def _as_handed_on(self) -> FieldCase:
        """As front doors rewrite calls: with a cache torch makes the bottom-right mask of padding_causal; JAX gathers by default."""
        if self.framework == "jax" and self.cp == "default":
            return replace(self, cp="all_gather")
        rewritten = self.framework == "torch" and self.cached and self.mask == "padding_causal"
        return replace(self, mask="padding_causal_bottom_right", diagonal="bottom_right") if rewritten else self


ALIASES = {
    name: ours for ours, names in {"fp16": ("float16", "half", "f16"), "bf16": ("bfloat16",), "fp32": ("float32", "float", "f32")}.items()
    for name in (*names, f"torch.{names[0]}")
}  # fmt: skip
"""Other names of dtypes that plain arguments may have."""
DEFAULTS: dict[str, Any] = {
    "framework": "torch", "cc": "9.0", "cudnn": ASSUMED_CUDNN, "dtype": "bf16", "layout": "bshd_bshd_bshd", "b": 2, "h_q": 16, "h_kv": 16,
    "s_q": 2048, "s_kv": 2048, "d_qk": 128, "d_v": 128, "mask": "no_mask", "window": (-1, -1), "diagonal": "top_left",
    "bias": "no_bias", "bias_shape": "-", "bias_grad": False, "alibi_slopes": False, "dropout": 0.0, "softmax": "vanilla",
    "score_mod": "no", "deterministic": False, "training": False, "paged": "none", "kv_cache": "none", "cp": "none", "cp_size": 1,
    "cuda_graph": False, "max_logit": False, "fp8_mha": False, "num_splits": 1, "pad_between_seqs": False, "flash": "",
}  # fmt: skip
BLACKWELL = 100
"""The capability, times ten, from which sources call a card Blackwell or newer."""
KNOWN_LETTERS = ("bshd", "sbhd", "bhsd", "thd")


def letters_of(group: str) -> str:
    """``bs3hd`` -> ``bshd``."""
    return "".join(letter for letter in group if not letter.isdigit())


def _as_text(name: str, value: Any) -> str:
    """An argument in the form of a column."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "layout" and value in KNOWN_LETTERS:
        return "_".join([value] * 3)
    if name == "dtype" and str(value) in ALIASES:
        return ALIASES[str(value)]
    if name == "window" and value is None:
        return "-1:-1"
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
        known = ", ".join(CHOICES[name])
        raise RequestError(f"{name}: unknown {value!r}{nearest(value, CHOICES[name])}; known: {known}", field=name, got=value)
    return value


def _flag(name: str, value: str) -> bool:
    if value not in ("yes", "no"):
        raise RequestError(f"{name}: expected yes or no (True or False), got {value!r}", field=name, got=value)
    return value == "yes"


def _convert(name: str, value: str, kind: Callable[[str], Number], what: str) -> Number:
    try:
        return kind(value)
    except ValueError:
        raise RequestError(f"{name}: expected {what}, got {value!r}", field=name, got=value) from None


def _number(name: str, value: str) -> int:
    if not re.fullmatch(r"-?[0-9]+", value):
        raise RequestError(f"{name}: expected a number, got {value!r}", field=name, got=value)
    number = int(value)
    if number < 1:
        raise RequestError(f"{name}: expected at least 1, got {value}", field=name, got=value)
    return number


def _release(name: str, value: str) -> tuple[int, ...]:
    if not VERSION.fullmatch(value):
        raise RequestError(f"{name}: expected three numbers with points such as 9.28.1, got {value!r}", field=name, got=value)
    return tuple(int(word) for word in value.split("."))


def _window(value: str) -> tuple[int, int]:
    words = value.split(":")
    if len(words) != 2:
        raise RequestError(f"window: expected left:right, got {value!r}", field="window", got=value)
    left, right = (_convert("window", word, int, "left:right") for word in words)
    if min(left, right) < -1:
        raise RequestError(f"window: bounds are -1 (open) or at least 0, got {value}", field="window", got=value)
    return left, right


def _layout(value: str) -> str:
    """Three dense or ragged formats, one and a packed pair (bshd_bs2hd), or all packed (bs3hd)."""
    groups = value.removeprefix("paged_kv_").split("_")
    known = len(groups) <= 3 and all(group in FORMATS[len(groups)][min(n, 1)] for n, group in enumerate(groups))
    if not known or (len(groups) == 3 and groups[1] != groups[2]):
        formats = ", ".join(KNOWN_LETTERS)
        examples = "bshd_bshd_bshd, bshd_bs2hd, bs3hd"
        raise RequestError(f"layout: unknown {value!r}; formats are {formats}, as in {examples}", field="layout", got=value)
    return value


def _packed(count: int) -> tuple[str, ...]:
    """bs3hd, bsh3d, sb3hd, ...: tensors of ``count`` in one, before or after the heads."""
    return tuple(f"{tokens}{inner}" for tokens in ("bs", "sb", "t") for inner in (f"{count}hd", f"h{count}d"))


FORMATS: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {
    1: (_packed(3), ()), 2: (KNOWN_LETTERS, _packed(2)), 3: (KNOWN_LETTERS, KNOWN_LETTERS),
}  # fmt: skip
"""Number of groups in a layout -> what the first may be, and the others."""


def _bias_shape(value: str) -> str:
    if value not in ("-", *BIAS_SHAPES):
        known = ", ".join(BIAS_SHAPES)
        raise RequestError(
            f"bias_shape: unknown {value!r}{nearest(value, BIAS_SHAPES)}; known: {known}", field="bias_shape", got=value
        )
    return value


def _capability(value: str) -> tuple[int, int]:
    found = capability_of(value)
    if found is None:
        raise RequestError(f"cc: expected a compute capability such as 12.1 or sm_121, got {value!r}", field="cc", got=value)
    return found


def _probability(name: str, value: str) -> float:
    number = _convert(name, value, float, "a probability")
    if not 0.0 <= number <= 1.0:
        raise RequestError(f"{name}: expected a probability from 0 to 1, got {value!r}", field=name, got=value)
    return number
