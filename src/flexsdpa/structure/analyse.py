"""Program -> Structure: the mask as a conjunction of clauses that kernels have a native form for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flexsdpa.ir.ops import OPS
from flexsdpa.ir.pretty import value_texts
from flexsdpa.ir.program import Program
from flexsdpa.structure.affine import Affine, affine, bound_text


@dataclass(frozen=True, slots=True)
class Band:
    """``lower <= kv - q <= upper``; None is open. Causal is upper = 0; a window of w keys back is lower = -w."""

    lower: Affine | None = None
    upper: Affine | None = None


@dataclass(frozen=True, slots=True)
class Positions:
    """``lower <= axis < upper`` with axis ``kv`` or ``q``: padding by length, a prefix, a dead tail. None is open."""

    axis: str
    lower: Affine | None = None
    upper: Affine | None = None


@dataclass(frozen=True, slots=True)
class SameGroup:
    """``f(q) == f(kv)``: one document, one chunk. slot: the captured tensor that f reads, None for index arithmetic."""

    slot: int | None
    q_value: int
    kv_value: int


@dataclass(frozen=True, slots=True)
class OneAxis:
    """A condition on ``kv`` alone or on ``q`` alone (and b, h): a padding mask."""

    axis: str
    value: int


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one clause holds: a prefix, or causal."""

    clauses: tuple[Clause, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A condition that none of the above describes. ``value`` is its id in the program."""

    value: int


Clause = Band | Positions | SameGroup | OneAxis | AnyOf | Unknown


@dataclass(frozen=True, slots=True)
class Structure:
    """All clauses hold where attention is allowed. No clauses: full attention."""

    clauses: tuple[Clause, ...]

    @property
    def known(self) -> bool:
        """Whether every part of the mask was recognised."""
        return not any(_has_unknown(clause) for clause in self.clauses)

    @property
    def full(self) -> bool:
        return not self.clauses

    def band(self) -> tuple[int | None, int | None]:
        """(lower, upper) of kv - q from the constant bands: (None, 0) is causal, (-127, 0) a causal window of 128 keys."""
        lowers = [c.lower.const for c in self.clauses if isinstance(c, Band) and c.lower and not c.lower.terms]
        uppers = [c.upper.const for c in self.clauses if isinstance(c, Band) and c.upper and not c.upper.terms]
        return max(lowers, default=None), min(uppers, default=None)


def analyse(program: Program) -> Structure:
    """The structure of a simplified program's mask."""
    keep = program.result("keep")
    if keep is None:
        return Structure(())
    depends = program.depends()
    return Structure(tuple(_merge_bands(list(_clauses(program, keep, depends)))))


def _clauses(program: Program, n: int, depends: list[frozenset[str]]) -> Iterator[Clause]:
    instr = program.instrs[n]
    if instr.op == "and" and instr.kind == "b":
        for a in instr.args:
            yield from _clauses(program, a, depends)
    elif instr.op == "or":
        sides = [tuple(_clauses(program, a, depends)) for a in instr.args]
        if all(len(side) == 1 and not isinstance(side[0], Unknown) for side in sides):
            parts = [part for side in sides for part in (side[0].clauses if isinstance(side[0], AnyOf) else side)]
            yield AnyOf(tuple(parts))
        else:
            yield _one_axis(n, depends)
    elif instr.op in ("le", "lt") and program.instrs[instr.args[0]].kind == "i":
        yield from _inequality(program, n, depends)
    elif instr.op == "eq" and (group := _same_group(program, instr.args)) is not None:
        yield group
    else:
        yield _one_axis(n, depends)


def _inequality(program: Program, n: int, depends: list[frozenset[str]]) -> Iterator[Clause]:
    """x <= y or x < y on integers; also abs(x) <= y."""
    instr = program.instrs[n]
    left, right = instr.args
    strict = int(instr.op == "lt")
    x, y = program.instrs[left], affine(program, right)
    sides = [affine(program, left)]
    if x.op == "abs":
        inner = affine(program, x.args[0])
        sides = [inner, inner.times(-1)]
    clauses = [_half_plane(side.plus(y, -1).shifted(strict), depends) for side in sides]
    if any(clause is None for clause in clauses):
        yield _one_axis(n, depends)
    else:
        yield from (clause for clause in clauses if clause is not None)


def _half_plane(d: Affine, depends: list[frozenset[str]]) -> Clause | None:
    """The clause ``d <= 0``, when q and kv only appear with coefficients that a clause has."""
    if any(depends[n] & {"q", "kv", "score"} for n, _ in d.terms):
        return None
    rest = d.without_positions()
    match (d.q, d.kv):
        case (-1, 1):
            return Band(upper=rest.times(-1))
        case (1, -1):
            return Band(lower=rest)
        case (0, 1):
            return Positions("kv", upper=rest.times(-1).shifted(1))
        case (0, -1):
            return Positions("kv", lower=rest)
        case (1, 0):
            return Positions("q", upper=rest.times(-1).shifted(1))
        case (-1, 0):
            return Positions("q", lower=rest)
    return None


def _one_axis(n: int, depends: list[frozenset[str]]) -> Clause:
    axes = depends[n] & {"q", "kv", "score"}
    return OneAxis(next(iter(axes)), n) if len(axes) == 1 and "score" not in axes else Unknown(n)


def _same_group(program: Program, args: tuple[int, ...]) -> SameGroup | None:
    """f(q) == f(kv): one side is the other with q and kv exchanged."""
    depends = program.depends()
    sides = [depends[a] & {"q", "kv", "score"} for a in args]
    if sides == [{"kv"}, {"q"}]:
        args, sides = args[::-1], sides[::-1]
    if sides != [{"q"}, {"kv"}] or not _equal_but_for_axis(program, *args):
        return None
    slots = {int(program.instrs[n].attr) for n in program.reachable([args[0]]) if program.instrs[n].op == "read"}
    return SameGroup(min(slots, default=None), *args)


def _equal_but_for_axis(program: Program, x: int, y: int) -> bool:
    a, b = program.instrs[x], program.instrs[y]
    if (a.op, b.op) == ("q", "kv") or x == y:
        return True
    if (a.op, a.attr, len(a.args)) != (b.op, b.attr, len(b.args)):
        return False
    orders = (b.args, b.args[::-1]) if OPS[b.op].commutative else (b.args,)
    return bool(a.args) and any(
        all(_equal_but_for_axis(program, m, n) for m, n in zip(a.args, order, strict=True)) for order in orders
    )


def _merge_bands(clauses: list[Clause]) -> Iterator[Clause]:
    """One lower-only and one upper-only band make a two-sided one."""
    lower = next((c for c in clauses if isinstance(c, Band) and c.upper is None), None)
    upper = next((c for c in clauses if isinstance(c, Band) and c.lower is None), None)
    if lower is None or upper is None:
        yield from clauses
        return
    for clause in clauses:
        if clause is upper:
            yield Band(lower.lower, upper.upper)
        elif clause is not lower:
            yield clause


def _has_unknown(clause: Clause) -> bool:
    return isinstance(clause, Unknown) or (isinstance(clause, AnyOf) and any(_has_unknown(c) for c in clause.clauses))


def describe(program: Program, structure: Structure) -> list[str]:
    """One line a clause, for people."""
    texts = value_texts(program)
    return [_describe(program, clause, texts) for clause in structure.clauses] or ["full (no mask)"]


def _describe(program: Program, clause: Clause, texts: list[str]) -> str:
    def text(bound: Affine) -> str:
        return bound_text(program, bound, texts)

    match clause:
        case Band(None, Affine() as upper):
            return "causal" if upper == ZERO else f"causal, offset {text(upper)}"
        case Band(Affine() as lower, None):
            return f"window: kv_idx - q_idx >= {text(lower)}"
        case Band(Affine() as lower, Affine() as upper):
            return f"window: {text(lower)} <= kv_idx - q_idx <= {text(upper)}"
        case Positions(axis, lower, upper):
            name = f"{axis}_idx"
            head = "padding" if axis == "kv" else "queries"
            return f"{head}: " + (f"{name} < {text(upper)}" if upper is not None else f"{name} >= {text(lower or ZERO)}")
        case SameGroup(slot, q_value, kv_value):
            return f"same {'document' if slot is not None else 'chunk'}: {texts[q_value]} == {texts[kv_value]}"
        case OneAxis(axis, value):
            return f"{'key' if axis == 'kv' else 'query'} condition: {texts[value]}"
        case AnyOf(parts):
            prefix = any(isinstance(p, Positions) and p.axis == "kv" and p.upper is not None for p in parts)
            body = " or ".join(_describe(program, part, texts) for part in parts)
            return f"prefix: {body}" if prefix else body
        case Unknown(value):
            return f"unknown: {texts[value]}"
    raise AssertionError(clause)


ZERO = Affine(0, 0, 0, ())
