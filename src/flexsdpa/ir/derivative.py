"""d(score result)/d(score) and d(score result)/d(each float read), one rule per op.

A forward sweep: every instruction gets a tangent with respect to one seed, None where it is zero. ``where``
selects tangents and never multiplies by a mask, and a factor goes to the arms of a selection, so an infinity on the
side that is not taken does no harm, and neither does one outside of it (sqrt(relu(x)) at 0).
At ties: maximum and minimum give half to each side (as torch does); abs has slope 0 at 0; clamp is traced
as ``where`` and passes the gradient at its bounds (as torch does); floor, round, sign and comparisons have slope 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from flexsdpa.ir.program import Instr, Program
from flexsdpa.ir.rewrite import Rewriter
from flexsdpa.ir.simplify import BY_OP, simplify

Tangent = int | None


class Sweep:
    """Arithmetic on tangents, None being zero."""

    def __init__(self, program: Program) -> None:
        self.p = Rewriter(program, BY_OP)

    def mul(self, tangent: Tangent, factor: int) -> Tangent:
        return None if tangent is None else self._spread(tangent, lambda t: self.p.make("mul", factor, t))

    def scaled(self, tangent: Tangent, factor: float) -> Tangent:
        return None if tangent is None else self.mul(tangent, self.p.const(factor))

    def div(self, tangent: Tangent, divisor: int) -> Tangent:
        return None if tangent is None else self._spread(tangent, lambda t: self.p.make("div", t, divisor))

    def _spread(self, tangent: int, by: Callable[[int], int]) -> int:
        """A factor goes to the arms of a selection: an arm that is 0 stays 0 even where the factor is infinite, as
        sqrt(relu(x)) wants it."""
        return self._to_arms(tangent, by, {}) if self._selects_zero(tangent, {}) else by(tangent)

    def _to_arms(self, n: int, by: Callable[[int], int], done: dict[int, int]) -> int:
        if n not in done:
            instr = self.p.instr(n)
            if _is_zero(instr):
                done[n] = n
            elif not self._selects_zero(n, {}):
                done[n] = by(n)
            elif instr.op == "where":
                arms = [self._to_arms(a, by, done) for a in instr.args[1:]]
                done[n] = self.p.make("where", instr.args[0], *arms)
            else:
                done[n] = self.p.make(instr.op, *(self._to_arms(a, by, done) for a in instr.args))
        return done[n]

    def _selects_zero(self, n: int, known: dict[int, bool]) -> bool:
        """Whether a tangent is a sum of selections, one of which may select 0."""
        if n not in known:
            instr = self.p.instr(n)
            if instr.op == "where":
                arms = instr.args[1:]
                known[n] = any(_is_zero(self.p.instr(a)) or self._selects_zero(a, known) for a in arms)
            else:
                known[n] = instr.op in ("add", "sub", "neg") and any(self._selects_zero(a, known) for a in instr.args)
        return known[n]

    def add(self, x: Tangent, y: Tangent) -> Tangent:
        if x is None or y is None:
            return y if x is None else x
        return self.p.make("add", x, y)

    def sub(self, x: Tangent, y: Tangent) -> Tangent:
        return self.add(x, None if y is None else self.p.make("neg", y))

    def where(self, cond: int, yes: Tangent, no: Tangent) -> Tangent:
        if yes is None and no is None:
            return None
        zero = self.p.const(0.0)
        return self.p.make("where", cond, zero if yes is None else yes, zero if no is None else no)

    def one_minus(self, x: int) -> int:
        return self.p.make("sub", self.p.const(1.0), x)

    def square(self, x: int) -> int:
        return self.p.make("mul", x, x)


def _is_zero(instr: Instr) -> bool:
    return instr.op == "const_f" and instr.attr == "0.0"


TangentRule = Callable[[Sweep, int, tuple[int, ...], tuple[Tangent, ...]], Tangent]


def _div(s: Sweep, y: int, a: tuple[int, ...], t: tuple[Tangent, ...]) -> Tangent:
    return s.div(s.sub(t[0], s.mul(t[1], y)), a[1])


def _pow(s: Sweep, y: int, a: tuple[int, ...], t: tuple[Tangent, ...]) -> Tangent:
    make, zero = s.p.make, s.p.const(0.0)
    base, exponent = a
    slope = make("mul", exponent, make("pow", base, make("sub", exponent, s.p.const(1.0))))
    from_base = s.mul(t[0], make("where", make("eq", exponent, zero), zero, slope))
    safe_log = make("where", make("eq", base, zero), zero, make("mul", y, make("log", base)))
    return s.add(from_base, s.mul(t[1], safe_log))


def _extremum(s: Sweep, a: tuple[int, ...], t: tuple[Tangent, ...], first_wins: int, second_wins: int) -> Tangent:
    tie = s.scaled(s.add(t[0], t[1]), 0.5)
    return s.where(first_wins, t[0], s.where(second_wins, t[1], tie))


def _minimum(s: Sweep, y: int, a: tuple[int, ...], t: tuple[Tangent, ...]) -> Tangent:
    return _extremum(s, a, t, s.p.make("lt", a[0], a[1]), s.p.make("lt", a[1], a[0]))


def _maximum(s: Sweep, y: int, a: tuple[int, ...], t: tuple[Tangent, ...]) -> Tangent:
    return _extremum(s, a, t, s.p.make("lt", a[1], a[0]), s.p.make("lt", a[0], a[1]))


def _mod(s: Sweep, y: int, a: tuple[int, ...], t: tuple[Tangent, ...]) -> Tangent:
    return s.sub(t[0], s.mul(t[1], s.p.make("floordiv", a[0], a[1])))


def _erf(s: Sweep, y: int, a: tuple[int, ...], t: tuple[Tangent, ...]) -> Tangent:
    bell = s.p.make("exp", s.p.make("neg", s.square(a[0])))
    return s.mul(s.scaled(t[0], 2 / math.sqrt(math.pi)), bell)


TANGENTS: dict[str, TangentRule] = {
    "add": lambda s, y, a, t: s.add(t[0], t[1]),
    "sub": lambda s, y, a, t: s.sub(t[0], t[1]),
    "mul": lambda s, y, a, t: s.add(s.mul(t[0], a[1]), s.mul(t[1], a[0])),
    "div": _div,
    "pow": _pow,
    "minimum": _minimum,
    "maximum": _maximum,
    "mod": _mod,
    "neg": lambda s, y, a, t: s.sub(None, t[0]),
    "abs": lambda s, y, a, t: s.mul(t[0], s.p.make("sign", a[0])),
    "exp": lambda s, y, a, t: s.mul(t[0], y),
    "exp2": lambda s, y, a, t: s.mul(s.scaled(t[0], math.log(2)), y),
    "expm1": lambda s, y, a, t: s.mul(t[0], s.p.make("exp", a[0])),
    "log": lambda s, y, a, t: s.div(t[0], a[0]),
    "log2": lambda s, y, a, t: s.div(s.scaled(t[0], 1 / math.log(2)), a[0]),
    "log1p": lambda s, y, a, t: s.div(t[0], s.p.make("add", a[0], s.p.const(1.0))),
    "sqrt": lambda s, y, a, t: s.div(s.scaled(t[0], 0.5), y),
    "rsqrt": lambda s, y, a, t: s.mul(s.scaled(t[0], -0.5), s.p.make("mul", y, s.square(y))),
    "tanh": lambda s, y, a, t: s.mul(t[0], s.one_minus(s.square(y))),
    "sigmoid": lambda s, y, a, t: s.mul(t[0], s.p.make("mul", y, s.one_minus(y))),
    "erf": _erf,
    "erfc": lambda s, y, a, t: s.sub(None, _erf(s, y, a, t)),
    "sin": lambda s, y, a, t: s.mul(t[0], s.p.make("cos", a[0])),
    "cos": lambda s, y, a, t: s.mul(s.sub(None, t[0]), s.p.make("sin", a[0])),
    "where": lambda s, y, a, t: s.where(a[0], t[1], t[2]),
    "round_f": lambda s, y, a, t: t[0],
}

ZERO_SLOPE = frozenset(("floordiv", "sign", "floor", "ceil", "trunc", "round", "to_f", "score", "const_f", "scalar", "read"))
"""Float ops whose tangent is zero unless they are the seed."""


@dataclass(frozen=True, slots=True)
class ReadGradient:
    """How one read of a captured tensor receives its gradient: results of the derivative program by name.

    ``partial`` is d(score result)/d(read); ``indices`` are the positions read. All three fields name results.
    """

    slot: int
    partial: str
    indices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Derivative:
    """A program with the results of the source plus ``dscore`` (absent: zero) and those that ``reads`` name."""

    program: Program
    reads: tuple[ReadGradient, ...]


def derivative(program: Program, slots: frozenset[int] = frozenset()) -> Derivative:
    """The derivative with respect to score and to every float read of the captured tensors in ``slots``."""
    s = Sweep(program)
    new = s.p.copy()
    root = program.result("score")
    if root is None:
        raise ValueError("a program without a score result has no derivative")
    results = [(name, new[n]) for name, n in program.results]
    slope = _tangent(s, program, new, "score", root)
    if slope is not None:
        results.append(("dscore", slope))
    reads: list[ReadGradient] = []
    for n in program.reads():
        instr = program.instrs[n]
        if int(instr.attr) not in slots or instr.kind != "f":
            continue
        partial = _tangent(s, program, new, n, root)
        if partial is not None:
            name = f"read{len(reads)}"
            indices = tuple(f"{name}.index{d}" for d in range(len(instr.args)))
            results.append((name, partial))
            results.extend(zip(indices, (new[a] for a in instr.args), strict=True))
            reads.append(ReadGradient(int(instr.attr), name, indices))
    return Derivative(simplify(s.p.finish(results)), tuple(reads))


def _tangent(s: Sweep, program: Program, new: list[int], seed: int | str, root: int) -> Tangent:
    """The tangent of ``root`` when the seed (the score leaf, or a read's id) moves by one."""
    tangents: list[Tangent] = []
    needed = program.reachable([root])
    for n, instr in enumerate(program.instrs):
        tangent: Tangent = None
        if n == seed or instr.op == seed:
            tangent = s.p.const(1.0)
        elif n in needed and instr.kind == "f" and instr.op not in ZERO_SLOPE:
            incoming = tuple(tangents[a] for a in instr.args)
            if any(t is not None for t in incoming):
                tangent = TANGENTS[instr.op](s, new[n], tuple(new[a] for a in instr.args), incoming)
        tangents.append(tangent)
    return tangents[root]
