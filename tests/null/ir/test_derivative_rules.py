"""One test a derivative rule: against differences in float64, for the score and for a float that is read."""

import numpy as np
import pytest

from flexsdpa.ir.derivative import TANGENTS, ZERO_SLOPE, derivative
from flexsdpa.ir.evaluate import evaluate
from flexsdpa.ir.ops import RESULT_KIND
from null.helpers import sketch
from null.ir.slopes import derived, dscore, numerical

X = np.array([-2.3, -0.7, 0.4, 1.2, 3.1])
Y = np.array([1.7, -0.3, 2.2, -1.9, 0.6])
ABOVE_ZERO = np.abs(X) + 0.1

SMOOTH = {
    "add": (lambda e: e.add(e.x, e.y), X),
    "sub": (lambda e: e.sub(e.x, e.y), X),
    "mul": (lambda e: e.mul(e.x, e.y), X),
    "div": (lambda e: e.div(e.x, e.y), X),
    "pow": (lambda e: e.pow(e.x, e.y), ABOVE_ZERO),
    "minimum": (lambda e: e.minimum(e.mul(e.x, e.x), e.y), X),
    "maximum": (lambda e: e.maximum(e.mul(e.x, e.x), e.y), X),
    "mod": (lambda e: e.mod(e.x, e.y), X),
    "neg": (lambda e: e.neg(e.mul(e.x, e.y)), X),
    "abs": (lambda e: e.abs(e.mul(e.x, e.y)), X),
    "exp": (lambda e: e.exp(e.mul(e.x, e.y)), X),
    "exp2": (lambda e: e.exp2(e.mul(e.x, e.y)), X),
    "expm1": (lambda e: e.expm1(e.mul(e.x, e.y)), X),
    "log": (lambda e: e.log(e.abs(e.mul(e.x, e.y))), X),
    "log2": (lambda e: e.log2(e.abs(e.mul(e.x, e.y))), X),
    "log1p": (lambda e: e.log1p(e.abs(e.mul(e.x, e.y))), X),
    "sqrt": (lambda e: e.sqrt(e.abs(e.mul(e.x, e.y))), X),
    "rsqrt": (lambda e: e.rsqrt(e.abs(e.mul(e.x, e.y))), X),
    "tanh": (lambda e: e.tanh(e.mul(e.x, e.y)), X),
    "sigmoid": (lambda e: e.sigmoid(e.mul(e.x, e.y)), X),
    "erf": (lambda e: e.erf(e.mul(e.x, e.y)), X),
    "erfc": (lambda e: e.erfc(e.mul(e.x, e.y)), X),
    "sin": (lambda e: e.sin(e.mul(e.x, e.y)), X),
    "cos": (lambda e: e.cos(e.mul(e.x, e.y)), X),
    "where": (lambda e: e.where(e.lt(e.x, e.y), e.mul(e.x, e.y), e.exp(e.x)), X),
}
"""Op -> a program in which it takes x (the score) and y (a read), and values of x away from kinks."""

FLAT = {
    "floordiv": lambda e: e.floordiv(e.x, e.y),
    "sign": lambda e: e.sign(e.x),
    "floor": lambda e: e.floor(e.x),
    "ceil": lambda e: e.ceil(e.x),
    "trunc": lambda e: e.trunc(e.x),
    "round": lambda e: e.round(e.x),
    "to_f": lambda e: e.to_f(e.lt(e.x, e.y)),
}


def operands(x, y=Y):
    flags = np.zeros(len(Y), bool)
    return {"score": x, "b": np.arange(len(Y)), "q": 0, "kv": 0}, [y, flags, flags]


@pytest.mark.parametrize("op", SMOOTH)
def test_the_slope_in_the_score_is_the_limit_of_differences(op):
    write, x = SMOOTH[op]
    program = sketch(score=write)
    expected = numerical(lambda step: evaluate(program, *operands(x + step))["score"], 1e-3)
    np.testing.assert_allclose(dscore(program, *operands(x)), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("op", SMOOTH)
def test_the_slope_in_a_read_is_the_limit_of_differences(op):
    write, x = SMOOTH[op]
    program = sketch(score=write)
    found = derived(program)
    results = evaluate(found.program, *operands(x))
    expected = numerical(lambda step: evaluate(program, *operands(x, Y + step))["score"], 1e-3)
    assert [(read.slot, len(read.indices)) for read in found.reads] == [(0, 1)]
    np.testing.assert_allclose(results[found.reads[0].partial] + 0 * Y, expected, rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(results[found.reads[0].indices[0]], np.arange(len(Y)))


@pytest.mark.parametrize("op", FLAT)
def test_steps_have_no_slope(op):
    found = derived(sketch(score=FLAT[op]))
    assert found.program.result("dscore") is None
    assert not found.reads


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_rounding_to_a_dtype_passes_the_slope_on(dtype):
    program = sketch(score=lambda e: e.round_f(e.mul(e.x, e.x), attr=dtype))
    np.testing.assert_array_equal(dscore(program, *operands(X)), 2 * X)


class TestTheTableIsComplete:
    def test_every_op_that_gives_a_float_has_one_rule(self):
        floats = {call.partition("(")[0] for call, kind in RESULT_KIND.items() if kind == "f"} | {"read"}
        assert set(TANGENTS) | ZERO_SLOPE == floats
        assert not set(TANGENTS) & ZERO_SLOPE

    def test_every_rule_is_tested(self):
        assert set(SMOOTH) | {"round_f"} == set(TANGENTS)
        assert set(FLAT) | {"score", "const_f", "scalar", "read"} == set(ZERO_SLOPE)


class TestWhatIsAskedFor:
    def test_results_of_the_source_are_kept(self):
        program = sketch(score=lambda e: e.mul(e.x, e.x), keep=lambda e: e.p)
        found = derived(program)
        assert [name for name, _ in found.program.results][:3] == ["score", "keep", "dscore"]

    def test_the_identity_has_slope_one(self):
        found = derived(sketch(score=lambda e: e.x)).program
        assert (found.instrs[found.result("dscore")].op, found.instrs[found.result("dscore")].attr) == ("const_f", "1.0")

    def test_a_score_that_does_not_depend_on_the_score_has_no_slope(self):
        assert derived(sketch(score=lambda e: e.y)).program.result("dscore") is None

    def test_slots_that_nobody_asks_for_get_no_gradient(self):
        program = sketch(score=lambda e: e.add(e.x, e.y))
        assert not derived(program, frozenset()).reads
        assert not derived(program, frozenset((1, 2))).reads

    def test_a_program_without_a_score_has_no_derivative(self):
        with pytest.raises(ValueError, match=r"^a program without a score result has no derivative$"):
            derivative(sketch(keep=lambda e: e.p))
