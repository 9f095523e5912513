"""Asking a traced value for its number, or for what only tensors have: pinned texts."""

import math

import numpy as np
import pytest

from flexsdpa.errors import TraceAttributeError, TraceError
from flexsdpa.ir.canonical import program_of
from flexsdpa.ir.evaluate import evaluate
from null.helpers import traced
from null.trace.messages import error_of

CANNOT = "which a traced mod cannot do"
LIST = [1.0, 2.0, 3.0]

NUMBERS = {
    "int": (lambda s, b, h, q, k: s * int(q), "int() of a traced value", "use .long() to cast; a traced value has no number yet"),
    "float": (
        lambda s, b, h, q, k: float(s),
        "float(), or a function of the math module, of a traced value",
        "use torch functions, or .float() to cast",
    ),
    "math.sqrt": (
        lambda s, b, h, q, k: math.sqrt(s),
        "float(), or a function of the math module, of a traced value",
        "use torch functions, or .float() to cast",
    ),
    "complex": (lambda s, b, h, q, k: complex(s), "complex() of a traced value", "use real numbers"),
    "list index": (
        lambda s, b, h, q, k: s * LIST[q],
        "indexing a list, tuple or NumPy array, or range(), of a traced value",
        "make it a tensor and index that: table[q_idx]",
    ),
    "range": (
        lambda s, b, h, q, k: sum(s for _ in range(q)),
        "indexing a list, tuple or NumPy array, or range(), of a traced value",
        "make it a tensor and index that: table[q_idx]",
    ),
    "iteration": (lambda s, b, h, q, k: list(s), "iteration of a traced value", "a traced value is a single number"),
    "unpacking": (lambda s, b, h, q, k: [*s], "iteration of a traced value", "a traced value is a single number"),
    "len": (lambda s, b, h, q, k: s * len(q), "len() of a traced value", "a traced value is a single number"),
    "index": (
        lambda s, b, h, q, k: s[0],
        "indexing of a traced value",
        "a traced value is a single number; index captured tensors instead",
    ),
    "assignment": (
        lambda s, b, h, q, k: s.__setitem__(0, 1.0),
        "assignment to an element of a traced value",
        "use where(cond, a, b)",
    ),
    "matmul": (
        lambda s, b, h, q, k: s @ s,
        "matmul() of a traced value",
        "concatenate the extra dimensions to q and k instead of multiplying inside the mod",
    ),
}

METHODS = {
    "item": "a traced value has no number yet; use it as it is",
    "tolist": "a traced value has no number yet; use it as it is",
    "sum": "a mod sees one score at a time; sums over keys are what softmax does, other sums belong before the call",
    "softmax": "attention applies the softmax; the mod changes the score before it",
    "detach": "the derivative of a mod is derived from all of it; detach captured tensors before the call",
    "rand_like": "randomness differs between forward and backward; read random numbers from a captured tensor",
    "gelu": "x * 0.5 * (1 + erf(x * 0.7071))",
    "tan": "sin(x) / cos(x)",
    "tanhh": "the nearest supported function is tanh()",
    "add_": "the nearest supported function is add()",
    "sigmiod": "the nearest supported function is sigmoid()",
    "xyzzyx": "see flexsdpa.ops for what a mod may call",
}

OPERATIONS = {
    "- of bools": (lambda s, b, h, q, k: s * ((q > k) - (k > q)), "`-` of two booleans", "use `^`, or cast with .long()"),
    "~ of a float": (lambda s, b, h, q, k: ~s, "`~` of a float", "compare first: ~(score > 0)"),
    "& of a float": (lambda s, b, h, q, k: s & 1, "bitwise and of a float", "compare first: (score > 0) & (q_idx >= kv_idx)"),
    "int ** 9": (
        lambda s, b, h, q, k: s * q**9,
        "an integer to the power 9",
        "use exponents 0 to 8, or make the base a float: x.float() ** n",
    ),
    "round to decimals": (lambda s, b, h, q, k: round(s, 2), "round() to decimals", "scale first: (x * 100).round() / 100"),
    "unknown dtype": (
        lambda s, b, h, q, k: s.type("f8"),
        "a cast to f8",
        "use one of bool, u8, i8, i16, i32, i64, f16, bf16, f32, f64",
    ),
    "an option": (
        lambda s, b, h, q, k: s.tanh(3),
        "tanh() with arguments (Tracer, int)",
        "call it on single values, without options",
    ),
    "a keyword": (
        lambda s, b, h, q, k: s.exp(out=s),
        "exp() with arguments (Tracer, out=)",
        "call it on single values, without options",
    ),
    "where without values": (
        lambda s, b, h, q, k: (q > k).where(),
        "where() with one argument",
        "give both values: where(cond, a, b)",
    ),
    "where of a number": (
        lambda s, b, h, q, k: q.where(s, 0.0),
        "where() with a condition that is not boolean",
        "compare first: where(x != 0, a, b)",
    ),
    "a new vector": (
        lambda s, b, h, q, k: s.new_zeros((3,)),
        "a new tensor of shape (3,)",
        "a mod computes one value per position: use shape ()",
    ),
    "a string": (lambda s, b, h, q, k: s + "a", "a value of type str cannot take part in a mod: 'a'", "use numbers and tensors"),
    "a complex number": (
        lambda s, b, h, q, k: s * 1j,
        "a value of type complex cannot take part in a mod: 1j",
        "use numbers and tensors",
    ),
    "None": (
        lambda s, b, h, q, k: s * None,
        "a value of type NoneType cannot take part in a mod: None",
        "use numbers and tensors",
    ),
    "a huge integer": (lambda s, b, h, q, k: s * 2**63, "the integer 9223372036854775808 does not fit in 64 bits", "use a float"),
    "a huge negative integer": (
        lambda s, b, h, q, k: s * (-(2**63) - 1),
        "the integer -9223372036854775809 does not fit in 64 bits",
        "use a float",
    ),
    "a huge NumPy integer": (
        lambda s, b, h, q, k: s * np.uint64(2**63),
        "the integer 9223372036854775808 does not fit in 64 bits",
        "use a float",
    ),
}


@pytest.mark.parametrize("name", {**NUMBERS, **OPERATIONS})
def test_the_error_says_what_was_asked_and_what_works(name):
    mod, what, instead = {**NUMBERS, **OPERATIONS}[name]
    headline, rows = error_of(mod)
    assert headline == (what if "64 bits" in what else f"{what}, {CANNOT}")
    assert rows["instead"] == instead
    assert rows["at"].startswith(f"{__file__}:")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_is_not_supported(name):
    headline, rows = error_of(lambda s, b, h, q, k: getattr(s, name)())
    assert headline == f"{name}() of a traced value, {CANNOT}"
    assert rows["instead"] == METHODS[name]
    assert rows["at"].startswith(f"{__file__}:")


def test_a_method_that_is_not_supported_is_an_attribute_error_too():
    error_of(lambda s, b, h, q, k: s.item(), kind=TraceAttributeError)
    assert issubclass(TraceAttributeError, AttributeError)


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), np.int64(2**62), np.uint8(200)])
def test_64_bit_integers_are_fine(number):
    assert f"const_i {int(number)}" in traced(lambda s, b, h, q, k: s * number).text


TABLE = np.zeros(3)


def test_indexing_a_numpy_array_gives_advice():
    headline, _ = error_of(lambda s, b, h, q, k: s + TABLE[q])
    assert headline == f"indexing a list, tuple or NumPy array, or range(), of a traced value, {CANNOT}"


@pytest.mark.parametrize("function", [np.tanh, lambda x: np.maximum(x, 0.0), lambda x: np.where(x > 0, x, 0.0)])
def test_a_numpy_function_is_recorded(function):
    scores = np.array([-2.0, 0.0, 3.0])
    found = traced(lambda s, b, h, q, k: function(s))
    program = program_of(found.text)
    np.testing.assert_array_equal(evaluate(program, {"score": scores}, (), found.scalars)["score"], function(scores))


@pytest.mark.parametrize("function", [np.cbrt, lambda x: np.add.reduce(x), np.linalg.norm])
def test_a_numpy_function_that_is_not_supported_gives_advice(function):
    headline, rows = error_of(lambda s, b, h, q, k: function(s))
    assert headline.endswith(CANNOT)
    assert rows["instead"]


def test_a_type_error_of_the_mod_itself_stays_as_it_is():
    with pytest.raises(TypeError, match=r"^can only concatenate str") as raised:
        error_of(lambda s, b, h, q, k: "a" + 1)
    assert not isinstance(raised.value, TraceError)
