"""Random mods for Hypothesis: expression trees of torch functions, written out as source text. Needs torch and hypothesis.

``random_mods()`` draws a ``RandomMod``: sizes, score_mod and mask_mod as text, and the captured tensors that they read. Text,
because a failing example then prints as code that can be pasted.

What keeps an error budget meaningful:

- Every float expression is bounded: leaves are within [-4, 4], products have one factor within [-1, 1], and depth is limited,
  so a score stays within about 30 and its exponential far from overflow.
- Functions are smooth with slopes of a few units at most. Kinks (abs, maximum, clamp, comparisons of floats) appear only
  with ``kinks=True``, and only on leaves: between two computations a score differs by its rounding, and at a kink or a jump that
  would change a gradient by its whole size. Use them with fp64 inputs, where no drawn score comes that close.
- Integers stay small (factors up to 5, depth limited), so 32-bit libraries would agree. Divisors are constants other than 0.
- Reads are in range by construction (bare indices of tensors that are long enough, or ``% n``, ``.clamp(0, n - 1)`` and their
  negative twins), except for one table that is shorter than the keys and then guarded by the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from flexsdpa.testing.inputs import random_tensor

Draw = Callable[[Any], Any]

FLOAT_TABLES = {
    "BH": ("B", "Hq"),  # per batch and head
    "H": ("Hq",),
    "K": ("B", "Skv"),  # key bias
    "Q": ("Sq",),
    "P": ("Hq", "Sq", "Skv"),  # pair bias
    "R": ("far",),  # relative, 2 max(Sq, Skv) - 1 entries
    "T": ("five", "Hq"),  # buckets
    "X": (),  # a learned number
    "SHORT": ("short",),  # fewer entries than keys: the mask guards its reads
}
INT_TABLES = {"DOC": ("B", "long"), "HOP": ("long",), "FLAG": ("long",)}


@dataclass(frozen=True)
class RandomMod:
    """A drawn pair of mods. ``score`` and ``mask`` are expressions in s, b, h, i, j and the names of tensors."""

    sizes: tuple[tuple[str, int], ...]
    score: str
    mask: str
    seed: int

    @property
    def size(self) -> dict[str, int]:
        n = dict(self.sizes)
        longest = max(n["Sq"], n["Skv"])
        return {**n, "far": 2 * longest - 1, "long": longest, "five": 5, "short": max(1, n["Skv"] - 2), "D": 4}

    def _uses(self, name: str) -> bool:
        return f"{name}[" in self.text or (name == "X" and "X" in self.text)

    @property
    def text(self) -> str:
        return f"{self.score}  |  {self.mask}"

    @property
    def captured_names(self) -> list[str]:
        """The float tensors that the mods read."""
        return [name for name in FLOAT_TABLES if self._uses(name)]

    def inputs(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v."""
        n = self.size
        shapes = [("Hq", "Sq"), ("Hkv", "Skv"), ("Hkv", "Skv")]
        q, k, v = (
            random_tensor(n["B"], n[heads], n[length], n["D"], dtype=dtype, seed=self.seed + at)
            for at, (heads, length) in enumerate(shapes)
        )
        return q, k, v

    def captured(self, dtype: torch.dtype) -> list[Tensor]:
        """Float tensors with entries within (-1, 1), in the order of ``captured_names``."""
        shapes = [[self.size[axis] for axis in FLOAT_TABLES[name]] for name in self.captured_names]
        return [torch.tanh(random_tensor(*shape, seed=self.seed + 9 + at)).to(dtype) for at, shape in enumerate(shapes)]

    def make_mods(self, *captured: Tensor) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
        """(score_mod, mask_mod) that read the tensors given."""
        generator = torch.Generator().manual_seed(self.seed)
        scope: dict[str, Any] = {"torch": torch, **dict(zip(self.captured_names, captured, strict=True))}
        for name, axes in INT_TABLES.items():
            table = torch.randint(0, 3, [self.size[axis] for axis in axes], generator=generator)
            scope[name] = table > 0 if name == "FLAG" else table
        score_mod = eval(f"lambda s, b, h, i, j: {self.score}", scope)
        mask_mod = eval(f"lambda b, h, i, j: {self.mask}", scope) if self.mask else None
        return score_mod, mask_mod

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={n}" for name, n in self.sizes)
        return f"RandomMod({sizes}; score={self.score!r}, mask={self.mask!r}, seed={self.seed})"


@st.composite
def random_mods(
    draw: Draw, kinks: bool = False, score_masks: bool = False, min_length: int = 1, max_length: int = 20
) -> RandomMod:
    """A RandomMod, with lengths of queries and keys between the two given.

    kinks: also draw functions with kinks and jumps, for fp64 inputs. score_masks: scores that are too small become -inf.
    """
    heads = draw(st.sampled_from([(1, 1), (2, 2), (4, 2), (3, 1), (6, 2)]))
    lengths = st.integers(min_length, max_length)
    sizes = (("B", draw(st.integers(1, 2))), ("Hq", heads[0]), ("Hkv", heads[1]), ("Sq", draw(lengths)), ("Skv", draw(lengths)))
    grammar = _Grammar(draw, dict(sizes), kinks)
    score = f"{draw(st.sampled_from(['s', 's * 0.5', 'torch.tanh(s) * 2', 'BH[b, h]']))} + {grammar.number(3)}"
    mask = draw(st.sampled_from(["", "j <= i + 1", "any"]))
    mask = grammar.condition(3) if mask == "any" else mask
    if "SHORT[" in score:
        bound = f"(j < {max(1, dict(sizes)['Skv'] - 2)})"
        mask = f"{bound} & ({mask})" if mask else bound
    if score_masks:
        seen = grammar.pick("s", "torch.tanh(s)", "s * 2.5", "s + X")
        score = f"torch.where({seen} > {grammar.pick('-0.5', '0.1')}, {score}, -torch.inf)"
    return RandomMod(sizes, score, mask, draw(st.integers(0, 99)))


class _Grammar:
    """Draws expressions as text. ``depth`` is how many levels may still follow."""

    def __init__(self, draw: Draw, sizes: dict[str, int], kinks: bool) -> None:
        self.draw, self.kinks = draw, kinks
        self.far = 2 * max(sizes["Sq"], sizes["Skv"]) - 1
        self.heads = sizes["Hq"]
        self.short = max(1, sizes["Skv"] - 2)

    def pick(self, *choices: str) -> str:
        return str(self.draw(st.sampled_from(choices)))

    def constant(self) -> str:
        return self.pick("0.5", "-1.25", "2.0", "1.0", "-1.0", "0.0", "3", "-2")

    def number(self, depth: int) -> str:
        """A float expression within about 4 * 2 ** depth."""
        kind = self.pick("leaf", "sum", "difference", "product", "unit", "where", "scaled") if depth else "leaf"
        if kind == "leaf":
            return self.leaf()
        if kind == "sum":
            return f"({self.number(depth - 1)} + {self.number(depth - 1)})"
        if kind == "difference":
            return f"({self.number(depth - 1)} - {self.number(depth - 1)})"
        if kind == "product":
            return f"{self.unit(depth - 1)} * {self.number(depth - 1)}"
        if kind == "where":
            return f"torch.where({self.condition(depth - 1)}, {self.number(depth - 1)}, {self.number(depth - 1)})"
        if kind == "scaled":
            return f"({self.integer(depth - 1)}) % 7 * {self.pick('0.25', '-0.5', 'X', '0.1 * s')}"
        return self.unit(depth - 1)

    def unit(self, depth: int) -> str:
        """A float expression within [-1, 1], smooth in everything it reads."""
        x = self.number(depth) if depth else self.leaf()
        x = x if any(letter.isalpha() for letter in x) else f"{x} + 0.1 * s"  # torch functions take no plain numbers
        if self.kinks and self.pick("smooth", "kink") == "kink":
            return self.kink()
        return self.pick(
            f"torch.tanh({x})", f"({x}).sigmoid()", f"torch.sin({x})", f"torch.cos({x})", f"torch.erf({x})",
            f"torch.exp(-({x}) * ({x}))", f"1 / (1 + ({x}) ** 2)", f"torch.rsqrt(1 + torch.square({x}))",
            f"torch.log1p(torch.tanh({x}) ** 2)", f"torch.sqrt(0.1 + 0.9 * torch.sigmoid({x}))",
            f"torch.exp2(-1 - torch.tanh({x}))", f"0.5 * torch.expm1(-torch.sigmoid({x}))",
            f"0.3 * torch.log(2 + torch.sin({x}))",
        )  # fmt: skip

    def kink(self) -> str:
        """A function of a leaf with a kink or a jump, within [-1, 1]."""
        x, y = self.pick("s", "X", "T[(i - j) % 5, h]"), self.pick("s", "X", "H[h]", "0.3")
        return self.pick(
            f"torch.relu(1 - abs({x})).clamp(max=0.7)", f"({x}).clamp(-1, 1)",
            f"torch.maximum({x}, {self.tensor(y)}).clamp(-1, 1)",
            f"torch.minimum({x}, {self.tensor(y)}).clamp(-1.0, 1.0)", f"torch.where({x} > {y}, 0.5, -0.5)",
            f"({x}).sign() * 0.5", f"({x} - torch.floor({x}))", f"({x}) % 1.0", f"({x}).round() * 0.2",
            f"torch.clamp({x}, min=-0.5).clamp(max=1)",
        )  # fmt: skip

    @staticmethod
    def tensor(y: str) -> str:
        return "X * 0 + 0.3" if y == "0.3" else y

    def leaf(self) -> str:
        """A value within about [-4, 4] with slope 1."""
        return self.pick("s", self.constant(), self.read(), self.read(), self.read())

    def read(self) -> str:
        return self.pick(
            "BH[b, h]", "H[h]", "K[b, j]", "Q[i]", "P[h, i, j]", "X", f"R[{self.place('far', self.far)}]",
            f"T[{self.place('five', 5)}, h]", f"T[(i - j).clamp(-2, 2) + 2, {self.place('heads', self.heads)}]", "SHORT[j]",
            f"H[{self.place('heads', self.heads)}]", "K[b, -1 - j]", "SHORT[j] * Q[i]", "T[HOP[j], h]",
        )  # fmt: skip

    def place(self, axis: str, n: int) -> str:
        """An integer expression within [-n, n)."""
        x = self.integer(1)
        ways = [f"({x}) % {n}", f"({x}) % -{n}", f"({x}).clamp(0, {n - 1})", f"torch.clamp({x}, min=-{n}, max={n - 1})"]
        if axis == "far":
            ways += [f"i - j + {n // 2}", "i - j", "j - i"]
        return self.pick(*ways)

    def integer(self, depth: int) -> str:
        """A small integer expression."""
        leaf = self.pick("i", "j", "h", "b", "i - j", "j - i", "HOP[j]", "DOC[b, i]", "i + 1")
        if not depth:
            return leaf
        x, c = self.integer(depth - 1), self.pick("1", "2", "3", "5", "-2", "-3")
        return self.pick(
            leaf, f"({x}) + {c}", f"({x}) * {c}", f"({x}) // {c}", f"({x}) % {c}", f"{c} - ({x})", f"abs({x})", f"-({x})",
            f"torch.minimum({x}, {leaf})", f"torch.maximum({x}, {leaf})", f"torch.where({x} > 2, {leaf}, {c})",
            f"({x}) ** 2", f"torch.sign({x})", f"(({x}) >> 1)", f"(({x}) & 3)", f"({x} > {leaf}).long()",
        )  # fmt: skip

    def condition(self, depth: int) -> str:
        """A boolean expression of integers and flags."""
        x = self.integer(1)
        test = self.pick("==", "!=", "<", "<=", ">", ">=")
        leaf = self.pick(
            f"({x} {test} {self.integer(0)})", f"({x} {test} {self.pick('0', '2', '5')})", "(DOC[b, i] == DOC[b, j])", "FLAG[j]",
            "(FLAG[i] | FLAG[j])", "(i >= j)", f"({x}).bool()",
        )  # fmt: skip
        if not depth:
            return leaf
        a, c = self.condition(depth - 1), self.condition(depth - 1)
        return self.pick(
            leaf, f"({a} & {c})", f"({a} | {c})", f"({a} ^ {c})", f"(~{a})", f"torch.logical_and({a}, {c})",
            f"torch.logical_or({a}, {c})", f"torch.logical_not({a})", f"torch.where({a}, {c}, {leaf})",
        )  # fmt: skip
