"""Rewrites that keep the meaning of a program bit for bit, as a table of rules.

Float rules hold for every input, 0, -0, inf and nan included, so ``x + 0`` and ``x * 0`` stay. Integer rules
may use that integers have no such values. ``simplify`` also moves a mask that was written inside the score
(``where(cond, score, -inf)``) to the ``keep`` result, where every backend looks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from flexsdpa.ir.evaluate import BOOL_OPS, INTEGER_OPS
from flexsdpa.ir.ops import RESULT_KIND
from flexsdpa.ir.program import Instr, Program
from flexsdpa.ir.rewrite import Rewriter, Rule

FOLDABLE = frozenset(INTEGER_OPS) | frozenset(BOOL_OPS)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One rule. domain: ``any`` holds for floats too; ``int`` only fires on integers and bools."""

    name: str
    ops: tuple[str, ...]
    domain: Literal["any", "int"]
    apply: Rule


def _is(instr: Instr, value: bool | int | float) -> bool:
    kind = {bool: "b", int: "i", float: "f"}[type(value)]
    return instr.op == f"const_{kind}" and instr.attr == repr(value)


def _int_const(instr: Instr) -> int | None:
    return int(instr.attr) if instr.op == "const_i" else None


def _fold(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    """Integer and bool ops on constants."""
    operands = [p.instr(a) for a in args]
    if not operands or any(x.op not in ("const_i", "const_b") for x in operands):
        return None
    kind = operands[-1].kind
    function = (INTEGER_OPS if kind == "i" else BOOL_OPS).get(op)
    if function is None:
        return None
    values = [np.int64(int(x.attr)) if x.kind == "i" else np.bool_(x.attr == "True") for x in operands]
    with np.errstate(all="ignore"):
        result = function(*values)
    given = RESULT_KIND[f"{op}({''.join(x.kind for x in operands)})"]
    return p.const(bool(result) if given == "b" else int(result))


def _fold_to_f(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    x = p.instr(args[0])
    if x.op == "const_b":
        return p.const(1.0 if x.attr == "True" else 0.0)
    n = _int_const(x)
    return p.const(float(n)) if n is not None and abs(n) <= 2**53 else None


def _identity(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    """x + 0, x - 0, x * 1, x / 1, x // 1 and x ** 1, where they are exact."""
    neutral: dict[str, tuple[int | float, ...]] = {
        "add": (0, -0.0), "sub": (0, 0.0), "mul": (1, 1.0), "div": (1.0,), "floordiv": (1,), "pow": (1.0,),
        "or": (0,), "xor": (0,), "and": (-1,), "shl": (0,), "shr": (0,),
    }  # fmt: skip
    for value in neutral[op]:
        if _is(p.instr(args[1]), value):
            return args[0]
        if op in ("add", "mul", "or", "xor", "and") and _is(p.instr(args[0]), value):
            return args[1]
    return None


def _minus_one(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    for mine, other in ((1, 0), (0, 1)):
        if _is(p.instr(args[mine]), -1.0) and not (op == "div" and mine == 0):
            return p.make("neg", args[other])
    return None


def _int_zero(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    """0 * x, x - x, x % 1 for integers."""
    x, y = p.instr(args[0]), p.instr(args[1])
    if x.kind != "i":
        return None
    zero = (op == "mul" and (_is(x, 0) or _is(y, 0))) or (op == "sub" and args[0] == args[1]) or (op == "mod" and _is(y, 1))
    return p.const(0) if zero else None


def _sub_const(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    """x - c -> x + (-c) for integers, so that offsets gather in one constant."""
    c = _int_const(p.instr(args[1]))
    return p.make("add", args[0], p.const(-c)) if c is not None and c != -(2**63) else None


def _add_chain(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    """(x + c) + d -> x + (c + d) for integers."""
    for outer, inner in ((0, 1), (1, 0)):
        d, x = _int_const(p.instr(args[outer])), p.instr(args[inner])
        if d is None or x.op != "add" or x.kind != "i":
            continue
        for place in (0, 1):
            c = _int_const(p.instr(x.args[place]))
            if c is not None and abs(c + d) < 2**62:
                return p.make("add", x.args[1 - place], p.const(c + d))
    return None


def _negated(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    """x + (-y) -> x - y and x - (-y) -> x + y."""
    y = p.instr(args[1])
    if y.op == "neg":
        return p.make("sub" if op == "add" else "add", args[0], y.args[0])
    if op == "add" and p.instr(args[0]).op == "neg":
        return p.make("sub", args[1], p.instr(args[0]).args[0])
    return None


def _unary_twice(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    """neg(neg x), not(not x), abs(abs x), abs(neg x), floor(floor x), ..."""
    x = p.instr(args[0])
    if op in ("neg", "not"):
        return x.args[0] if x.op == op else None
    if op == "abs" and x.op == "neg":
        return p.make("abs", x.args[0])
    same = x.op == op and x.attr == attr
    return args[0] if same else None


def _not_compare(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    """not (x == y) -> x != y; not (x < y) -> y <= x, for integers only (nan)."""
    x = p.instr(args[0])
    if x.op in ("eq", "ne"):
        return p.make("ne" if x.op == "eq" else "eq", *x.args)
    if x.op in ("lt", "le") and p.instr(x.args[0]).kind == "i":
        return p.make("le" if x.op == "lt" else "lt", x.args[1], x.args[0])
    return None


def _logic(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    """True & x, False | x, x & x, x & ~x, ..."""
    if p.instr(args[0]).kind == "i":
        return args[0] if args[0] == args[1] and op != "xor" else None
    for mine, other in ((0, 1), (1, 0)):
        x = p.instr(args[mine])
        if x.op == "const_b":
            if op == "xor":
                return p.make("not", args[other]) if x.attr == "True" else args[other]
            return args[other] if (x.attr == "True") == (op == "and") else args[mine]
    if args[0] == args[1]:
        return p.const(False) if op == "xor" else args[0]
    return None


def _compare_self(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    """x < x is False; x == x and x <= x are True unless x is a float."""
    if args[0] != args[1]:
        return None
    if op == "lt":
        return p.const(False)
    return p.const(op in ("eq", "le")) if p.instr(args[0]).kind != "f" else None


def _compare_bool(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    """b == True -> b, b != True -> not b."""
    for mine, other in ((0, 1), (1, 0)):
        x = p.instr(args[mine])
        if x.op == "const_b":
            return args[other] if (x.attr == "True") == (op == "eq") else p.make("not", args[other])
    return None


def _where(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    cond, yes, no = args
    c = p.instr(cond)
    if c.op == "const_b":
        return yes if c.attr == "True" else no
    if yes == no:
        return yes
    if c.op == "not":
        return p.make("where", c.args[0], no, yes)
    return _where_bool(p, cond, yes, no) if p.instr(yes).kind == "b" else None


def _where_bool(p: Rewriter, cond: int, yes: int, no: int) -> int | None:
    """where on bools with a constant side is logic."""
    y, n = p.instr(yes), p.instr(no)
    if _is(y, True):
        return p.make("or", cond, no)
    if _is(n, False):
        return p.make("and", cond, yes)
    if _is(y, False):
        return p.make("and", p.make("not", cond), no)
    if _is(n, True):
        return p.make("or", p.make("not", cond), yes)
    return None


def _same_pair(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    """min(x, x) and max(x, x)."""
    return args[0] if args[0] == args[1] else None


def _cast_back(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    """bool(int(b)) -> b."""
    x = p.instr(args[0])
    return x.args[0] if x.op in ("to_i", "to_f") and p.instr(x.args[0]).kind == "b" else None


RULES: tuple[Rewrite, ...] = (
    Rewrite("fold", tuple(sorted(FOLDABLE)), "int", _fold),
    Rewrite("fold-to-float", ("to_f",), "any", _fold_to_f),
    Rewrite("identity", ("add", "sub", "mul", "div", "floordiv", "pow", "or", "xor", "and", "shl", "shr"), "any", _identity),
    Rewrite("times-minus-one", ("mul", "div"), "any", _minus_one),
    Rewrite("int-zero", ("mul", "sub", "mod"), "int", _int_zero),
    Rewrite("int-sub-const", ("sub",), "int", _sub_const),
    Rewrite("int-add-chain", ("add",), "int", _add_chain),
    Rewrite("negated-operand", ("add", "sub"), "any", _negated),
    Rewrite("unary-twice", ("neg", "not", "abs", "floor", "ceil", "trunc", "round", "sign", "round_f", "wrap_i"), "any",
            _unary_twice),
    Rewrite("not-compare", ("not",), "any", _not_compare),
    Rewrite("logic", ("and", "or", "xor"), "int", _logic),
    Rewrite("compare-self", ("eq", "ne", "lt", "le"), "any", _compare_self),
    Rewrite("compare-bool", ("eq", "ne"), "int", _compare_bool),
    Rewrite("where", ("where",), "any", _where),
    Rewrite("same-pair", ("minimum", "maximum"), "any", _same_pair),
    Rewrite("cast-back", ("to_b",), "any", _cast_back),
)  # fmt: skip

BY_OP: dict[str, list[Rule]] = {}
for _rule in RULES:
    for _op in _rule.ops:
        BY_OP.setdefault(_op, []).append(_rule.apply)


def simplify(program: Program) -> Program:
    """The canonical program: rules applied until nothing changes, masks in ``keep``, numbered by need."""
    while True:
        p = Rewriter(program, BY_OP)
        new = p.copy()
        results = _split_mask(p, [(name, new[n]) for name, n in program.results])
        after = p.finish(results)
        if after.text == program.text:
            return after
        program = after


def _split_mask(p: Rewriter, results: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Moves ``where(cond, score, -inf)`` at the root of ``score`` into ``keep``; drops a keep that is True.

    A score of -inf and a masked position are the same thing: probability 0, gradient 0.
    """
    named = dict(results)
    if "score" in named:
        keep = named.get("keep", p.const(True))
        while (root := p.instr(named["score"])).op == "where":
            cond, yes, no = root.args
            if _is(p.instr(no), -np.inf):
                keep, named["score"] = p.make("and", keep, cond), yes
            elif _is(p.instr(yes), -np.inf):
                keep, named["score"] = p.make("and", keep, p.make("not", cond)), no
            else:
                break
        named["keep"] = keep
    if "keep" in named and len(named) > 1 and _is(p.instr(named["keep"]), True):
        del named["keep"]
    order = {"score": 0, "keep": 1}
    return sorted(named.items(), key=lambda item: order.get(item[0], 2))
