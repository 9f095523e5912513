"""Score functions written as cuDNN graph calls, recorded into programs: ``fn(graph, score, tensors) -> tensor``.

The graph that such a function receives here records: its tensors are traced values. The methods are those of a cuDNN
graph's pointwise operations, with cuDNN's argument names; data types are taken as cuDNN's, torch's or their names.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from flexsdpa.dtypes import DTYPES
from flexsdpa.errors import TraceError
from flexsdpa.trace.functions import FUNCTIONS
from flexsdpa.trace.recorder import Recorder

DTYPES_BY_NAME = {
    "FLOAT": "f32", "DOUBLE": "f64", "HALF": "f16", "BFLOAT16": "bf16", "INT32": "i32", "INT64": "i64", "INT8": "i8",
    "UINT8": "u8", "BOOLEAN": "bool", "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16",
    "int32": "i32", "int64": "i64", "bool": "bool",
}  # fmt: skip
AXES = ("b", "h", "q", "kv")
IGNORED = ("compute_data_type", "name")


class GraphTensor:
    """A tensor of a recording graph: one traced value for every (batch, head, query, key)."""

    def __init__(self, graph: RecordingGraph, value: Any) -> None:
        self._graph = graph
        self._value = value

    def set_data_type(self, data_type: Any) -> GraphTensor:
        """Casts: floats are rounded to 16-bit types, and kept in the working precision otherwise; integers keep their 64 bits."""
        name = DTYPES_BY_NAME.get(str(getattr(data_type, "name", data_type)).rpartition(".")[2])
        if name is None:
            raise self._graph._recorder.error(f"set_data_type({data_type})", f"use one of {', '.join(DTYPES_BY_NAME)}")
        r = self._graph._recorder
        n = r.cast(r.lift(self._value), DTYPES[name].kind)
        self._value = r.value(r.op("round_f", n, attr=name) if name in ("f16", "bf16") else n)
        return self

    def _same(self, *_: Any, **__: Any) -> GraphTensor:
        return self

    set_name = set_dim = set_stride = set_output = set_uid = set_is_virtual = _same

    def _arithmetic(self, *_: Any) -> Any:
        raise self._graph._recorder.error(
            "an operator on a graph tensor", "call the graph's method: graph.mul(a=score, b=...), graph.add(a=score, b=...)"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = __pow__ = _arithmetic
    __lt__ = __le__ = __gt__ = __ge__ = _arithmetic

    def __getattr__(self, name: str) -> Any:
        raise self._graph._recorder.error(
            f"{name} of a graph tensor", "a callback may only pass its tensors on to the graph's methods"
        )


class RecordingGraph:
    """What a callback receives as ``graph``."""

    def __init__(self, recorder: Recorder, indices: list[Any]) -> None:
        self._recorder = recorder
        self._indices = indices

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            close = difflib.get_close_matches(name, list(METHODS), n=1, cutoff=0.5)
            near = f"near in name is {close[0]}()" if close else f"they are {', '.join(METHODS)}"
            hint = f"only pointwise methods can; {near}"
            raise self._recorder.error(f"the graph method {name}()", hint)
        arguments, function = METHODS[name]

        def method(*args: Any, **kwargs: Any) -> GraphTensor:
            given = dict(zip(arguments, args, strict=False)) | kwargs
            unknown = [key for key in given if key not in (*arguments, *IGNORED)]
            missing = [key for key in arguments if key not in given and key not in OPTIONAL]
            if unknown or missing or len(args) > len(arguments) + len(IGNORED):
                wrong = f"without {', '.join(missing)}" if missing else f"with {', '.join(unknown) or 'so many arguments'}"
                raise self._recorder.error(f"{name}() {wrong}", f"its arguments are {', '.join(arguments)}")
            values = [given.get(key) if key in PLAIN or key not in given else self._lift(given[key]) for key in arguments]
            return GraphTensor(self, function(self, *values))

        return method

    def _lift(self, x: Any) -> Any:
        """A traced value of a graph tensor, a number, or a tensor of shape (B or 1, H or 1, Sq or 1, Skv or 1)."""
        if isinstance(x, GraphTensor):
            if x._graph._recorder is not self._recorder:
                raise self._recorder.error("a graph tensor of another recording", "make it anew in every call of the callback")
            return x._value
        if self._recorder.frontend.array_dtype(x) is None:
            return self._recorder.value(self._recorder.lift(x))
        if x.ndim not in (0, 4):
            raise self._recorder.error(
                f"a tensor of shape {tuple(x.shape)} in a graph callback",
                "give it 4 dimensions: (B or 1, H or 1, Sq or 1, Skv or 1)",
            )
        places = [0 if size == 1 else index for size, index in zip(x.shape, self._indices, strict=bool(x.ndim))]
        return self._recorder.value(self._recorder.read(x, tuple(places) if x.ndim else ()))


def _named(name: str) -> Callable[..., Any]:
    return lambda graph, *xs: FUNCTIONS[name](graph._recorder, *xs)


def _logic(name: str) -> Callable[..., Any]:
    return lambda graph, *xs: FUNCTIONS[f"logical_{name}"](graph._recorder, *xs)


def _select(graph: RecordingGraph, yes: Any, no: Any, mask: Any) -> Any:
    r = graph._recorder
    return FUNCTIONS["where"](r, r.value(r.cast(r.lift(mask), "b")), yes, no)


def _gen_index(graph: RecordingGraph, _: Any, axis: int) -> Any:
    return graph._indices[axis]


def _relu(graph: RecordingGraph, x: Any, slope: Any = None, low: Any = None, high: Any = None) -> Any:
    r = graph._recorder
    low = 0.0 if low is None else low
    below = low if slope is None else r.arithmetic("add", low, r.arithmetic("mul", slope, r.arithmetic("sub", x, low)))
    y = FUNCTIONS["where"](r, r.compare("lt", low, x), x, below)
    return y if high is None else FUNCTIONS["clamp"](r, y, max=high)


def _tanh_backward(graph: RecordingGraph, loss: Any, x: Any) -> Any:
    r = graph._recorder
    y = r.floats("tanh", x)
    return r.arithmetic("mul", loss, r.arithmetic("sub", 1.0, r.arithmetic("mul", y, y)))


def _sigmoid_backward(graph: RecordingGraph, loss: Any, x: Any) -> Any:
    r = graph._recorder
    y = r.floats("sigmoid", x)
    return r.arithmetic("mul", loss, r.arithmetic("mul", y, r.arithmetic("sub", 1.0, y)))


def _relu_backward(graph: RecordingGraph, loss: Any, x: Any) -> Any:
    r = graph._recorder
    return FUNCTIONS["where"](r, r.compare("lt", 0.0, x), loss, 0.0)


def _softplus_backward(graph: RecordingGraph, loss: Any, x: Any) -> Any:
    r = graph._recorder
    return r.arithmetic("mul", loss, r.floats("sigmoid", x))


def _tan(graph: RecordingGraph, x: Any) -> Any:
    return graph._recorder.floats("div", graph._recorder.floats("sin", x), graph._recorder.floats("cos", x))


def _add_square(graph: RecordingGraph, a: Any, b: Any) -> Any:
    r = graph._recorder
    return r.arithmetic("add", a, r.arithmetic("mul", b, b))


METHODS: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    **{name: (("a", "b"), _named(name)) for name in ("add", "sub", "mul", "div")},
    "bias": (("input", "bias"), _named("add")), "scale": (("input", "scale"), _named("mul")),
    "max": (("input0", "input1"), _named("maximum")), "min": (("input0", "input1"), _named("minimum")),
    "pow": (("input0", "input1"), _named("pow")), "mod": (("input0", "input1"), _named("fmod")),
    "add_square": (("a", "b"), _add_square),
    **{name: (("input",), _named(name)) for name in (
        "sqrt", "rsqrt", "exp", "log", "neg", "abs", "ceil", "floor", "erf", "tanh", "sigmoid", "sin", "cos", "reciprocal",
        "softplus")},
    "tan": (("input",), _tan), "swish": (("input",), _named("silu")),
    "relu": (("input", "negative_slope", "lower_clip", "upper_clip"), _relu),
    "leaky_relu": (("input", "negative_slope"), _relu), "identity": (("input",), lambda graph, x: x),
    "gen_index": (("input", "axis"), _gen_index),
    **{f"cmp_{name}": (("input", "comparison"), _named(ours)) for name, ours in (
        ("eq", "eq"), ("neq", "ne"), ("lt", "lt"), ("le", "le"), ("gt", "gt"), ("ge", "ge"))},
    "logical_and": (("a", "b"), _logic("and")), "logical_or": (("a", "b"), _logic("or")),
    "logical_not": (("input",), _logic("not")), "binary_select": (("input0", "input1", "mask"), _select),
    "tanh_backward": (("loss", "input"), _tanh_backward), "sigmoid_backward": (("loss", "input"), _sigmoid_backward),
    "relu_backward": (("loss", "input"), _relu_backward), "softplus_backward": (("loss", "input"), _softplus_backward),
}  # fmt: skip
"""Graph method -> cuDNN's argument names, and what records it."""
OPTIONAL = ("negative_slope", "lower_clip", "upper_clip")
PLAIN = ("axis",)


class Named(dict[str, Any]):
    """The tensors of a callback; a name that is none of them is an error that says which are."""

    def __missing__(self, name: str) -> Any:
        raise TraceError(f"a graph callback reads tensors[{name!r}], given are {', '.join(map(repr, self)) or 'none'}")


def record(
    fn: Callable[..., Any],
    graph: RecordingGraph,
    value: Any,
    tensors: Mapping[str, Any] | None,
    name: str = "a graph callback",
) -> Any:
    """Runs a callback on a recording graph; returns the traced value of its result. name: what errors call it."""
    given = (graph, GraphTensor(graph, value))
    if _fits(fn, 3):
        result = fn(*given, Named(tensors or {}))
    elif _fits(fn, 2):
        result = fn(*given)
    else:
        raise TraceError(
            f"{name} must take (graph, score, tensors) or (graph, score), {_called(fn)} takes {inspect.signature(fn)}"
        )
    if not isinstance(result, GraphTensor):
        raise TraceError(f"{name} returned {type(result).__name__}, expected a tensor of the graph it was given")
    return graph._lift(result)


def _fits(fn: Callable[..., Any], count: int) -> bool:
    """Whether a callback takes so many arguments."""
    try:
        inspect.signature(fn).bind(*[None] * count)
    except TypeError:
        return False
    return True


def _called(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__qualname__", type(fn).__name__))
