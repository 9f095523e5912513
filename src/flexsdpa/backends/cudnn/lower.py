"""Program -> cuDNN graph calls. Receives the graph object and only calls methods on it, so a recording fake tests it.

What cuDNN wants of a pointwise subgraph (facts found by building on sm_90): the first operand
of a binary op is virtual (computed in the graph); every value has an explicit data type; truth values are INT32; numbers
are pass-by-value tensors of shape (1, 1, 1, 1), so a new value is no new graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flexsdpa.ir.program import Instr, Program

AXES = {"b": 0, "h": 1, "q": 2, "kv": 3}
MASKED = -1e30
"""The score of a masked position: finite, so that a row without keys stays free of nan until it is put right."""


@dataclass(frozen=True, slots=True)
class Number:
    """An operand on the host: the value of instruction ``value``, of kind "f" or "i"."""

    value: int
    kind: str


@dataclass(frozen=True, slots=True)
class Literal:
    """An operand on the host that the lowering itself needs."""

    value: float
    kind: str


@dataclass(frozen=True, slots=True)
class Start:
    """An operand on the host: the position of the first query or key of this graph (a graph may cover a band of queries)."""

    axis: str


@dataclass(frozen=True, slots=True)
class View:
    """An operand on the device: captured tensor ``slot`` as (B or 1, Hq or 1, Sq or 1, Skv or 1).

    axes: what indexes each dimension of the tensor, an index leaf or a constant. kind: "f" float, "i" integer or bool,
    held as int32. spread: axes that it has besides, of stride 0.
    """

    slot: int
    axes: tuple[str | int, ...]
    kind: str
    spread: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Length:
    """An operand on the host: how many queries or keys this graph covers."""

    axis: str


Operand = Number | Literal | Start | Length | View


class Types(Protocol):
    """The three data types, as cuDNN's or a fake's objects."""

    @property
    def FLOAT(self) -> Any: ...
    @property
    def INT32(self) -> Any: ...
    @property
    def BOOLEAN(self) -> Any: ...


class Lowering:
    """Lowers results of one program into one graph. ``declare`` makes the graph's input tensor for an operand.

    guarded: mask what lies beyond the lengths too. cuDNN 9.19's backward walks whole tiles, and what a mod makes of the
    positions behind the last key or query (3 - score makes inf of -inf there) would reach the gradients.
    moving: the axes along which a graph may start elsewhere than at 0. wide: views by batch or query have a key axis too.
    """

    def __init__(
        self,
        program: Program,
        types: Types,
        declare: Callable[[Operand], Any],
        guarded: bool = False,
        moving: Sequence[str] = ("q", "kv"),
        wide: bool = False,
    ) -> None:
        self.program = program
        self.guarded = guarded
        self.moving = moving
        self.wide = wide
        self.types = types
        self.declare = declare
        self.depends = program.depends()
        self.operands: dict[Operand, Any] = {}
        self.values: dict[int, Any] = {}
        self.virtual: set[int] = set()
        self.zeros: dict[str, Any] = {}
        self.keep: Any = None
        self.graph: Any = None
        self.score: Any = None

    def score_mod(self, graph: Any, score: Any) -> Any:
        """The callback of ``graph.sdpa``: the new score, MASKED where the mask excludes a position."""
        self.graph, self.score = graph, score
        self.values, self.virtual, self.zeros = {}, set(), {}
        self.keep = self._keep()
        result = self.as_virtual(self._root("score"))
        return result if self.keep is None else self.select(self.keep, result, self.number(MASKED), "f")

    def score_mod_bprop(self, graph: Any, dscore: Any) -> Any:
        """The callback of ``graph.sdpa_backward``: dscore times d(new score)/d(score), 0 where masked."""
        self.graph = graph
        slope = self.program.result("dscore")
        if slope is None:
            return self.binary("mul", dscore, self.number(0.0), "f")
        instr = self.program.instrs[slope]
        grad = dscore if (instr.op, instr.attr) == ("const_f", "1.0") else self.binary("mul", dscore, self.value(slope), "f")
        return grad if self.keep is None else self.select(self.keep, grad, self.number(0.0), "f")

    def _keep(self) -> Any:
        """Where a position counts, as a virtual tensor; None if everywhere."""
        root = self.program.result("keep")
        keep = None if root is None else self.as_virtual(root)
        for axis in ("q", "kv") if self.guarded else ():
            index = self.typed(self.graph.gen_index(input=self.score, axis=AXES[axis]), "i")
            inside = self.compare("cmp_lt", index, self.operand(Length(axis)), "i")
            keep = inside if keep is None else self.logic("logical_and", keep, inside)
        return keep

    def _root(self, name: str) -> int:
        n = self.program.result(name)
        assert n is not None
        return n

    # Operands.

    def operand(self, what: Operand) -> Any:
        if what not in self.operands:
            self.operands[what] = self.declare(what)
        return self.operands[what]

    def number(self, value: float, kind: str = "f") -> Any:
        return self.operand(Literal(value, kind))

    def value(self, n: int) -> Any:
        """The graph tensor of instruction n."""
        if n not in self.values:
            self.values[n] = self._lower(n, self.program.instrs[n])
        return self.values[n]

    def as_virtual(self, n: int) -> Any:
        """The same, computed in the graph: cuDNN wants that of a first operand."""
        x = self.value(n)
        if n in self.virtual:
            return x
        kind = "f" if self.program.instrs[n].kind == "f" else "i"
        return self.binary("add", self.zero(kind), x, kind)

    def zero(self, kind: str) -> Any:
        """A virtual 0. By a product: a value minus itself made cuDNN 9.19's backward wrong without a word."""
        if kind not in self.zeros:
            index = self.typed(self.graph.gen_index(input=self.score, axis=0), "i")
            index = index if kind == "i" else self.identity(index, "f")
            self.zeros[kind] = self.binary("mul", index, self.number(0, kind), kind)
        return self.zeros[kind]

    # Graph calls.

    def typed(self, tensor: Any, kind: str) -> Any:
        tensor.set_data_type(self.types.FLOAT if kind == "f" else self.types.INT32)
        return tensor

    def compute(self, kind: str) -> Any:
        return {"f": self.types.FLOAT, "i": self.types.INT32, "b": self.types.BOOLEAN}[kind]

    def identity(self, x: Any, kind: str) -> Any:
        return self.typed(self.graph.identity(input=x, compute_data_type=self.types.FLOAT), kind)

    def unary(self, method: str, x: Any) -> Any:
        return self.typed(getattr(self.graph, method)(input=x, compute_data_type=self.types.FLOAT), "f")

    def binary(self, method: str, x: Any, y: Any, kind: str) -> Any:
        names = ("input0", "input1") if method in ("max", "min") else ("a", "b")
        call = getattr(self.graph, method)
        return self.typed(call(**{names[0]: x, names[1]: y}, compute_data_type=self.compute(kind)), kind)

    def compare(self, method: str, x: Any, y: Any, kind: str) -> Any:
        """Floats are compared in FLOAT, integers and truth values in BOOLEAN: cuDNN refuses the exchange."""
        call = getattr(self.graph, method)
        return self.typed(call(input=x, comparison=y, compute_data_type=self.compute("f" if kind == "f" else "b")), "b")

    def logic(self, method: str, *xs: Any) -> Any:
        call = getattr(self.graph, method)
        arguments = {"input": xs[0]} if len(xs) == 1 else {"a": xs[0], "b": xs[1]}
        return self.typed(call(**arguments, compute_data_type=self.types.BOOLEAN), "b")

    def select(self, condition: Any, yes: Any, no: Any, kind: str) -> Any:
        return self.typed(self.graph.binary_select(input0=yes, input1=no, mask=condition), kind)

    # Instructions.

    def _lower(self, n: int, instr: Instr) -> Any:
        if instr.op == "score":
            self.virtual.add(n)
            return self.score
        if not self.depends[n] and not _reads(self.program, n):
            if instr.kind == "b":
                return self.operand(Number(n, "i"))
            return self.operand(Number(n, instr.kind))
        if instr.op == "read":
            view = view_of(self.program, instr, self.wide)
            assert view is not None
            tensor = self.operand(view)
            if instr.kind != "b":
                return tensor
            self.virtual.add(n)
            return self.compare("cmp_neq", self.binary("add", self.zero("i"), tensor, "i"), self.number(0, "i"), "i")
        self.virtual.add(n)
        if instr.op in AXES:
            index = self.typed(self.graph.gen_index(input=self.score, axis=AXES[instr.op]), "i")
            return self.binary("add", index, self.operand(Start(instr.op)), "i") if instr.op in self.moving else index
        kind = self.program.instrs[instr.args[-1]].kind
        return RULES[f"{instr.op}({kind})"](self, instr)


def _reads(program: Program, n: int) -> bool:
    return any(program.instrs[a].op == "read" for a in program.reachable([n]))


def view_of(program: Program, instr: Instr, wide: bool = False) -> View | None:
    """The view that expresses a read: every index a constant or a bare leaf, no leaf twice. None if there is none.

    What is read by batch or key has a query axis, without which cuDNN 9.19 reads other elements. wide: what is read by batch
    or query has a key axis, without which the backward of sm_8x and sm_12x has no plan.
    """
    axes: list[str | int] = []
    for a in instr.args:
        index = program.instrs[a]
        if index.op != "const_i" and (index.op not in AXES or index.op in axes):
            return None
        axes.append(int(index.attr) if index.op == "const_i" else index.op)
    by_query = ("q",) if "q" not in axes and ("b" in axes or "kv" in axes) else ()
    by_key = ("kv",) if wide and "kv" not in axes and ("b" in axes or "q" in axes) else ()
    return View(int(instr.attr), tuple(axes), "f" if instr.kind == "f" else "i", by_query + by_key)


Rule = Callable[[Lowering, Instr], Any]


def _unary(method: str) -> Rule:
    return lambda g, instr: g.unary(method, g.as_virtual(instr.args[0]))


def _commutative(method: str, kind: str) -> Rule:
    def rule(g: Lowering, instr: Instr) -> Any:
        x, y = instr.args
        g.value(x), g.value(y)
        if x not in g.virtual and y in g.virtual:
            x, y = y, x
        return g.binary(method, g.as_virtual(x), g.value(y), kind)

    return rule


def _ordered(method: str, kind: str) -> Rule:
    return lambda g, instr: g.binary(method, g.as_virtual(instr.args[0]), g.value(instr.args[1]), kind)


MIRRORED = {"cmp_eq": "cmp_eq", "cmp_neq": "cmp_neq", "cmp_lt": "cmp_gt", "cmp_le": "cmp_ge"}


def _compare(method: str) -> Rule:
    def rule(g: Lowering, instr: Instr) -> Any:
        x, y = instr.args
        kind = g.program.instrs[x].kind
        g.value(x), g.value(y)
        if x not in g.virtual and y in g.virtual:
            return g.compare(MIRRORED[method], g.value(y), g.value(x), kind)
        return g.compare(method, g.as_virtual(x), g.value(y), kind)

    return rule


def _logic(method: str) -> Rule:
    return lambda g, instr: g.logic(method, *(g.as_virtual(a) for a in instr.args))


def _where(kind: str) -> Rule:
    def rule(g: Lowering, instr: Instr) -> Any:
        condition, yes, no = instr.args
        return g.select(g.as_virtual(condition), g.as_virtual(yes), g.value(no), kind)

    return rule


def _where_bool(g: Lowering, instr: Instr) -> Any:
    condition, yes, no = (g.as_virtual(a) for a in instr.args)
    return g.logic("logical_or", g.logic("logical_and", condition, yes),
                   g.logic("logical_and", g.logic("logical_not", condition), no))  # fmt: skip


def _scaled(method: str, before: float, after: float) -> Rule:
    def rule(g: Lowering, instr: Instr) -> Any:
        x = g.as_virtual(instr.args[0])
        x = x if before == 1.0 else g.binary("mul", x, g.number(before), "f")
        y = g.unary(method, x)
        return y if after == 1.0 else g.binary("mul", y, g.number(after), "f")

    return rule


def _expm1(g: Lowering, instr: Instr) -> Any:
    return g.binary("sub", g.unary("exp", g.as_virtual(instr.args[0])), g.number(1.0), "f")


def _log1p(g: Lowering, instr: Instr) -> Any:
    return g.unary("log", g.binary("add", g.as_virtual(instr.args[0]), g.number(1.0), "f"))


def _sign(kind: str) -> Rule:
    def rule(g: Lowering, instr: Instr) -> Any:
        x = g.as_virtual(instr.args[0])
        zero = g.zero(kind)
        above, below = g.compare("cmp_gt", x, g.number(0, kind), kind), g.compare("cmp_lt", x, g.number(0, kind), kind)
        one = g.binary("add", zero, g.number(1, kind), kind)
        minus = g.binary("add", zero, g.number(-1, kind), kind)
        return g.select(above, one, g.select(below, minus, zero, kind), kind)

    return rule


def _trunc(g: Lowering, instr: Instr) -> Any:
    x = g.as_virtual(instr.args[0])
    return g.select(g.compare("cmp_ge", x, g.number(0.0), "f"), g.unary("floor", x), g.unary("ceil", x), "f")


def _to_i(g: Lowering, instr: Instr) -> Any:
    if g.program.instrs[instr.args[0]].kind == "b":
        return g.as_virtual(instr.args[0])
    return g.identity(_trunc(g, instr), "i")


def _int_neg(g: Lowering, instr: Instr) -> Any:
    return g.binary("mul", g.as_virtual(instr.args[0]), g.number(-1, "i"), "i")


def _int_abs(g: Lowering, instr: Instr) -> Any:
    x = g.as_virtual(instr.args[0])
    minus = g.binary("mul", x, g.number(-1, "i"), "i")
    return g.select(g.compare("cmp_ge", x, g.number(0, "i"), "i"), x, minus, "i")


def _int_extremum(method: str) -> Rule:
    def rule(g: Lowering, instr: Instr) -> Any:
        x, y = (g.as_virtual(a) for a in instr.args)
        return g.select(g.compare(method, x, y, "i"), x, y, "i")

    return rule


def int_quotient(g: Lowering, instr: Instr) -> Any:
    """floor(x / y) of integers by way of floats: exact while x + 0.5 is, which rules.py proves from the lengths."""
    x = g.identity(g.as_virtual(instr.args[0]), "f")
    divisor = float(g.program.instrs[instr.args[1]].attr)
    shifted = g.binary("add", x, g.number(0.5), "f")
    return g.identity(g.unary("floor", g.binary("mul", shifted, g.number(1.0 / divisor), "f")), "i")


def _int_mod(g: Lowering, instr: Instr) -> Any:
    whole = g.binary("mul", int_quotient(g, instr), g.value(instr.args[1]), "i")
    return g.binary("sub", g.as_virtual(instr.args[0]), whole, "i")


def _floordiv(g: Lowering, instr: Instr) -> Any:
    return g.unary("floor", g.binary("div", g.as_virtual(instr.args[0]), g.value(instr.args[1]), "f"))


def _mod(g: Lowering, instr: Instr) -> Any:
    x = g.as_virtual(instr.args[0])
    return g.binary("sub", x, g.binary("mul", _floordiv(g, instr), g.value(instr.args[1]), "f"), "f")


RULES: dict[str, Rule] = {
    **{f"{op}(f)": _unary(op) for op in (
        "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos", "floor", "ceil", "abs", "neg")},
    "exp2(f)": _scaled("exp", math.log(2), 1.0), "log2(f)": _scaled("log", 1.0, 1 / math.log(2)),
    "expm1(f)": _expm1, "log1p(f)": _log1p, "trunc(f)": _trunc, "sign(f)": _sign("f"),
    "add(f)": _commutative("add", "f"), "mul(f)": _commutative("mul", "f"), "sub(f)": _ordered("sub", "f"),
    "div(f)": _ordered("div", "f"), "minimum(f)": _commutative("min", "f"), "maximum(f)": _commutative("max", "f"),
    "floordiv(f)": _floordiv, "mod(f)": _mod,
    "add(i)": _commutative("add", "i"), "mul(i)": _commutative("mul", "i"), "sub(i)": _ordered("sub", "i"),
    "neg(i)": _int_neg, "abs(i)": _int_abs, "sign(i)": _sign("i"),
    "minimum(i)": _int_extremum("cmp_le"), "maximum(i)": _int_extremum("cmp_ge"),
    "floordiv(i)": int_quotient, "mod(i)": _int_mod,
    **{f"{op}({kind})": _compare(method) for op, method in (
        ("eq", "cmp_eq"), ("ne", "cmp_neq"), ("lt", "cmp_lt"), ("le", "cmp_le")) for kind in "fi"},
    "eq(b)": _compare("cmp_eq"), "ne(b)": _compare("cmp_neq"), "xor(b)": _compare("cmp_neq"),
    "and(b)": _logic("logical_and"), "or(b)": _logic("logical_or"), "not(b)": _logic("logical_not"),
    "where(f)": _where("f"), "where(i)": _where("i"), "where(b)": _where_bool,
    "to_f(i)": lambda g, instr: g.identity(g.as_virtual(instr.args[0]), "f"),
    "to_f(b)": lambda g, instr: g.identity(g.as_virtual(instr.args[0]), "f"),
    "to_i(f)": _to_i, "to_i(b)": _to_i,
    "to_b(f)": lambda g, instr: g.compare("cmp_neq", g.as_virtual(instr.args[0]), g.number(0.0), "f"),
    "to_b(i)": lambda g, instr: g.compare("cmp_neq", g.as_virtual(instr.args[0]), g.number(0, "i"), "i"),
}  # fmt: skip
"""``"op(kind of its last operand)"`` -> the graph calls. An op without a row is refused by rules.py, by name."""
