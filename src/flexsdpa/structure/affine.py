"""Integer expressions as sums: constant + coefficients of b, h, q, kv + other values."""

from __future__ import annotations

from dataclasses import dataclass

from flexsdpa.ir.program import Program

Terms = dict[int, int]


@dataclass(frozen=True, slots=True)
class Affine:
    """``const + q * q_idx + kv * kv_idx + sum(coefficient * value)``. ``terms``: value id -> coefficient.

    Terms hold whatever is not q or kv: b, h, reads, quotients. A term may itself depend on q or kv.
    """

    const: int
    q: int
    kv: int
    terms: tuple[tuple[int, int], ...]

    def plus(self, other: Affine, sign: int = 1) -> Affine:
        terms = dict(self.terms)
        for n, coefficient in other.terms:
            terms[n] = terms.get(n, 0) + sign * coefficient
        kept = tuple(sorted((n, c) for n, c in terms.items() if c))
        return Affine(self.const + sign * other.const, self.q + sign * other.q, self.kv + sign * other.kv, kept)

    def times(self, factor: int) -> Affine:
        terms = tuple((n, c * factor) for n, c in self.terms if c * factor)
        return Affine(self.const * factor, self.q * factor, self.kv * factor, terms)

    def shifted(self, by: int) -> Affine:
        return Affine(self.const + by, self.q, self.kv, self.terms)

    def without_positions(self) -> Affine:
        """The part that is neither q nor kv."""
        return Affine(self.const, 0, 0, self.terms)


LARGEST = 1 << 61
"""Integers wrap at 64 bits and sums do not: larger constants and coefficients have no affine form."""


def affine(program: Program, n: int) -> Affine:
    """The affine form of integer value n; the value itself as one term where nothing better is known.

    Positions, and captured integers, are taken to be smaller than 2**61 in size.
    """
    try:
        return _sum(program, n)
    except OverflowError:
        return Affine(0, 0, 0, ((n, 1),))


def _sum(program: Program, n: int) -> Affine:
    form = _terms(program, n)
    if any(abs(x) >= LARGEST for x in (form.const, form.q, form.kv, *(c for _, c in form.terms))):
        raise OverflowError
    return form


def _terms(program: Program, n: int) -> Affine:
    instr = program.instrs[n]
    if instr.op == "const_i":
        return Affine(int(instr.attr), 0, 0, ())
    if instr.op in ("q", "kv"):
        return Affine(0, int(instr.op == "q"), int(instr.op == "kv"), ())
    if instr.op in ("add", "sub"):
        x, y = (_sum(program, a) for a in instr.args)
        return x.plus(y, 1 if instr.op == "add" else -1)
    if instr.op == "neg":
        return _sum(program, instr.args[0]).times(-1)
    if instr.op == "mul":
        for mine, other in ((0, 1), (1, 0)):
            factor = program.instrs[instr.args[mine]]
            if factor.op == "const_i":
                return _sum(program, instr.args[other]).times(int(factor.attr))
    return Affine(0, 0, 0, ((n, 1),))


def bound_text(program: Program, bound: Affine, texts: list[str]) -> str:
    """``t0[b] + 3`` for people. texts: the pretty text of every value."""
    parts = []
    for n, coefficient in bound.terms:
        sign = "-" if coefficient < 0 else "+"
        size = "" if abs(coefficient) == 1 else f"{abs(coefficient)} * "
        parts.append((sign, f"{size}{texts[n]}"))
    if bound.const or not parts:
        parts.append(("-" if bound.const < 0 else "+", str(abs(bound.const))))
    head_sign, head = parts[0]
    return ("-" if head_sign == "-" else "") + head + "".join(f" {sign} {text}" for sign, text in parts[1:])
