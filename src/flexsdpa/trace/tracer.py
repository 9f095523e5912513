"""Tracer: what a mod receives instead of numbers. Operators and methods record; branches explain themselves."""

from __future__ import annotations

from typing import Any, NoReturn

from flexsdpa.errors import TraceAttributeError, TraceError, layout_message
from flexsdpa.trace.functions import FUNCTIONS, call, unsupported
from flexsdpa.trace.location import CONSTRUCTS, construct_at, user_frame, where_text
from flexsdpa.trace.recorder import Recorder

INDEXING = ("indexing a list, tuple or NumPy array, or range(),", "make it a tensor and index that: table[q_idx]")


class Tracer:
    """A traced value: an id in the recorder's program. It is not the program and holds no data."""

    __slots__ = ("_id", "_kind", "_recorder")
    ndim = 0

    def __init__(self, recorder: Recorder, n: int, kind: str) -> None:
        self._recorder = recorder
        self._id = n
        self._kind = kind

    def __repr__(self) -> str:
        return f"<traced value {self._id}>"

    # Arithmetic. Spelled out, because these run at every call.
    def __add__(self, y: Any) -> Any:
        return self._recorder.arithmetic("add", self, y)

    def __radd__(self, x: Any) -> Any:
        return self._recorder.arithmetic("add", x, self)

    def __sub__(self, y: Any) -> Any:
        return self._recorder.arithmetic("sub", self, y)

    def __rsub__(self, x: Any) -> Any:
        return self._recorder.arithmetic("sub", x, self)

    def __mul__(self, y: Any) -> Any:
        return self._recorder.arithmetic("mul", self, y)

    def __rmul__(self, x: Any) -> Any:
        return self._recorder.arithmetic("mul", x, self)

    def __truediv__(self, y: Any) -> Any:
        return self._recorder.floats("div", self, y)

    def __rtruediv__(self, x: Any) -> Any:
        return self._recorder.floats("div", x, self)

    def __floordiv__(self, y: Any) -> Any:
        return self._recorder.arithmetic("floordiv", self, y)

    def __rfloordiv__(self, x: Any) -> Any:
        return self._recorder.arithmetic("floordiv", x, self)

    def __mod__(self, y: Any) -> Any:
        return self._recorder.arithmetic("mod", self, y)

    def __rmod__(self, x: Any) -> Any:
        return self._recorder.arithmetic("mod", x, self)

    def __divmod__(self, y: Any) -> Any:
        return self // y, self % y

    def __pow__(self, y: Any) -> Any:
        return FUNCTIONS["pow"](self._recorder, self, y)

    def __rpow__(self, x: Any) -> Any:
        return FUNCTIONS["pow"](self._recorder, x, self)

    def __neg__(self) -> Any:
        return FUNCTIONS["neg"](self._recorder, self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return FUNCTIONS["abs"](self._recorder, self)

    def __round__(self, ndigits: int | None = None) -> Any:
        return FUNCTIONS["round"](self._recorder, self, ndigits or 0)

    def __floor__(self) -> Any:
        return FUNCTIONS["floor"](self._recorder, self)

    def __ceil__(self) -> Any:
        return FUNCTIONS["ceil"](self._recorder, self)

    def __trunc__(self) -> Any:
        return FUNCTIONS["trunc"](self._recorder, self)

    # Comparisons and logic.
    def __lt__(self, y: Any) -> Any:
        return self._recorder.compare("lt", self, y)

    def __le__(self, y: Any) -> Any:
        return self._recorder.compare("le", self, y)

    def __gt__(self, y: Any) -> Any:
        return self._recorder.compare("lt", y, self)

    def __ge__(self, y: Any) -> Any:
        return self._recorder.compare("le", y, self)

    def __eq__(self, y: Any) -> Any:
        return self._recorder.compare("eq", self, y)

    def __ne__(self, y: Any) -> Any:
        return self._recorder.compare("ne", self, y)

    def __and__(self, y: Any) -> Any:
        return self._recorder.logic("and", self, y)

    def __rand__(self, x: Any) -> Any:
        return self._recorder.logic("and", x, self)

    def __or__(self, y: Any) -> Any:
        return self._recorder.logic("or", self, y)

    def __ror__(self, x: Any) -> Any:
        return self._recorder.logic("or", x, self)

    def __xor__(self, y: Any) -> Any:
        return self._recorder.logic("xor", self, y)

    def __rxor__(self, x: Any) -> Any:
        return self._recorder.logic("xor", x, self)

    def __invert__(self) -> Any:
        return FUNCTIONS["bitwise_not"](self._recorder, self)

    def __lshift__(self, y: Any) -> Any:
        return FUNCTIONS["bitwise_left_shift"](self._recorder, self, y)

    def __rshift__(self, y: Any) -> Any:
        return FUNCTIONS["bitwise_right_shift"](self._recorder, self, y)

    def __rlshift__(self, x: Any) -> Any:
        return FUNCTIONS["bitwise_left_shift"](self._recorder, x, self)

    def __rrshift__(self, x: Any) -> Any:
        return FUNCTIONS["bitwise_right_shift"](self._recorder, x, self)

    # What users ask of a tensor.
    @property
    def dtype(self) -> Any:
        return self._recorder.frontend.kind_dtype(self._kind)

    @property
    def device(self) -> Any:
        return self._recorder.frontend.device()

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def dim(self) -> int:
        return 0

    def numel(self) -> int:
        return 1

    def size(self) -> tuple[int, ...]:
        return ()

    def is_floating_point(self) -> bool:
        return self._kind == "f"

    def where(self, *args: Any, **kwargs: Any) -> Any:
        """As torch's method, ``x.where(condition, other)``: self where the condition holds."""
        ordered = (args[0], self, *args[1:]) if args else (self,)
        return call(self._recorder, "where", ordered, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in FUNCTIONS:
            recorder = self._recorder
            return lambda *args, **kwargs: call(recorder, name, (self, *args), kwargs)
        if name.startswith("_"):
            raise AttributeError(name)
        raise TraceAttributeError(*unsupported(self._recorder, name).args)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch_function(func, args, kwargs or {})

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if method != "__call__":
            raise unsupported(self._recorder, f"{ufunc.__name__}.{method}")
        return call(self._recorder, str(ufunc.__name__), args, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return call(self._recorder, str(func.__name__), args, kwargs)

    # What a traced value has no answer to.
    def __hash__(self) -> int:
        self._no_number("looking up in a dict or set", "make it a tensor and index that: table[h]")

    def __format__(self, spec: str) -> str:
        if spec:
            self._no_number("formatting", "a traced value has no number yet; print shapes and captured values instead")
        return repr(self)

    def __bool__(self) -> bool:
        frame = None if self._recorder.frontend.compiling else user_frame()
        construct, instead = CONSTRUCTS[construct_at(frame)]
        headline = (
            f"{construct} needs to know the value of a traced expression, and there is none: the mod runs once, for all positions"
        )
        raise TraceError(layout_message(headline, (("at", where_text(frame)), ("instead", instead))))

    def _no_number(self, what: str, instead: str) -> NoReturn:
        raise self._recorder.error(f"{what} of a traced value", instead)

    def __int__(self) -> int:
        self._no_number("int()", "use .long() to cast; a traced value has no number yet")

    def __float__(self) -> float:
        self._no_number("float(), or a function of the math module,", "use torch functions, or .float() to cast")

    def __complex__(self) -> complex:
        self._no_number("complex()", "use real numbers")

    def __index__(self) -> int:
        self._no_number(*INDEXING)

    def __array__(self, *_: Any, **__: Any) -> Any:
        self._no_number(*INDEXING)

    def __len__(self) -> int:
        self._no_number("len()", "a traced value is a single number")

    def __iter__(self) -> Any:
        self._no_number("iteration", "a traced value is a single number")

    def __getitem__(self, index: Any) -> Any:
        self._no_number("indexing", "a traced value is a single number; index captured tensors instead")

    def __setitem__(self, index: Any, value: Any) -> None:
        self._no_number("assignment to an element", "use where(cond, a, b)")

    def __matmul__(self, other: Any) -> Any:
        raise unsupported(self._recorder, "matmul")

    __rmatmul__ = __matmul__


def plain_name(name: str) -> str:
    """``__rsub__`` -> ``rsub``, ``special_expit`` -> ``expit``. In-place names (``add_``) stay, and are not in the table."""
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
    return name.removeprefix("special_")


def first_tracer(values: Any) -> Tracer | None:
    """The first traced value among arguments (which may hold tuples and lists)."""
    for value in values:
        if isinstance(value, Tracer):
            return value
        if isinstance(value, tuple | list):
            found = first_tracer(value)
            if found is not None:
                return found
    return None


def dispatch_function(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a framework's function by its name. The method ``x.where(cond, y)`` has another order than ``where(cond, x, y)``."""
    name = str(func.__name__)
    if name == "where" and len(args) == 3 and getattr(func, "__objclass__", None) is not None:
        args = (args[1], args[0], args[2])
    return dispatch(name, args, kwargs)


def dispatch(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs the framework function ``name`` on arguments that hold a traced value."""
    found = first_tracer((*args, *kwargs.values()))
    if found is None:
        raise TypeError(f"{name} was called without a traced value")
    return call(found._recorder, plain_name(name), args, kwargs)
