"""The functions that a mod may call on traced values, by name.

One table serves ``torch.tanh(x)``, ``x.tanh()`` and ``flexsdpa.ops.tanh(x)``. A function takes the recorder and
the arguments; names are torch's.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from typing import Any

from flexsdpa.dtypes import DTYPES
from flexsdpa.errors import TraceError
from flexsdpa.trace.recorder import Recorder

Function = Callable[..., Any]


def where(r: Recorder, condition: Any, input: Any = None, other: Any = None) -> Any:
    c = r.lift(condition)
    if input is None or other is None:
        raise r.error("where() with one argument", "give both values: where(cond, a, b)")
    if r.builder.kinds[c] != "b":
        raise r.error("where() with a condition that is not boolean", "compare first: where(x != 0, a, b)")
    a, b = r.promoted(r.lift(input), r.lift(other))
    return r.value(r.op("where", c, a, b))


def clamp(r: Recorder, x: Any, min: Any = None, max: Any = None) -> Any:
    """Gradient 1 at the bounds, as torch.clamp: floats select, integers use maximum and minimum."""
    for bound, low in ((min, True), (max, False)):
        if bound is None:
            continue
        a, b = r.promoted(r.lift(x), r.lift(bound))
        if r.builder.kinds[a] == "f":
            beyond = r.op("lt", a, b) if low else r.op("lt", b, a)
            x = r.value(r.op("where", beyond, b, a))
        else:
            x = r.arithmetic("maximum" if low else "minimum", r.value(a), r.value(b))
    return x


def add(r: Recorder, x: Any, y: Any, alpha: Any = 1) -> Any:
    return r.arithmetic("add", x, y if _is_one(alpha) else r.arithmetic("mul", y, alpha))


def sub(r: Recorder, x: Any, y: Any, alpha: Any = 1) -> Any:
    return r.arithmetic("sub", x, y if _is_one(alpha) else r.arithmetic("mul", y, alpha))


def _is_one(alpha: Any) -> bool:
    return isinstance(alpha, int) and alpha == 1


def div(r: Recorder, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return r.arithmetic("floordiv", x, y)
    if rounding_mode == "trunc":
        a, b = r.promoted(r.lift(x), r.lift(y))
        if r.builder.kinds[a] == "f":
            return r.floats("trunc", r.floats("div", x, y))
        a, b = r.cast(a, "i"), r.cast(b, "i")
        rounded_down, beyond = r.op("floordiv", a, b), _rounded_away(r, a, b)
        return r.value(r.op("where", beyond, r.op("add", rounded_down, r.lift(1)), rounded_down))
    if rounding_mode is not None:
        raise r.error(f"div() with rounding_mode={rounding_mode!r}", "use 'floor', 'trunc' or None")
    return r.floats("div", x, y)


def fmod(r: Recorder, x: Any, y: Any) -> Any:
    """The remainder with the sign of x. Its slope is 1 at 0 too, hence no sign() and no abs() of x."""
    a, b = r.promoted(r.lift(x), r.lift(y))
    if r.builder.kinds[a] != "f":
        a, b = r.cast(a, "i"), r.cast(b, "i")
        rest = r.op("mod", a, b)
        return r.value(r.op("where", _rounded_away(r, a, b), r.op("sub", rest, b), rest))
    size, negative = r.op("abs", b), r.op("lt", a, r.lift(0.0))
    rest = r.op("mod", r.op("where", negative, r.op("neg", a), a), size)
    return r.value(r.op("where", negative, r.op("neg", rest), rest))


def _rounded_away(r: Recorder, x: int, y: int) -> int:
    """Whether the integer quotient x // y lies further from 0 than x / y."""
    zero = r.lift(0)
    other_sign = r.op("ne", r.op("lt", x, zero), r.op("lt", y, zero))
    return r.op("and", r.op("ne", r.op("mod", x, y), zero), other_sign)


def power(r: Recorder, x: Any, exponent: Any) -> Any:
    """Small integer exponents are products, as exact as x * x; the rest is pow of floats."""
    base = r.lift(x)
    base = r.cast(base, "i") if r.builder.kinds[base] == "b" else base
    static_int = isinstance(exponent, int) and not isinstance(exponent, bool) and r.frontend.is_static(exponent)
    if static_int and 1 <= exponent <= 8:
        product = base
        for _ in range(exponent - 1):
            product = r.op("mul", product, base)
        return r.value(product)
    if r.builder.kinds[base] == "i" and r.builder.kinds[r.lift(exponent)] == "i":
        if static_int and exponent == 0:
            return r.value(r.lift(1))
        shown = repr(exponent)[:20] if static_int else "n"
        raise r.error(f"an integer to the power {shown}", "use exponents 0 to 8, or make the base a float: x.float() ** n")
    return r.floats("pow", x, exponent)


def _kind_keeping(op: str) -> Function:
    """neg, abs, sign: on integers and floats alike."""

    def function(r: Recorder, x: Any) -> Any:
        n = r.lift(x)
        n = r.cast(n, "i") if r.builder.kinds[n] == "b" else n
        return r.value(r.op(op, n))

    return function


def _rounding(op: str) -> Function:
    """floor, ceil, trunc, round: integers are already whole."""

    def function(r: Recorder, x: Any, decimals: int = 0) -> Any:
        if decimals != 0:
            raise r.error("round() to decimals", "scale first: (x * 100).round() / 100")
        n = r.lift(x)
        return r.value(n if r.builder.kinds[n] != "f" else r.op(op, n))

    return function


def logical_not(r: Recorder, x: Any) -> Any:
    return r.value(r.op("not", r.cast(r.lift(x), "b")))


def bitwise_not(r: Recorder, x: Any) -> Any:
    n = r.lift(x)
    if r.builder.kinds[n] == "f":
        raise r.error("`~` of a float", "compare first: ~(score > 0)")
    return r.value(r.op("not", n))


def _logical(op: str) -> Function:
    def function(r: Recorder, x: Any, y: Any) -> Any:
        return r.value(r.op(op, r.cast(r.lift(x), "b"), r.cast(r.lift(y), "b")))

    return function


def shift(r: Recorder, op: str, x: Any, y: Any) -> Any:
    a, b = r.cast(r.lift(x), "i"), r.cast(r.lift(y), "i")
    return r.value(r.op(op, a, b))


def cast_to(r: Recorder, x: Any, dtype: Any) -> Any:
    """x as another dtype: floats are rounded once, integers wrapped; arithmetic goes on in the working precision."""
    name = r.frontend.dtype_name(dtype)
    if name is None:
        raise r.error(f"a cast to {dtype}", f"use one of {', '.join(DTYPES)}")
    return cast_named(r, x, name)


def to(r: Recorder, x: Any, *args: Any, **options: Any) -> Any:
    """``x.to(dtype)``, ``x.to(device)``, ``x.to(other)``: only the dtype has an effect."""
    for value in (*args, options.get("dtype"), options.get("other")):
        if value is None or isinstance(value, bool) or r.frontend.is_device(value):
            continue
        if getattr(value, "_recorder", None) is not None:
            return r.value(r.cast(r.lift(x), value._kind))
        return cast_to(r, x, value.dtype if r.frontend.array_dtype(value) is not None else value)
    return x


def _cast(name: str) -> Function:
    return lambda r, x, **_: cast_named(r, x, name)


def cast_named(r: Recorder, x: Any, name: str) -> Any:
    n = r.cast(r.lift(x), DTYPES[name].kind)
    special = r.builder.lines[n].startswith("const_f ")  # 0, 1, inf, ... are themselves in every dtype
    if DTYPES[name].kind == "f" and name != "f64" and not special:
        n = r.op("round_f", n, attr=name)
    if DTYPES[name].kind == "i" and name != "i64":
        n = r.op("wrap_i", n, attr=name)
    return r.value(n)


def full_like(r: Recorder, x: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Any:
    if dtype is not None:
        return cast_to(r, fill_value, dtype)
    return r.value(r.cast(r.lift(fill_value), r.builder.kinds[r.lift(x)]))


def new_full(r: Recorder, x: Any, size: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Any:
    """``x.new_full((), value)``: a constant. Sizes other than () are not single values."""
    if len(size):
        raise r.error(f"a new tensor of shape {tuple(size)}", "a mod computes one value per position: use shape ()")
    return full_like(r, x, fill_value, dtype)


def masked_fill(r: Recorder, x: Any, mask: Any, value: Any) -> Any:
    return where(r, mask, value, x)


def read(r: Recorder, table: Any, *indices: Any) -> Any:
    """``table[indices]``: for code that must not depend on a framework's indexing."""
    return r.value(r.read(table, indices)) if len(indices) == table.ndim else _partial(r, table, indices)


def _partial(r: Recorder, table: Any, indices: tuple[Any, ...]) -> Any:
    return PartialRead(r, table, indices)


def embedding(r: Recorder, x: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: Any = 2.0,
              scale_grad_by_freq: Any = False, sparse: Any = False) -> Any:  # fmt: skip
    """torch.nn.functional.embedding(index, weight): a row, to be indexed further."""
    given = {"padding_idx": padding_idx, "max_norm": max_norm, "scale_grad_by_freq": scale_grad_by_freq or None}
    for name, value in given.items():
        if value is not None:
            raise r.error(f"embedding() with {name}={value}", "read the weight: weight[index, h]")
    return read(r, weight, x)


def lerp(r: Recorder, x: Any, end: Any, weight: Any) -> Any:
    return r.arithmetic("add", x, r.arithmetic("mul", weight, r.arithmetic("sub", end, x)))


def softplus(r: Recorder, x: Any) -> Any:
    """log(1 + exp(x)), without overflow: max(x, 0) + log1p(exp(-|x|))."""
    tail = r.floats("log1p", r.floats("exp", r.floats("neg", r.floats("abs", x))))
    return r.arithmetic("add", r.arithmetic("maximum", x, 0.0), tail)  # half of the slope on each side of 0, as it should be


def log10(r: Recorder, x: Any) -> Any:
    return r.arithmetic("mul", r.floats("log2", x), math.log10(2))


class PartialRead:
    """``table[h]`` of a rank 2 tensor: waits for the rest of the indices."""

    __slots__ = ("indices", "recorder", "table")

    def __init__(self, recorder: Recorder, table: Any, indices: tuple[Any, ...]) -> None:
        if len(indices) > table.ndim:
            raise recorder.error(
                f"a captured tensor of shape {tuple(table.shape)} was read with {len(indices)} indices",
                f"give {table.ndim} indices, one per dimension",
            )
        self.recorder, self.table, self.indices = recorder, table, indices
        for index in indices:
            recorder.index(index)

    def __getitem__(self, index: Any) -> Any:
        return read(self.recorder, self.table, *self.indices, *(index if isinstance(index, tuple) else (index,)))

    def __getattr__(self, name: str) -> Any:
        raise self.incomplete()

    def incomplete(self) -> TraceError:
        rest = tuple(self.table.shape)[len(self.indices) :]
        return self.recorder.error(
            f"a read of a captured tensor of shape {tuple(self.table.shape)} gives a vector of shape {rest}",
            "index every dimension: table[h, q_idx]",
        )

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise next(a for a in args if isinstance(a, PartialRead)).incomplete()


def _refuse_vector(self: PartialRead, *_: Any) -> Any:
    raise self.incomplete()


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "lt", "le", "gt", "ge", "eq", "ne", "and", "rand",
    "or", "ror", "neg", "invert", "bool", "float", "index", "matmul", "rmatmul", "abs", "len", "iter",
):  # fmt: skip
    setattr(PartialRead, f"__{_name}__", _refuse_vector)


def _binary(name: str, op: str, reverse: bool = False) -> Function:
    def function(r: Recorder, x: Any, y: Any) -> Any:
        return getattr(r, name)(op, y, x) if reverse else getattr(r, name)(op, x, y)

    return function


def _unary(op: str) -> Function:
    return lambda r, x: r.floats(op, x)


FLOAT_UNARY = ("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "erfc", "sin", "cos")

FUNCTIONS: dict[str, Function] = {
    **{name: _unary(name) for name in FLOAT_UNARY},
    **{name: _rounding(name) for name in ("floor", "ceil", "trunc", "round")},
    **{name: _kind_keeping(name) for name in ("neg", "abs", "sign")},
    **{name: _binary("arithmetic", name) for name in ("mul", "minimum", "maximum")},
    **{name: _binary("compare", name) for name in ("eq", "ne", "lt", "le")},
    **{f"bitwise_{name}": _binary("logic", name) for name in ("and", "or", "xor")},
    **{f"logical_{name}": _logical(name) for name in ("and", "or", "xor")},
    "add": add, "sub": sub, "div": div, "pow": power, "fmod": fmod,
    "floor_divide": _binary("arithmetic", "floordiv"), "remainder": _binary("arithmetic", "mod"),
    "gt": _binary("compare", "lt", reverse=True), "ge": _binary("compare", "le", reverse=True),
    "bitwise_not": bitwise_not, "logical_not": logical_not,
    "bitwise_left_shift": lambda r, x, y: shift(r, "shl", x, y),
    "bitwise_right_shift": lambda r, x, y: shift(r, "shr", x, y),
    "where": where, "clamp": clamp, "masked_fill": masked_fill, "lerp": lerp, "read": read, "embedding": embedding,
    "clamp_min": lambda r, x, min: clamp(r, x, min=min), "clamp_max": lambda r, x, max: clamp(r, x, max=max),
    "to": to, "type": cast_to, "type_as": to, "bool": _cast("bool"), "int": _cast("i32"), "long": _cast("i64"),
    "short": _cast("i16"), "half": _cast("f16"), "bfloat16": _cast("bf16"), "float": _cast("f32"), "double": _cast("f64"),
    "full_like": full_like, "zeros_like": lambda r, x, **o: full_like(r, x, 0, **o),
    "ones_like": lambda r, x, **o: full_like(r, x, 1, **o),
    "new_full": new_full, "new_ones": lambda r, x, size, **o: new_full(r, x, size, 1, **o),
    "new_zeros": lambda r, x, size, **o: new_full(r, x, size, 0, **o),
    "new_tensor": lambda r, x, data, **o: new_full(r, x, (), data, **o),
    "contiguous": lambda r, x: x, "clone": lambda r, x, **_: x,
    "square": lambda r, x: r.arithmetic("mul", x, x), "reciprocal": lambda r, x: r.floats("div", 1.0, x),
    "relu": lambda r, x: where(r, r.compare("le", x, 0), 0, x), "softplus": softplus,
    "silu": lambda r, x: r.arithmetic("mul", x, r.floats("sigmoid", x)), "log10": log10,
    "isnan": lambda r, x: r.compare("ne", x, x),
    "isinf": lambda r, x: r.compare("eq", r.floats("abs", x), math.inf),
    "isfinite": lambda r, x: r.compare("lt", r.floats("abs", x), math.inf),
}  # fmt: skip

ALIASES: dict[str, str] = {
    "absolute": "abs", "negative": "neg", "clip": "clamp", "multiply": "mul", "subtract": "sub", "divide": "div",
    "true_divide": "div", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder", "fix": "trunc", "sgn": "sign",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne", "eq_": "eq",
    "max": "maximum", "min": "minimum", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "invert": "bitwise_not",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift", "expit": "sigmoid", "swish": "silu",
}  # fmt: skip
FUNCTIONS.update({alias: FUNCTIONS[name] for alias, name in ALIASES.items()})

REVERSED = {"radd": "add", "rsub": "sub", "rmul": "mul", "rtruediv": "div", "rdiv": "div", "rfloordiv": "floor_divide",
            "rmod": "remainder", "rpow": "pow", "rand": "bitwise_and", "ror": "bitwise_or", "rxor": "bitwise_xor",
            "rlshift": "bitwise_left_shift", "rrshift": "bitwise_right_shift"}  # fmt: skip
FUNCTIONS.update({name: (lambda f: lambda r, x, y: f(r, y, x))(FUNCTIONS[plain]) for name, plain in REVERSED.items()})

INSTEAD = {
    "sum": "a mod sees one score at a time; sums over keys are what softmax does, other sums belong before the call",
    "mean": "a mod sees one score at a time; reductions belong before the call",
    "softmax": "attention applies the softmax; the mod changes the score before it",
    "matmul": "concatenate the extra dimensions to q and k instead of multiplying inside the mod",
    "rand": "randomness differs between forward and backward; read random numbers from a captured tensor",
    "rand_like": "randomness differs between forward and backward; read random numbers from a captured tensor",
    "detach": "the derivative of a mod is derived from all of it; detach captured tensors before the call",
    "item": "a traced value has no number yet; use it as it is",
    "tolist": "a traced value has no number yet; use it as it is",
    "gelu": "x * 0.5 * (1 + erf(x * 0.7071))",
    "tan": "sin(x) / cos(x)",
    "atan": "no arctangent is supported; tanh(x), or erf(x), saturates too",
    "atan2": "no arctangent is supported",
    "linear": "apply layers before the call and read their result: bias[b, h, q_idx]",
    "randn_like": "randomness differs between forward and backward; read random numbers from a captured tensor",
    "dropout": "randomness differs between forward and backward; read a mask from a captured tensor",
    "tril": "use a mask_mod: q_idx >= kv_idx",
    "triu": "use a mask_mod: kv_idx >= q_idx",
    "leaky_relu": "where(x > 0, x, slope * x)",
    "gather": "index the captured tensor: table[h, q_idx]",
    "index_select": "index the captured tensor: table[q_idx]",
}


def unsupported(r: Recorder, name: str) -> TraceError:
    """The error for a function that a mod cannot call, with the nearest one that it can."""
    if name in INSTEAD:
        return r.error(f"{name}() of a traced value", INSTEAD[name])
    close = difflib.get_close_matches(name, [*FUNCTIONS], n=1, cutoff=0.6)
    hint = f"the nearest supported function is {close[0]}()" if close else "see flexsdpa.ops for what a mod may call"
    return r.error(f"{name}() of a traced value", hint)


def call(r: Recorder, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a function of the table, or raises the error that explains why it cannot be called."""
    function = FUNCTIONS.get(name)
    if function is None:
        raise unsupported(r, name)
    if kwargs:
        args, kwargs = _positional(r, name, args, dict(kwargs))
    if r.frontend.compiling:
        return function(r, *args, **kwargs)
    try:
        return function(r, *args, **kwargs)
    except TraceError:
        raise
    except TypeError:
        raise r.error(
            f"{name}() with arguments {_shape_of_call(args, kwargs)}", "call it on single values, without options"
        ) from None


def _positional(r: Recorder, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """torch's names of tensor arguments as positions; ``inplace=False``, which torch.nn.functional passes, is nothing."""
    if kwargs.pop("inplace", False):
        raise r.error(f"{name}() in place", "use its result: a mod returns a new score")
    if name != "where":
        args = (*[kwargs.pop("input")], *args) if "input" in kwargs else args
        args = (*args, kwargs.pop("other")) if "other" in kwargs and name != "to" else args
    return args, kwargs


def _shape_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return f"({', '.join([type(a).__name__ for a in args] + [f'{k}=' for k in kwargs])})"
