"""FieldCase -> cuDNN graph, as the frameworks' integrations make it. Receives the cudnn module; imports nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flexsdpa.eligibility.field.case import FieldCase, letters_of
from flexsdpa.eligibility.field.ragged import graph_sizes, ragged_statistics
from flexsdpa.spec.tensors import contiguous_strides

Shape = tuple[int, ...]
UNIT = (1, 1, 1, 1)
MXFP8_BLOCK = 32


@dataclass
class Asked:
    """A graph under description: cuDNN's object, the call, and the sizes that tensors declare."""

    cudnn: Any
    graph: Any
    case: FieldCase
    statistics: str
    offsets: dict[str, Any] = field(default_factory=dict)

    @property
    def types(self) -> Any:
        return self.cudnn.data_type

    @property
    def io_type(self) -> Any:
        names = {"fp16": "HALF", "bf16": "BFLOAT16", "fp32": "FLOAT"}
        return getattr(self.types, names.get(self.case.dtype, "FP8_E4M3"))

    @property
    def ragged_statistics(self) -> bool:
        return ragged_statistics(self.case) if self.statistics == "as served" else self.statistics == "ragged"

    def tensor(self, name: str, dim: Shape, stride: Shape | None = None, kind: Any = None, **more: Any) -> Any:
        stride = stride if stride is not None else contiguous_strides(dim)
        return self.graph.tensor(name=name, dim=list(dim), stride=list(stride), data_type=kind or self.io_type, **more)

    def number(self, name: str) -> Any:
        return self.tensor(name, UNIT, kind=self.types.FLOAT)

    def lengths(self) -> dict[str, Any]:
        """Sequence lengths, where the mask has padding."""
        if not self.case.padding:
            return {}
        batch = (self.sizes[0], 1, 1, 1)
        q, kv = (self.tensor(f"seq_len_{side}", batch, kind=self.types.INT32) for side in ("q", "kv"))
        return {"use_padding_mask": True, "seq_len_q": q, "seq_len_kv": kv}

    @property
    def sizes(self) -> tuple[int, int, int]:
        return graph_sizes(self.case)

    def offset(self, name: str) -> Any:
        """Ragged offsets of a tensor, (b + 1, 1, 1, 1)."""
        if name not in self.offsets:
            self.offsets[name] = self.tensor(f"offset_{name}", (self.sizes[0] + 1, 1, 1, 1), kind=self.types.INT64)
        return self.offsets[name]

    def place(self, name: str) -> tuple[Shape, Shape]:
        """Dims and strides of q, k, v, or of out and gradients, which lie like them."""
        c = self.case
        b, s_q, s_kv = self.sizes
        side = {"q": "q", "out": "q", "k": "k", "v": "v"}[name]
        heads, length, width = (c.h_q, s_q, c.d_qk) if side == "q" else (c.h_kv, s_kv, c.d_qk)
        width = c.d_v if name in ("v", "out") else width
        group = c.groups[0] if side == "q" else c.groups[min({"k": 1, "v": 2}[side], len(c.groups) - 1)]
        group = letters_of(c.groups[0]) if name == "out" else group
        return (b, heads, length, width), strides(group, b, heads, length, width)

    def given(self, name: str, like: str, kind: Any = None) -> Any:
        """An input tensor that lies like q, k, v or out."""
        dim, stride = self.place(like)
        made = self.tensor(name, dim, stride, kind)
        self._rag(made, like)
        return made

    def result(self, made: Any, like: str, kind: Any = None) -> None:
        dim, stride = self.place(like)
        made.set_output(True).set_dim(list(dim)).set_stride(list(stride)).set_data_type(kind or self.io_type)
        self._rag(made, like)

    def _rag(self, made: Any, like: str) -> None:
        layout = self.case.q_format if like in ("q", "out") else self.case.kv_format
        if layout == "thd":
            made.set_ragged_offset(self.offset(like))

    def row(self, name: str) -> Any:
        """Statistics, an fp32 number a query and head, dense or ragged."""
        dim, stride = self.row_place()
        made = self.tensor(name, dim, stride, self.types.FLOAT)
        if self.ragged_statistics:
            made.set_ragged_offset(self.offset("statistics"))
        return made

    def row_result(self, made: Any) -> None:
        dim, stride = self.row_place()
        made.set_output(True).set_dim(list(dim)).set_stride(list(stride)).set_data_type(self.types.FLOAT)
        if self.ragged_statistics:
            made.set_ragged_offset(self.offset("statistics"))

    def row_place(self) -> tuple[Shape, Shape]:
        c, (b, s_q, _) = self.case, self.sizes
        if self.ragged_statistics:
            return (b, c.h_q, s_q, 1), (c.h_q * s_q, 1, c.h_q, 1)
        return (b, c.h_q, s_q, 1), (c.h_q * s_q, s_q, 1, 1)

    def numbers(self, results: list[Any]) -> None:
        for made in results:
            made.set_output(True).set_dim(list(UNIT)).set_stride(list(UNIT)).set_data_type(self.types.FLOAT)

    def band(self, left: str, right: str) -> dict[str, Any]:
        """Alignment and bounds; cuDNN's left bound is ours plus one."""
        c = self.case
        found: dict[str, Any] = {}
        if c.aligned_bottom_right:
            found["diagonal_alignment"] = self.cudnn.diagonal_alignment.BOTTOM_RIGHT
        lower, upper = c.band
        if lower >= 0:
            found[left] = lower + 1
        if upper >= 0 or c.causal:
            found[right] = max(upper, 0)
        return found

    def bias(self) -> dict[str, Any]:
        c, (b, s_q, s_kv) = self.case, self.sizes
        if c.bias == "alibi" and not c.alibi_slopes:
            return {"use_alibi_mask": True}
        if not c.has_bias:
            return {}
        sizes = {"b": b, "h": c.h_q, "1": 1}
        shape = "1hss" if c.bias_shape == "-" else c.bias_shape
        return {"bias": self.tensor("bias", (sizes[shape[0]], sizes[shape[1]], 1 if shape[2] == "1" else s_q, s_kv))}

    def dropout(self) -> dict[str, Any]:
        if not self.case.dropout:
            return {}
        seed, offset = (self.tensor(name, UNIT, kind=self.types.INT64) for name in ("seed", "offset"))
        return {"dropout": (self.case.dropout, seed, offset)}

    def sink(self) -> dict[str, Any]:
        if not self.case.sink:
            return {}
        return {"sink_token": self.tensor("sink", (1, self.case.h_q, 1, 1), kind=self.types.FLOAT)}


def strides(group: str, b: int, h: int, s: int, d: int) -> Shape:
    """Strides of a (b, h, s, d) view of a tensor stored as ``group`` says: bshd, sbhd, bhsd, thd, bs3hd, th2d, ..."""
    packed = next((int(letter) for letter in group if letter.isdigit()), 1)
    before = packed > 1 and group.index(str(packed)) < group.index("h")
    head = d if before or packed == 1 else packed * d
    token = packed * h * d
    letters = letters_of(group)
    if letters == "bhsd":
        return h * s * d * packed, s * d, d, 1
    if letters == "sbhd":
        return token, head, b * token, 1
    return s * token, head, token, 1


def describe(asked: Asked, direction: str, mods: dict[str, Callable[..., Any]] | None = None) -> None:
    """Adds the node of one direction, and declares its results. mods: callbacks of a score_mod, by argument."""
    c = asked.case
    fp8 = "mxfp8" if c.dtype == "mxfp8" else "fp8" if c.fp8 else "half"
    NODES[fp8, direction](asked, mods or {})


def _forward(a: Asked, mods: dict[str, Any]) -> None:
    c = a.case
    q, k, v = a.given("q", "q"), *_keys(a)
    more: dict[str, Any] = {**_common(a, "diagonal_band_left_bound", "diagonal_band_right_bound"), **a.bias(), **a.dropout()}
    more |= a.sink() | mods | _pages(a)
    if c.max_logit:
        more["score_max"] = a.row("row_max").set_output(True)
    wants = not c.cached
    out, stats = a.graph.sdpa(q=q, k=k, v=v, attn_scale=0.1, generate_stats=wants, **more)
    a.result(out, "out")
    if wants:
        a.row_result(stats)


def _backward(a: Asked, mods: dict[str, Any]) -> None:
    c = a.case
    given = {"q": a.given("q", "q"), "k": a.given("k", "k"), "v": a.given("v", "v")}
    given |= {"o": a.given("o", "out"), "dO": a.given("dO", "out"), "stats": a.row("stats")}
    more: dict[str, Any] = {**_common(a, "diagonal_band_left_bound", "diagonal_band_right_bound"), **a.bias(), **a.dropout()}
    more |= a.sink() | mods
    if c.sink:
        more["dSink_token"] = a.tensor("dsink", (1, c.h_q, 1, 1), kind=a.types.FLOAT).set_output(True)
    if c.bias_grad:
        like = more["bias"]
        more["dBias"] = a.tensor("dbias", tuple(like.get_dim())).set_output(True)
    grads = a.graph.sdpa_backward(**given, attn_scale=0.1, use_deterministic_algorithm=c.deterministic, **more)
    for made, like in zip(grads, "qkv", strict=True):
        a.result(made, like)


def _common(a: Asked, left: str, right: str) -> dict[str, Any]:
    return {**a.lengths(), **a.band(left, right)}


def _keys(a: Asked) -> tuple[Any, Any]:
    """Keys and values: as given, or the pages of a cache, (pages, h_kv, page, d)."""
    c = a.case
    if not c.paged:
        return a.given("k", "k"), a.given("v", "v")
    pages = a.sizes[0] * -(-c.s_kv // c.page)
    return tuple(a.tensor(name, (pages, c.h_kv, c.page, d)) for name, d in (("k", c.d_qk), ("v", c.d_v)))


def _pages(a: Asked) -> dict[str, Any]:
    c = a.case
    if not c.paged:
        return {}
    dim = (a.sizes[0], 1, -(-c.s_kv // c.page), 1)
    tables = {f"paged_attention_{x}_table": a.tensor(f"{x}_table", dim, kind=a.types.INT32) for x in "kv"}
    return {**tables, "paged_attention_max_seq_len_kv": c.s_kv}


FP8_FORWARD = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
FP8_BACKWARD = (
    "descale_q", "descale_k", "descale_v", "descale_o", "descale_dO", "descale_s", "descale_dP",
    "scale_s", "scale_dQ", "scale_dK", "scale_dV", "scale_dP",
)  # fmt: skip


def _fp8_out(a: Asked) -> Any:
    """Current scaling gives half-precision results, delayed scaling fp8."""
    return a.types.FP8_E4M3 if a.case.dtype == "fp8_delayed" else a.types.BFLOAT16


def _fp8_forward(a: Asked, mods: dict[str, Any]) -> None:
    given = {name: a.given(name, name) for name in "qkv"} | {name: a.number(name) for name in FP8_FORWARD}
    more = {**_common(a, "left_bound", "right_bound"), **a.bias(), **a.dropout(), **a.sink()}
    out, stats, *largest = a.graph.sdpa_fp8(**given, attn_scale=0.1, generate_stats=True, **more)
    a.result(out, "out", _fp8_out(a))
    a.row_result(stats)
    a.numbers(largest)


def _fp8_backward(a: Asked, mods: dict[str, Any]) -> None:
    given = {name: a.given(name, name) for name in "qkv"}
    given |= {"o": a.given("o", "out", _fp8_out(a)), "dO": a.given("dO", "out"), "stats": a.row("stats")}
    given |= {name: a.number(name) for name in FP8_BACKWARD}
    more = {**_common(a, "left_bound", "right_bound"), **a.dropout(), **a.sink()}
    dq, dk, dv, *largest = a.graph.sdpa_fp8_backward(
        **given, attn_scale=0.1, use_deterministic_algorithm=a.case.deterministic, **more
    )
    for made, like in zip((dq, dk, dv), "qkv", strict=True):
        a.result(made, like, _fp8_out(a))
    a.numbers(largest)


def _blocks(a: Asked, name: str, heads: int, length: int, width: int, along_tokens: bool) -> Any:
    """Block scales of an (b, heads, length, width) tensor: one for 32 elements, along the width or along the tokens."""

    def up(n: int, step: int) -> int:
        return -(-n // step) * step

    b = a.sizes[0]
    if along_tokens:
        dim = (b, heads, up(-(-length // MXFP8_BLOCK), 4), up(width, 128))
        stride = (heads * dim[2] * dim[3], dim[2] * dim[3], 1, dim[2])
    else:
        dim = (b, heads, up(length, 128), up(-(-width // MXFP8_BLOCK), 4))
        stride = contiguous_strides(dim)  # type: ignore[assignment]
    made = a.tensor(name, dim, stride, a.types.FP8_E8M0)
    return made.set_reordering_type(a.cudnn.tensor_reordering.F8_128x4)


def _mxfp8_forward(a: Asked, mods: dict[str, Any]) -> None:
    c = a.case
    given = {name: a.given(name, name) for name in "qkv"}
    given["descale_q"] = _blocks(a, "descale_q", c.h_q, c.s_q, c.d_qk, False)
    given["descale_k"] = _blocks(a, "descale_k", c.h_kv, c.s_kv, c.d_qk, False)
    given["descale_v"] = _blocks(a, "descale_v", c.h_kv, c.s_kv, c.d_v, True)
    more = {**_common(a, "diagonal_band_left_bound", "diagonal_band_right_bound"), **a.sink()}
    out, stats, *largest = a.graph.sdpa_mxfp8(**given, attn_scale=0.1, generate_stats=True, **more)
    a.result(out, "out", a.types.BFLOAT16)
    a.row_result(stats)
    a.numbers(largest)


def _mxfp8_backward(a: Asked, mods: dict[str, Any]) -> None:
    c, half = a.case, a.types.BFLOAT16
    given = {name: a.given(name, name) for name in "qkv"}
    given |= {"q_T": a.given("q_T", "q"), "k_T": a.given("k_T", "k")}
    given |= {"o_f16": a.given("o", "out", half), "dO_f16": a.given("dO_f16", "out", half), "stats": a.row("stats")}
    given |= {"dO": a.given("dO", "out"), "dO_T": a.given("dO_T", "out")}
    for name, heads, length, width in (
        ("q", c.h_q, c.s_q, c.d_qk), ("k", c.h_kv, c.s_kv, c.d_qk), ("dO", c.h_q, c.s_q, c.d_v)
    ):  # fmt: skip
        given[f"descale_{name}"] = _blocks(a, f"descale_{name}", heads, length, width, False)
        given[f"descale_{name}_T"] = _blocks(a, f"descale_{name}_T", heads, length, width, True)
    given["descale_v"] = _blocks(a, "descale_v", c.h_kv, c.s_kv, c.d_v, False)
    more = {**_common(a, "left_bound", "right_bound"), **a.dropout(), **a.sink()}
    dq, dk, dv, *largest = a.graph.sdpa_mxfp8_backward(
        **given, attn_scale=0.1, use_deterministic_algorithm=c.deterministic, **more
    )
    for made, like in zip((dq, dk, dv), "qkv", strict=True):
        a.result(made, like, half)
    a.numbers(largest)


NODES: dict[tuple[str, str], Callable[[Asked, dict[str, Any]], None]] = {
    ("half", "forward"): _forward, ("half", "backward"): _backward,
    ("fp8", "forward"): _fp8_forward, ("fp8", "backward"): _fp8_backward,
    ("mxfp8", "forward"): _mxfp8_forward, ("mxfp8", "backward"): _mxfp8_backward,
}  # fmt: skip
