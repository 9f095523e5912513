"""Functions for mods that name no framework: ``flexsdpa.ops.tanh(score / cap)``.

On traced values they record; on torch, NumPy or JAX arrays they call that framework's function of the same name; on plain
numbers they compute with NumPy. A mod written with them runs under every front end, and as plain code too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from flexsdpa.trace.functions import PartialRead, call
from flexsdpa.trace.tracer import first_tracer

NUMPY_NAMES = {"clamp": "clip", "floor_divide": "floor_divide", "remainder": "remainder", "pow": "power", "div": "true_divide"}


def _framework(values: Any) -> Any:
    """The module whose functions fit these values: torch, jax.numpy or numpy."""
    for value in values:
        root = type(value).__module__.split(".")[0]
        if root == "torch":
            return sys.modules["torch"]
        if root in ("jax", "jaxlib"):
            return sys.modules["jax.numpy"]
    return np


def _function(name: str, doc: str) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        traced = first_tracer((*args, *kwargs.values()))
        if traced is not None:
            return call(traced._recorder, name, args, kwargs)
        framework = _framework((*args, *kwargs.values()))
        if framework.__name__ == "torch":
            return _call_torch(framework, name, args, kwargs)
        return _call_numpy(framework, name, args, kwargs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def _call_torch(torch: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Numbers among the arguments become tensors where torch wants tensors."""
    like = next(a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor))
    if name in ("minimum", "maximum"):
        args = [a if isinstance(a, torch.Tensor) else torch.as_tensor(a, device=like.device) for a in args]
    return getattr(torch, name)(*args, **kwargs)


def _call_numpy(numpy: Any, name: str, args: Any, kwargs: Any) -> Any:
    if name == "sigmoid":
        small = numpy.exp(-numpy.abs(args[0]))  # at most 1: no overflow
        return numpy.where(numpy.asarray(args[0]) >= 0, 1 / (1 + small), small / (1 + small))
    if name == "sign":
        return numpy.where(numpy.isnan(args[0]), 0, numpy.sign(args[0]))
    if name == "rsqrt":
        return 1 / numpy.sqrt(args[0])
    if name == "erf":
        import math

        return np.vectorize(math.erf)(np.asarray(args[0]))
    if name == "clamp":
        return numpy.clip(
            args[0], kwargs.get("min", args[1] if len(args) > 1 else None), kwargs.get("max", args[2] if len(args) > 2 else None)
        )
    return getattr(numpy, NUMPY_NAMES.get(name, name))(*args, **kwargs)


def read(table: Any, *indices: Any) -> Any:
    """``table[indices]`` for captured tensors, where a framework's own indexing does not know traced values.

    table: a captured tensor. indices: one integer expression per dimension; negative ones count from the end.
    """
    traced = first_tracer(indices)
    if traced is None:
        return table[tuple(indices)]
    if not hasattr(table, "ndim") and not hasattr(table, "_recorder"):
        raise traced._recorder.error(
            f"a {type(table).__name__} was read at a traced position", "make it a tensor: torch.tensor(...)"
        )
    result = call(traced._recorder, "read", (table, *indices), {})
    if isinstance(result, PartialRead):
        raise result.incomplete()
    return result


where = _function("where", "where(cond, a, b): a where cond holds, else b. The side not taken never matters, nan or not.")
minimum = _function("minimum", "The smaller of two values; nan if either is. Gradient at ties: half each.")
maximum = _function("maximum", "The larger of two values; nan if either is. Gradient at ties: half each.")
clamp = _function("clamp", "clamp(x, min=None, max=None). Gradient 1 at the bounds.")
abs = _function("abs", "Absolute value. Gradient 0 at 0.")
sign = _function("sign", "-1, 0 or 1. Gradient 0.")
exp = _function("exp", "e ** x.")
exp2 = _function("exp2", "2 ** x.")
expm1 = _function("expm1", "e ** x - 1, precise near 0.")
log = _function("log", "Natural logarithm; -inf at 0, nan below.")
log2 = _function("log2", "Logarithm of base 2; -inf at 0, nan below.")
log1p = _function("log1p", "log(1 + x), precise near 0.")
sqrt = _function("sqrt", "Square root; nan below 0.")
rsqrt = _function("rsqrt", "1 / sqrt(x); inf at 0, nan below.")
tanh = _function("tanh", "Hyperbolic tangent.")
sigmoid = _function("sigmoid", "1 / (1 + exp(-x)).")
erf = _function("erf", "Error function.")
sin = _function("sin", "Sine.")
cos = _function("cos", "Cosine.")
floor = _function("floor", "Largest whole number not above x. Gradient 0.")
ceil = _function("ceil", "Smallest whole number not below x. Gradient 0.")
round = _function("round", "Nearest whole number, halves to even. Gradient 0.")
trunc = _function("trunc", "Towards zero. Gradient 0.")
pow = _function("pow", "x ** y.")
floor_divide = _function("floor_divide", "x // y, rounded down (Python's rule); integer x // 0 is 0.")
remainder = _function("remainder", "x % y with the sign of y (Python's rule); integer x % 0 is 0.")
logical_and = _function("logical_and", "Both are not zero.")
logical_or = _function("logical_or", "At least one is not zero.")
logical_not = _function("logical_not", "Is zero.")
isnan = _function("isnan", "x is nan.")

__all__ = [
    "abs", "ceil", "clamp", "cos", "erf", "exp", "exp2", "expm1", "floor", "floor_divide", "isnan", "log", "log1p", "log2",
    "logical_and", "logical_not", "logical_or", "maximum", "minimum", "pow", "read", "remainder", "round", "rsqrt", "sigmoid",
    "sign", "sin", "sqrt", "tanh", "trunc", "where",
]  # fmt: skip
