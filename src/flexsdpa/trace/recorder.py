"""Recorder: turns what a mod does with its arguments into program text.

Everything here runs at every call and may be traced by torch.compile: no logging, locks, clocks or hashing.
"""

from __future__ import annotations

from typing import Any

from flexsdpa.dtypes import DTYPES, KIND_NAMES
from flexsdpa.errors import TraceError, layout_message
from flexsdpa.ir.builder import Builder
from flexsdpa.trace.location import user_frame, where_text


class Frontend:
    """What a framework tells the recorder. This one knows no framework; subclasses override."""

    compiling = False
    """True while a compiler traces the recorder itself: no frames are inspected then."""
    array_name = "NumPy array"
    """What captured tensors are called."""
    trusts_bools = True
    """False where a plain bool may be a comparison that the compiler answered without asking the traced value."""

    def array_dtype(self, value: Any) -> str | None:
        """The short dtype name of a captured tensor; None if the value is not one."""
        name = str(getattr(value, "dtype", ""))
        return NUMPY_NAMES.get(name) if hasattr(value, "shape") else None

    def is_array(self, value: Any) -> bool:
        """Whether a value is a tensor of this framework, of whatever dtype."""
        return hasattr(value, "shape")

    def dtype_name(self, dtype: Any) -> str | None:
        """The short name of a dtype that a mod casts to."""
        name = getattr(dtype, "__name__", str(dtype))
        return NUMPY_NAMES.get(name, dtype if dtype in DTYPES else None)

    def is_device(self, value: Any) -> bool:
        """Whether ``x.to(value)`` moves x, which changes nothing here."""
        return isinstance(value, str) and value not in DTYPES

    def kind_dtype(self, kind: str) -> Any:
        """What ``score.dtype`` (kind f) or ``q_idx.dtype`` (kind i) is."""
        return {"b": "bool", "i": "i64", "f": "f32"}[kind]

    def device(self) -> Any:
        """What ``score.device`` is."""
        return "cpu"

    def is_static(self, value: Any) -> bool:
        """False for a number that the framework's compiler keeps symbolic."""
        return True

    def symbolic_int(self, value: Any) -> Any:
        """A symbolic integer as a 0-D integer tensor."""
        raise NotImplementedError


NUMPY_NAMES = {
    "bool": "bool", "uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "int": "i64", "float": "f64",
}  # fmt: skip

PROMOTED_BOOL = {"add": "or", "mul": "and", "minimum": "and", "maximum": "or"}
"""Arithmetic on two bools, as torch does it."""


class Recorder:
    """One trace: the builder, the captured tensors and the float operands, in slot order."""

    __slots__ = ("arrays", "builder", "frontend", "make", "scalars")

    def __init__(self, frontend: Frontend, make: type[Any]) -> None:
        self.builder = Builder()
        self.arrays: list[Any] = []
        self.scalars: list[Any] = []
        self.frontend = frontend
        self.make = make

    def value(self, n: int) -> Any:
        return self.make(self, n, self.builder.kinds[n])

    def op(self, name: str, *args: int, attr: str = "") -> int:
        return self.builder.op(name, *args, attr=attr)

    def lift(self, x: Any) -> int:
        """The id of a traced value, a Python or NumPy number, or a 0-D captured tensor."""
        if isinstance(x, self.make):
            if x._recorder is not self:
                raise self.error("a traced value of another mod was used", "a mod can only use its own arguments")
            n: int = x._id
            return n
        if isinstance(x, bool):
            if not self.frontend.trusts_bools:
                raise self.error(
                    f"the plain bool {x} in a compiled mod",
                    "this torch may have answered `kv_idx == n` itself: write torch.eq(kv_idx, n), torch.lt(kv_idx, n), ...",
                )
            return self.builder.emit(f"const_b {x}", "b")
        if isinstance(x, int):
            return self._lift_int(x)
        if isinstance(x, float):
            return self._lift_float(x)
        return self._lift_other(x)

    def _lift_int(self, x: int) -> int:
        if not self.frontend.is_static(x):
            return self.read(self.frontend.symbolic_int(x), ())
        if not -(2**63) <= x < 2**63:
            raise self.error(f"the integer {x} does not fit in 64 bits", "use a float", tail="")
        return self.builder.emit(f"const_i {int(x)}", "i")

    def _lift_float(self, x: float) -> int:
        if self.frontend.is_static(x):
            text = special_float(x)
            if text:
                return self.builder.emit(f"const_f {text}", "f")
        self.scalars.append(x)
        return self.builder.scalar()

    def _lift_other(self, x: Any) -> int:
        dtype = self.frontend.array_dtype(x)
        if dtype is None:
            numpy_like = getattr(x, "item", None)
            if getattr(x, "ndim", None) == 0 and numpy_like is not None and not hasattr(x, "requires_grad"):
                return self.lift(numpy_like())
            if hasattr(x, "dtype") and self.frontend.is_array(x):
                raise self.strange_dtype(x)
            raise self.error(
                f"a value of type {type(x).__name__} cannot take part in a mod: {x!r:.60}", "use numbers and tensors"
            )
        if x.ndim == 0 and not self.frontend.compiling and type(x).__module__.startswith("numpy"):
            return self.lift(x.item())
        if x.ndim:
            raise self.error(
                f"a captured tensor of shape {tuple(x.shape)} was used whole",
                "read one element per position, for example table[h, q_idx - kv_idx]",
            )
        return self.read(x, ())

    def slot(self, tensor: Any) -> int:
        """The slot of a captured tensor; the same tensor object gets the same slot."""
        for n, known in enumerate(self.arrays):
            if known is tensor:
                return n
        dtype = self.frontend.array_dtype(tensor)
        if dtype is None:
            raise self.strange_dtype(tensor)
        self.arrays.append(tensor)
        return self.builder.array(dtype, tensor.ndim)

    def strange_dtype(self, tensor: Any) -> TraceError:
        if not self.frontend.is_array(tensor):
            return self.error(
                f"a read of a {type(tensor).__name__}", f"make it a {self.frontend.array_name}: then it can be read"
            )
        return self.error(f"a captured tensor has dtype {getattr(tensor, 'dtype', None)}", f"use one of {', '.join(DTYPES)}")

    def read(self, tensor: Any, indices: tuple[Any, ...]) -> int:
        """The id of ``tensor[indices]``, all dimensions indexed."""
        slot = self.slot(tensor)
        dtype = self.builder.array_lines[slot].split(" ")[1]
        return self.builder.read(slot, DTYPES[dtype].kind, [self.index(n) for n in indices])

    def index(self, x: Any) -> int:
        """The id of one index of a read."""
        if x is None or x is Ellipsis or isinstance(x, slice):
            raise self.error(
                "a captured tensor was indexed with a slice, None or ...", "give one integer per dimension: table[h, q_idx]"
            )
        n = self.lift(x)
        if self.builder.kinds[n] != "i":
            kind = KIND_NAMES[self.builder.kinds[n]]
            raise self.error(f"a captured tensor was read with a {kind} index", "cast it: table[x.long()]")
        return n

    def cast(self, n: int, kind: str) -> int:
        return n if self.builder.kinds[n] == kind else self.builder.op(f"to_{kind}", n)

    def promoted(self, *ids: int) -> list[int]:
        """The values at the largest of their kinds (bool < integer < float)."""
        kinds = [self.builder.kinds[n] for n in ids]
        kind = "f" if "f" in kinds else "i" if "i" in kinds else "b"
        return [self.cast(n, kind) for n in ids]

    def arithmetic(self, op: str, x: Any, y: Any) -> Any:
        """add, sub, mul, minimum, maximum, floordiv, mod, with torch's promotion."""
        a, b = self.promoted(self.lift(x), self.lift(y))
        if self.builder.kinds[a] == "b":
            if op == "sub":
                raise self.error("`-` of two booleans", "use `^`, or cast with .long()")
            if op in PROMOTED_BOOL:
                return self.value(self.builder.op(PROMOTED_BOOL[op], a, b))
            a, b = self.cast(a, "i"), self.cast(b, "i")
        return self.value(self.builder.op(op, a, b))

    def floats(self, op: str, *xs: Any) -> Any:
        """An op that only floats have: div, pow, tanh, ..."""
        return self.value(self.builder.op(op, *[self.cast(self.lift(x), "f") for x in xs]))

    def compare(self, op: str, x: Any, y: Any) -> Any:
        """eq, ne, lt, le."""
        a, b = self.promoted(self.lift(x), self.lift(y))
        if self.builder.kinds[a] == "b" and op in ("lt", "le"):
            a, b = self.cast(a, "i"), self.cast(b, "i")
        return self.value(self.builder.op(op, a, b))

    def logic(self, op: str, x: Any, y: Any) -> Any:
        """and, or, xor on bools, bitwise on integers."""
        a, b = self.promoted(self.lift(x), self.lift(y))
        if self.builder.kinds[a] == "f":
            raise self.error(f"bitwise {op} of a float", "compare first: (score > 0) & (q_idx >= kv_idx)")
        return self.value(self.builder.op(op, a, b))

    def error(self, what: str, instead: str, tail: str = ", which a traced mod cannot do") -> TraceError:
        """A TraceError that names the user's line."""
        place = "" if self.frontend.compiling else where_text(user_frame())
        return TraceError(layout_message(f"{what}{tail}", (("at", place), ("instead", instead))))


def special_float(x: float) -> str:
    """The text of a float that is part of the program; empty for one that is an operand.

    The rule is by value, because a tracer cannot tell a literal from a captured float.
    """
    if x == 0.0:
        return "-0.0" if str(x)[0] == "-" else "0.0"
    if x == 1.0:
        return "1.0"
    if x == -1.0:
        return "-1.0"
    if x != x:
        return "nan"
    if x == float("inf"):
        return "inf"
    if x == float("-inf"):
        return "-inf"
    return ""
