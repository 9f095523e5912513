"""Interval arithmetic over programs: bounds of every value while the indices range over boxes.

A box is a range of b, h, q and kv; arrays of boxes are processed at once. Integers are (low, high) int64,
floats (low, high) float64 widened against rounding, bools (may be true, may be false). An operation that could
overflow, or that is not listed, gives the widest interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flexsdpa.dtypes import DTYPES
from flexsdpa.ir.program import Instr, Program
from flexsdpa.structure.ranges import ArrayRanges

Array = np.ndarray[Any, Any]
Interval = tuple[Array, Array]

LOWEST, HIGHEST = np.int64(-(2**63)), np.int64(2**63 - 1)
SAFE = float(2**61)
ANY_INT: Interval = (np.asarray(LOWEST), np.asarray(HIGHEST))
ANY_FLOAT: Interval = (np.asarray(-np.inf), np.asarray(np.inf))
ANY_BOOL: Interval = (np.asarray(True), np.asarray(True))
WIDEST = {"i": ANY_INT, "f": ANY_FLOAT, "b": ANY_BOOL}
ROUNDING = 1e-5
"""Relative widening after each float operation; fp32 rounding is 6e-8."""
TINY, HUGE = 1e-37, 1e30
"""Absolute widening against fp32 underflow; the size from which fp32 overflow is assumed possible."""


def bounds(
    program: Program,
    boxes: Mapping[str, Interval],
    arrays: Sequence[ArrayRanges | None] = (),
    scalars: Sequence[float] | None = None,
    roots: Sequence[int] | None = None,
) -> list[Interval | None]:
    """The interval of every instruction that ``roots`` need (all by default); None for the others.

    boxes: for b, h, q, kv: first and last value, inclusive, as arrays that broadcast together.
    arrays: what is known of captured tensors, by slot; a missing or None entry is unknown.
    """
    needed = program.reachable(list(roots)) if roots is not None else set(range(len(program.instrs)))
    values: list[Interval | None] = []
    with np.errstate(all="ignore"):
        for n, instr in enumerate(program.instrs):
            values.append(_step(program, instr, values, boxes, arrays, scalars) if n in needed else None)
    return values


def _step(
    program: Program,
    instr: Instr,
    values: list[Interval | None],
    boxes: Mapping[str, Interval],
    arrays: Sequence[ArrayRanges | None],
    scalars: Sequence[float] | None,
) -> Interval:
    if instr.op in boxes:
        return boxes[instr.op]
    if instr.op == "const_i":
        return _point(np.asarray(int(instr.attr), np.int64))
    if instr.op == "const_f":
        return _float_point(float(instr.attr))
    if instr.op == "const_b":
        return np.asarray(instr.attr == "True"), np.asarray(instr.attr != "True")
    if instr.op == "scalar":
        return ANY_FLOAT if scalars is None else _float_point(scalars[int(instr.attr)])
    args = [values[a] for a in instr.args]
    known = [a for a in args if a is not None]
    if len(known) != len(args):
        return WIDEST[instr.kind]
    if instr.op == "read":
        slot = int(instr.attr)
        return _read(instr.kind, arrays[slot] if slot < len(arrays) else None, known)
    if instr.op == "wrap_i":
        return _wrap(known[0], DTYPES[instr.attr].bits)
    kind = program.instrs[instr.args[-1]].kind if instr.args else "f"
    rule = RULES[kind].get(instr.op)
    return rule(*known) if rule else WIDEST[instr.kind]


def _point(value: Array) -> Interval:
    return value, value


def _float_point(value: float) -> Interval:
    return ANY_FLOAT if np.isnan(value) else _stored(np.asarray(value), np.asarray(value))


def _stored(low: Array, high: Array) -> Interval:
    """Bounds of fp64 operands as fp32 holds them: 0 stays 0, what is close to it may become 0."""
    near_zero = ((low != 0) & (np.abs(low) < 2 * TINY)) | ((high != 0) & (np.abs(high) < 2 * TINY))
    return _widen(low, high, tiny=np.where(near_zero, 2 * TINY, 0.0))


def _widen(low: Array, high: Array, tiny: float | Array = TINY) -> Interval:
    """Outward by the rounding bound. Bounds that fp32 may overflow become infinite; a nan makes all unknown."""
    bad = np.isnan(low) | np.isnan(high)
    low = np.where(bad | (low < -HUGE), -np.inf, low - np.abs(np.where(np.isinf(low), 0, low)) * ROUNDING - tiny)
    high = np.where(bad | (high > HUGE), np.inf, high + np.abs(np.where(np.isinf(high), 0, high)) * ROUNDING + tiny)
    return low, high


def _may_be_nan(x: Interval) -> Array:
    """An interval without bounds on either side is the only one that may hide a nan."""
    hidden: Array = np.isinf(x[0]) & np.isinf(x[1]) & (x[0] != x[1])
    return hidden


def _unless_nan(rule: Callable[..., Interval]) -> Callable[..., Interval]:
    """For float ops that could make a bounded interval out of one that hides a nan."""

    def guarded(*args: Interval) -> Interval:
        low, high = rule(*args)
        hidden = np.zeros((), bool)
        for x in args:
            hidden = hidden | _may_be_nan(x)
        return np.where(hidden, -np.inf, low), np.where(hidden, np.inf, high)

    return guarded


def _read(kind: str, ranges: ArrayRanges | None, indices: list[Interval]) -> Interval:
    answer = ranges.query(indices) if ranges is not None else None
    if answer is None:
        return WIDEST[kind]
    (low, high), answerable = answer
    if kind == "b":
        return (high > 0) | ~answerable, (low == 0) | ~answerable
    if kind == "i":
        widest = ANY_INT
        return np.where(answerable, low.astype(np.int64), widest[0]), np.where(answerable, high.astype(np.int64), widest[1])
    low, high = _stored(low.astype(np.float64), high.astype(np.float64))
    return np.where(answerable, low, -np.inf), np.where(answerable, high, np.inf)


def _int_result(*candidates: tuple[Array, Array]) -> Interval:
    """The hull of candidate values, given as (exact int64, float64 estimate) pairs; unknown where any may overflow."""
    safe = np.ones((), bool)
    for _, estimate in candidates:
        safe = safe & (np.abs(estimate) < SAFE)
    low = high = candidates[0][0]
    for value, _ in candidates[1:]:
        low, high = np.minimum(low, value), np.maximum(high, value)
    return np.where(safe, low, LOWEST), np.where(safe, high, HIGHEST)


def _pair(function: Callable[[Any, Any], Any], x: Array, y: Array) -> tuple[Array, Array]:
    return function(x, y), function(np.asarray(x, np.float64), np.asarray(y, np.float64))


def _int_add(x: Interval, y: Interval) -> Interval:
    return _int_result(_pair(np.add, x[0], y[0]), _pair(np.add, x[1], y[1]))


def _int_sub(x: Interval, y: Interval) -> Interval:
    return _int_result(_pair(np.subtract, x[0], y[1]), _pair(np.subtract, x[1], y[0]))


def _int_mul(x: Interval, y: Interval) -> Interval:
    return _int_result(*(_pair(np.multiply, a, b) for a in x for b in y))


def _int_neg(x: Interval) -> Interval:
    return _int_sub(_point(np.asarray(0, np.int64)), x)


def _int_abs(x: Interval) -> Interval:
    unsafe = (x[0] < -(2**61)) | (x[1] > 2**61)
    size = np.maximum(np.abs(x[0]), np.abs(x[1]))
    least = np.where((x[0] <= 0) & (x[1] >= 0), 0, np.minimum(np.abs(x[0]), np.abs(x[1])))
    return np.where(unsafe, LOWEST, least), np.where(unsafe, HIGHEST, size)


def _int_floordiv(x: Interval, y: Interval) -> Interval:
    through_zero = (y[0] <= 0) & (y[1] >= 0)
    divisors = [np.where(through_zero, 1, d) for d in y]
    quotients = [np.floor_divide(a, d) for a in x for d in divisors]
    low, high = np.minimum.reduce(np.broadcast_arrays(*quotients)), np.maximum.reduce(np.broadcast_arrays(*quotients))
    unsafe = through_zero | (x[0] < -(2**61)) | (x[1] > 2**61)
    return np.where(unsafe, LOWEST, low), np.where(unsafe, HIGHEST, high)


def _int_mod(x: Interval, y: Interval) -> Interval:
    positive = y[0] > 0
    divisor = np.where(positive, y[0], 1)
    one_period = positive & (y[0] == y[1]) & (np.floor_divide(x[0], divisor) == np.floor_divide(x[1], divisor))
    low = np.where(one_period, np.mod(x[0], divisor), 0)
    high = np.where(one_period, np.mod(x[1], divisor), y[1] - 1)
    return np.where(positive, low, LOWEST), np.where(positive, high, HIGHEST)


def _int_and(x: Interval, y: Interval) -> Interval:
    both = (x[0] >= 0) & (y[0] >= 0)
    return np.where(both, 0, LOWEST), np.where(both, np.minimum(x[1], y[1]), HIGHEST)


def _extreme(function: Any) -> Callable[[Interval, Interval], Interval]:
    return lambda x, y: (function(x[0], y[0]), function(x[1], y[1]))


def _sign(x: Interval) -> Interval:
    return np.sign(x[0]), np.sign(x[1])


def _wrap(x: Interval, bits: int) -> Interval:
    low, high = (0, 255) if bits == 8 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    fits = (x[0] >= (0 if bits == 8 else low)) & (x[1] <= (127 if bits == 8 else high))
    wide_low = -128 if bits == 8 else low  # i8 and u8 share this rule
    return np.where(fits, x[0], wide_low), np.where(fits, x[1], high)


def _eq(x: Interval, y: Interval) -> Interval:
    may = (x[0] <= y[1]) & (y[0] <= x[1])
    same = (x[0] == x[1]) & (y[0] == y[1]) & (x[0] == y[0])
    return may, ~same


def _ne(x: Interval, y: Interval) -> Interval:
    return _eq(x, y)[::-1]


def _lt(x: Interval, y: Interval) -> Interval:
    return x[0] < y[1], x[1] >= y[0]


def _le(x: Interval, y: Interval) -> Interval:
    return x[0] <= y[1], x[1] > y[0]


def _float_compare(rule: Callable[[Interval, Interval], Interval]) -> Callable[[Interval, Interval], Interval]:
    """An unbounded float interval may hide a nan: then both answers are possible."""

    def compare(x: Interval, y: Interval) -> Interval:
        hidden = _may_be_nan(x) | _may_be_nan(y)
        may, may_not = rule(x, y)
        return may | hidden, may_not | hidden

    return compare


def _where(cond: Interval, x: Interval, y: Interval) -> Interval:
    yes, no = cond
    low = np.where(yes & no, np.minimum(x[0], y[0]), np.where(yes, x[0], y[0]))
    high = np.where(yes & no, np.maximum(x[1], y[1]), np.where(yes, x[1], y[1]))
    return low, high


def _where_bool(cond: Interval, x: Interval, y: Interval) -> Interval:
    yes, no = cond
    return (yes & x[0]) | (no & y[0]), (yes & x[1]) | (no & y[1])


def _and(x: Interval, y: Interval) -> Interval:
    return x[0] & y[0], x[1] | y[1]


def _or(x: Interval, y: Interval) -> Interval:
    return x[0] | y[0], x[1] & y[1]


def _xor(x: Interval, y: Interval) -> Interval:
    return (x[0] & y[1]) | (x[1] & y[0]), (x[0] & y[0]) | (x[1] & y[1])


def _float_binary(function: Any, *, crossed: bool = False) -> Callable[[Interval, Interval], Interval]:
    def rule(x: Interval, y: Interval) -> Interval:
        return _widen(function(x[0], y[1] if crossed else y[0]), function(x[1], y[0] if crossed else y[1]))

    return rule


def _float_mul(x: Interval, y: Interval) -> Interval:
    products = np.broadcast_arrays(*(a * b for a in x for b in y))
    return _widen(np.minimum.reduce(products), np.maximum.reduce(products))


def _float_abs(x: Interval) -> Interval:
    through_zero = (x[0] <= 0) & (x[1] >= 0)
    return np.where(through_zero, 0.0, np.minimum(np.abs(x[0]), np.abs(x[1]))), np.maximum(np.abs(x[0]), np.abs(x[1]))


def _to_i(x: Interval) -> Interval:
    safe = (np.abs(x[0]) < SAFE) & (np.abs(x[1]) < SAFE)
    low, high = (np.trunc(np.where(safe, v, 0)).astype(np.int64) for v in x)
    return np.where(safe, low, LOWEST), np.where(safe, high, HIGHEST)


INT_RULES: dict[str, Callable[..., Interval]] = {
    "add": _int_add, "sub": _int_sub, "mul": _int_mul, "neg": _int_neg, "abs": _int_abs, "sign": _sign,
    "minimum": _extreme(np.minimum), "maximum": _extreme(np.maximum), "floordiv": _int_floordiv, "mod": _int_mod,
    "and": _int_and, "not": lambda x: (~x[1], ~x[0]), "where": _where,
    "eq": _eq, "ne": _ne, "lt": _lt, "le": _le,
    "to_f": lambda x: _widen(x[0].astype(np.float64), x[1].astype(np.float64), tiny=0.0),
    "to_b": lambda x: _ne(x, _point(np.asarray(0, np.int64))),
}  # fmt: skip

FLOAT_RULES: dict[str, Callable[..., Interval]] = {
    "add": _float_binary(np.add), "sub": _float_binary(np.subtract, crossed=True), "mul": _float_mul,
    "abs": _unless_nan(_float_abs), "neg": lambda x: (-x[1], -x[0]),
    "floor": lambda x: (np.floor(x[0]), np.floor(x[1])), "where": _where,
    "minimum": _unless_nan(_extreme(np.minimum)), "maximum": _unless_nan(_extreme(np.maximum)), "to_i": _to_i,
    "lt": _float_compare(_lt), "le": _float_compare(_le),
    "eq": _float_compare(lambda x, y: (_eq(x, y)[0], np.ones((), bool))),
    "ne": _float_compare(lambda x, y: (np.ones((), bool), _eq(x, y)[0])),
}  # fmt: skip

BOOL_RULES: dict[str, Callable[..., Interval]] = {
    "and": _and, "or": _or, "xor": _xor, "not": lambda x: (x[1], x[0]), "where": _where_bool,
    "eq": lambda x, y: _xor(x, y)[::-1], "ne": _xor,
    "to_i": lambda x: (np.where(x[1], 0, 1).astype(np.int64), np.where(x[0], 1, 0).astype(np.int64)),
    "to_f": lambda x: (np.where(x[1], 0.0, 1.0), np.where(x[0], 1.0, 0.0)),
}  # fmt: skip

RULES: dict[str, dict[str, Callable[..., Interval]]] = {"i": INT_RULES, "f": FLOAT_RULES, "b": BOOL_RULES}
