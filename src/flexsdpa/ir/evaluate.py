"""The NumPy interpreter: the definition of every op."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flexsdpa.dtypes import DTYPES
from flexsdpa.errors import ReadError
from flexsdpa.ir.program import Instr, Program

Array = np.ndarray[Any, Any]

_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])

INTEGER_NAMES = {"u8": np.uint8, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64}


def _int_floordiv(x: Array, y: Array) -> Array:
    return np.where(y == 0, 0, np.floor_divide(x, np.where(y == 0, 1, y)))


def _int_mod(x: Array, y: Array) -> Array:
    return np.where(y == 0, 0, np.mod(x, np.where(y == 0, 1, y)))


def _floordiv(x: Array, y: Array) -> Array:
    x, y = np.asarray(x), np.asarray(y)
    quotient: Array = np.where(y == 0, np.divide(x, y), np.floor_divide(x, np.where(y == 0, 1, y)))
    return quotient


def _minimum(x: Array, y: Array) -> Array:
    both_zero = (x == 0) & (y == 0)
    return np.where(both_zero, np.where(np.signbit(x) | np.signbit(y), -0.0, 0.0), np.minimum(x, y))


def _maximum(x: Array, y: Array) -> Array:
    return -_minimum(np.negative(x), np.negative(y))


def _shl(x: Array, y: Array) -> Array:
    inside = (y >= 0) & (y < 64)
    return np.where(inside, np.left_shift(x, np.where(inside, y, 0)), 0)


def _shr(x: Array, y: Array) -> Array:
    return np.right_shift(x, np.where((y >= 0) & (y < 64), y, 63))


def _sigmoid(x: Array) -> Array:
    t = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + t), t / (1 + t))


def _round_to(x: Array, name: str) -> Array:
    if name == "bf16":  # NumPy has no bfloat16: round the fp32 bits to nearest even
        single = x.astype(np.float32)
        single = np.where(np.abs(single) > np.abs(x), np.nextafter(single, np.float32(0)), single)  # towards zero,
        bits = single.view(np.uint32).astype(np.uint64) | (single != x)  # with a last bit that remembers what was cut
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        return np.where(np.isnan(x), np.nan, rounded).astype(x.dtype)
    return x.astype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[name]).astype(x.dtype)


FLOAT_OPS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power,
    "minimum": _minimum, "maximum": _maximum, "neg": np.negative, "abs": np.abs,
    "sign": lambda x: np.where(np.isnan(x), 0, np.sign(x)),
    "floordiv": _floordiv, "mod": lambda x, y: np.where(y == 0, np.nan, np.mod(x, y)),
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log1p": np.log1p,
    "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "tanh": np.tanh, "sigmoid": _sigmoid,
    "erf": lambda x: _erf(x).astype(x.dtype), "erfc": lambda x: _erfc(x).astype(x.dtype), "sin": np.sin, "cos": np.cos,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "where": np.where, "to_i": lambda x: np.trunc(x).astype(np.int64), "to_b": lambda x: x != 0,
}  # fmt: skip

INTEGER_OPS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "abs": np.abs, "sign": np.sign,
    "minimum": np.minimum, "maximum": np.maximum, "floordiv": _int_floordiv, "mod": _int_mod,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.bitwise_not, "shl": _shl, "shr": _shr,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "where": np.where, "to_b": lambda x: x != 0,
}  # fmt: skip

BOOL_OPS: dict[str, Callable[..., Any]] = {
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not,
    "eq": np.equal, "ne": np.not_equal, "where": np.where, "to_i": lambda x: np.asarray(x).astype(np.int64),
}  # fmt: skip

OPS_BY_KIND = {"f": FLOAT_OPS, "i": INTEGER_OPS, "b": BOOL_OPS}


def evaluate(
    program: Program,
    inputs: Mapping[str, Any],
    arrays: Sequence[Any] = (),
    scalars: Sequence[float] = (),
    *,
    work: Any = np.float64,
    strict: bool = False,
) -> dict[str, Array]:
    """Runs a program on NumPy arrays that broadcast together; returns its results by name.

    inputs: ``score`` (float) and ``b``, ``h``, ``q``, ``kv`` (integers), whichever the program uses.
    arrays, scalars: the operands, by slot. work: np.float64 or np.float32, the working precision.
    strict: a read out of range raises ReadError; otherwise the index is clamped into range.
    """
    values: list[Any] = []
    with np.errstate(all="ignore"):
        for instr in program.instrs:
            values.append(_step(instr, values, program, inputs, arrays, scalars, work, strict))
    return {name: np.asarray(values[n]) for name, n in program.results}


def _step(
    instr: Instr,
    values: list[Any],
    program: Program,
    inputs: Mapping[str, Any],
    arrays: Sequence[Any],
    scalars: Sequence[float],
    work: Any,
    strict: bool,
) -> Any:
    op, args = instr.op, [values[a] for a in instr.args]
    if op == "score":
        return np.asarray(inputs["score"], dtype=work)
    if op in ("b", "h", "q", "kv"):
        return np.asarray(inputs[op], dtype=np.int64)
    if op == "const_f":
        return np.asarray(float(instr.attr), dtype=work)
    if op == "const_i":
        return np.asarray(int(instr.attr), dtype=np.int64)
    if op == "const_b":
        return np.asarray(instr.attr == "True")
    if op == "scalar":
        return np.asarray(scalars[int(instr.attr)], dtype=work)
    if op == "read":
        return _read(np.asarray(arrays[int(instr.attr)]), args, DTYPES[program.arrays[int(instr.attr)].dtype].kind, work, strict)
    if op == "to_f":
        return np.asarray(args[0]).astype(work)
    if op == "round_f":
        return _round_to(np.asarray(args[0]), instr.attr)
    if op == "wrap_i":
        return np.asarray(args[0]).astype(INTEGER_NAMES[instr.attr]).astype(np.int64)
    kind = program.instrs[instr.args[-1]].kind
    result = OPS_BY_KIND[kind][op](*args)
    return np.asarray(result, dtype=work) if instr.kind == "f" else result


def _read(array: Array, indices: list[Any], kind: str, work: Any, strict: bool) -> Array:
    places = []
    for index, size in zip(indices, array.shape, strict=True):
        outside = (index < -size) | (index >= size)
        if strict and bool(np.any(outside)):
            raise ReadError(f"index {int(np.asarray(index)[outside].flat[0])} of a dimension of size {size}")
        places.append(np.clip(np.where(index < 0, index + size, index), 0, max(size - 1, 0)))
    if array.size == 0:
        shape = np.broadcast_shapes(*[np.shape(p) for p in places])
        array, places = np.zeros((1,) * array.ndim, array.dtype), [np.zeros(shape, np.int64)] * array.ndim
    value = array[tuple(places)] if places else array
    return np.asarray(value).astype({"f": work, "i": np.int64, "b": np.bool_}[kind])
