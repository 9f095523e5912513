"""The op table. A program is made of these ops and nothing else.

``signatures`` lists what an op takes and gives: ``"ff:f"`` is two floats to a float. Ops never mix
kinds; the tracer inserts ``to_f``, ``to_i`` and ``to_b``. ``edge`` says what happens at 0, inf and nan; the NumPy
interpreter in ``evaluate.py`` is the definition.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Op:
    """One row of the table.

    ``attr`` is the kind of attribute that follows the op's name in the text: a ``value`` (constants),
    a ``slot`` (scalars and reads), a ``dtype`` (casts), or nothing.
    """

    name: str
    signatures: tuple[str, ...]
    edge: str
    attr: str = ""
    commutative: bool = False


def _rows(signatures: str, rows: dict[str, str], **options: object) -> tuple[Op, ...]:
    parts = tuple(signatures.split())
    return tuple(Op(name, parts, edge, **options) for name, edge in rows.items())  # type: ignore[arg-type]


LEAVES = (
    Op("score", (":f",), "the scaled dot product, scale * sum_d q[d] k[d], in the working precision"),
    *_rows(":i", {"b": "batch index", "h": "query head index", "q": "query index, from 0", "kv": "key index, from 0"}),
    Op("const_b", (":b",), "True or False", attr="value"),
    Op("const_i", (":i",), "a 64-bit integer", attr="value"),
    Op("const_f", (":f",), "exact bits, by Python's repr: 0.0 and -0.0 differ", attr="value"),
    Op("scalar", (":f",), "a Python float of the user's, a run-time operand", attr="slot"),
    Op("read", ("*",), "captured[indices]; a negative index counts from the end; float dtypes are promoted to the "
       "working precision, integer dtypes to int64", attr="slot"),
)  # fmt: skip

ARITHMETIC = (
    *_rows("ff:f ii:i", {
        "add": "inf + -inf = nan; integers wrap at 64 bits",
        "mul": "0 * inf = nan; integers wrap at 64 bits",
        "minimum": "nan if either is nan; of 0.0 and -0.0 it is -0.0 here, either in a kernel",
        "maximum": "nan if either is nan; of 0.0 and -0.0 it is 0.0 here, either in a kernel",
    }, commutative=True),
    *_rows("ff:f ii:i", {
        "sub": "inf - inf = nan; integers wrap at 64 bits",
        "floordiv": "rounded down (Python's sign rule), and the partner of mod: x = (x // y) * y + x % y; float x // 0 as x / 0; "
                    "integer x // 0 = 0",
        "mod": "x - floor(x / y) * y, the sign of y (Python's sign rule); float x % 0 = nan; x % +-inf is x, or y where the "
               "signs differ; "
               "integer x % 0 = 0",
    }),
    Op("div", ("ff:f",), "x / 0 = +-inf, 0 / 0 = nan"),
    Op("pow", ("ff:f",), "IEEE pow: pow(x, 0) = 1, pow(negative, fraction) = nan"),
    *_rows("f:f i:i", {
        "neg": "-0.0 from 0.0",
        "abs": "abs(-inf) = inf, abs(nan) = nan",
        "sign": "-1, 0 or 1; 0 for nan, as torch has it",
    }),
)  # fmt: skip

ROUNDING = _rows("f:f", {
    "floor": "inf and nan unchanged",
    "ceil": "inf and nan unchanged",
    "trunc": "towards zero; inf and nan unchanged",
    "round": "half to even; inf and nan unchanged",
})  # fmt: skip

TRANSCENDENTAL = _rows("f:f", {
    "exp": "exp(-inf) = 0, overflows to inf",
    "exp2": "exp2(-inf) = 0, overflows to inf",
    "expm1": "expm1(-inf) = -1",
    "log": "log(0) = -inf, log(negative) = nan",
    "log2": "log2(0) = -inf, log2(negative) = nan",
    "log1p": "log1p(-1) = -inf, below it nan",
    "sqrt": "sqrt(negative) = nan",
    "rsqrt": "rsqrt(0) = inf, rsqrt(inf) = 0, rsqrt(negative) = nan",
    "tanh": "+-1 at +-inf",
    "sigmoid": "0 at -inf, 1 at inf",
    "erf": "+-1 at +-inf",
    "erfc": "1 - erf(x), exact where that is close to 0: 0 at inf, 2 at -inf",
    "sin": "nan at +-inf",
    "cos": "nan at +-inf",
})  # fmt: skip

LOGIC = (
    *_rows("bb:b ii:i", {"and": "bitwise for integers", "or": "bitwise for integers", "xor": "bitwise for integers"},
           commutative=True),
    Op("not", ("b:b", "i:i"), "bitwise complement for integers"),
    *_rows("ii:i", {
        "shl": "shift amounts outside 0..63 give 0",
        "shr": "arithmetic shift; amounts outside 0..63 act as 63",
    }),
    *_rows("ff:b ii:b bb:b", {
        "eq": "nan equals nothing",
        "ne": "nan differs from everything",
    }, commutative=True),
    *_rows("ff:b ii:b", {"lt": "False if either is nan", "le": "False if either is nan"}),
    Op("where", ("bff:f", "bii:i", "bbb:b"), "selects; the side that is not taken never matters, nan or not"),
)  # fmt: skip

CASTS = (
    Op("to_f", ("i:f", "b:f"), "rounded to the working precision; True is 1.0"),
    Op("to_i", ("f:i", "b:i"), "towards zero; nan, inf and values beyond 64 bits are unspecified"),
    Op("to_b", ("f:b", "i:b"), "x != 0; nan is True"),
    Op("round_f", ("f:f",), "rounded once to the named float dtype, then kept in the working precision", attr="dtype"),
    Op("wrap_i", ("i:i",), "wrapped to the named integer dtype, then kept in 64 bits", attr="dtype"),
)

GROUPS: dict[str, tuple[Op, ...]] = {
    "leaves": LEAVES,
    "arithmetic": ARITHMETIC,
    "rounding": ROUNDING,
    "transcendental": TRANSCENDENTAL,
    "logic": LOGIC,
    "casts": CASTS,
}

OPS: dict[str, Op] = {op.name: op for group in GROUPS.values() for op in group}

INDICES = ("b", "h", "q", "kv")
"""The four index leaves, in the order of a mod's arguments."""

RESULT_KIND: dict[str, str] = {
    f"{op.name}({taken})": given
    for op in OPS.values()
    for taken, _, given in (signature.partition(":") for signature in op.signatures)
    if op.name != "read"
}
"""``"add(ff)"`` -> ``"f"``. An absent entry is a kind error."""
