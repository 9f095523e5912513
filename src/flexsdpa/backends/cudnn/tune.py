"""Rewrites of a program for a card: equal but for fp32 rounding, with less to do for every score.

What depends on no position and no tensor (a soft-cap, its inverse) is computed once, on the host, so products with such values
are gathered there: ``x / c`` becomes ``x * (1 / c)``, ``(x * c) * d`` becomes ``x * (c * d)``, ``(c - x) * d`` becomes
``x * -d + c * d``. Not part of ``ir.simplify``, whose rules keep every bit.
"""

from __future__ import annotations

import functools

from flexsdpa.ir.program import Program
from flexsdpa.ir.rewrite import Rewriter, Rule
from flexsdpa.ir.simplify import BY_OP

LEAVES = ("score", "b", "h", "q", "kv", "read")


@functools.lru_cache(maxsize=512)
def tuned(program: Program) -> Program:
    """The program, rewritten until nothing changes."""
    while True:
        p = Rewriter(program, RULES)
        new = p.copy()
        after = p.finish([(name, new[n]) for name, n in program.results])
        if after.text == program.text:
            return after
        program = after


def uniform(p: Rewriter, n: int) -> bool:
    """Whether a float value is the same everywhere, and known on the host."""
    instr = p.instr(n)
    return instr.op not in LEAVES and all(uniform(p, a) for a in instr.args)


def _split(p: Rewriter, args: tuple[int, ...]) -> tuple[int, int] | None:
    """(the operand that varies, the uniform one) of a float op; None if there is not one of each."""
    if p.instr(args[0]).kind != "f":
        return None
    first, second = (uniform(p, a) for a in args)
    if first == second:
        return None
    return (args[1], args[0]) if first else (args[0], args[1])


def _quotient(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    """x / c -> x * (1 / c)."""
    if uniform(p, args[1]) and not uniform(p, args[0]):
        return p.make("mul", args[0], p.make("div", p.const(1.0), args[1]))
    return None


def _product(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    """(x * c) * d -> x * (c * d); (c - x) * d -> x * -d + c * d; (x * b + c) * d -> x * (b * d) + c * d. Each is one less."""
    sides = _split(p, args)
    if sides is None:
        return None
    x, d = p.instr(sides[0]), sides[1]
    if x.op not in ("mul", "sub", "add") or (inner := _split(p, x.args)) is None:
        return None
    varying, c = inner
    if x.op == "mul":
        return p.make("mul", varying, p.make("mul", c, d))
    if x.op == "add" and p.instr(varying).op == "mul" and _split(p, p.instr(varying).args) is not None:
        return p.make("add", p.make("mul", varying, d), p.make("mul", c, d))
    if x.op == "sub" and x.args[0] == c:
        return p.make("add", p.make("mul", varying, p.make("neg", d)), p.make("mul", c, d))
    return None


def _from_number(p: Rewriter, op: str, args: tuple[int, ...], attr: str) -> int | None:
    """c - x -> -x + c: the first operand must be computed in the graph anyway."""
    if p.instr(args[0]).kind == "f" and uniform(p, args[0]) and not uniform(p, args[1]):
        return p.make("add", p.make("mul", args[1], p.const(-1.0)), args[0])
    return None


RULES: dict[str, list[Rule]] = {**BY_OP, "div": [*BY_OP["div"], _quotient], "mul": [_product, *BY_OP["mul"]]}


def finished(program: Program) -> Program:
    """``tuned``, then what would hide products from it."""
    p = Rewriter(tuned(program), {"sub": [_from_number]})
    new = p.copy()
    return p.finish([(name, new[n]) for name, n in tuned(program).results])
