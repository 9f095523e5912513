"""Slopes at ties, kinks and infinities, as the table and the mods' documentation state them."""

import numpy as np
import pytest

from flexsdpa import ops
from flexsdpa.ir.canonical import program_of
from flexsdpa.ir.evaluate import evaluate
from null.helpers import sketch, traced
from null.ir.slopes import derived, dscore, numerical

INF = float("inf")


def slopes(score_mod, points):
    """d(mod)/d(score) at some scores."""
    found = traced(score_mod)
    inputs = {"score": np.array(points), "b": 0, "h": 0, "q": 0, "kv": 0}
    slope = dscore(program_of(found.text), inputs, found.arrays, found.scalars)
    return np.broadcast_to(slope, len(points)).tolist()


def both_slopes(write, x, y):
    """The slopes in the score and in the read y."""
    found = derived(sketch(score=write))
    operands = {"score": np.array(x), "b": 0, "q": 0, "kv": 0}, [np.array([y]), np.array([True]), np.array([True])]
    results = evaluate(found.program, *operands)
    return float(results["dscore"]), float(results[found.reads[0].partial])


class TestTies:
    @pytest.mark.parametrize("op", ["minimum", "maximum"])
    def test_extrema_give_half_to_each_side(self, op):
        assert both_slopes(lambda e: getattr(e, op)(e.x, e.y), 2.0, 2.0) == (0.5, 0.5)

    @pytest.mark.parametrize(("op", "slope"), [("minimum", (1.0, 0.0)), ("maximum", (0.0, 1.0))])
    def test_away_from_a_tie_one_side_has_it_all(self, op, slope):
        assert both_slopes(lambda e: getattr(e, op)(e.x, e.y), 1.0, 2.0) == slope

    def test_abs_is_flat_at_zero(self):
        assert slopes(lambda s, b, h, q, k: abs(s), [-2.0, -0.0, 0.0, 2.0]) == [-1.0, 0.0, 0.0, 1.0]

    def test_clamp_passes_the_gradient_at_its_bounds(self):
        assert slopes(lambda s, b, h, q, k: ops.clamp(s, min=-1.5, max=2.5), [-1.6, -1.5, 0.0, 2.5, 2.6]) == [
            0.0,
            1.0,
            1.0,
            1.0,
            0.0,
        ]

    def test_relu_is_flat_at_zero(self):
        assert slopes(lambda s, b, h, q, k: s.relu(), [-1.0, 0.0, 1.0]) == [0.0, 0.0, 1.0]

    def test_the_larger_of_a_value_and_itself_has_slope_one(self):
        assert slopes(lambda s, b, h, q, k: ops.maximum(s, s), [0.0, 3.0]) == [1.0, 1.0]


class TestPowers:
    def test_to_the_power_zero_is_flat_even_at_zero(self):
        assert slopes(lambda s, b, h, q, k: s**0.0, [-1.0, 0.0, 2.0]) == [0.0, 0.0, 0.0]

    def test_an_exponent_has_no_slope_at_base_zero(self):
        assert both_slopes(lambda e: e.pow(e.x, e.y), 0.0, 2.0) == (0.0, 0.0)

    def test_a_negative_base_with_a_whole_exponent(self):
        program = sketch(score=lambda e: e.pow(e.x, e.f(3.0)))
        assert dscore(program, {"score": np.array([-2.0])}).tolist() == [12.0]

    @pytest.mark.parametrize("exponent", [1, 2, 5, 8])
    def test_small_whole_exponents_are_products(self, exponent):
        assert slopes(lambda s, b, h, q, k: s**exponent, [-2.0, 0.0, 1.5]) == [
            exponent * x ** (exponent - 1) for x in (-2.0, 0.0, 1.5)
        ]


class TestTheSideThatIsNotTaken:
    """where() selects slopes; an infinity on the other side does no harm."""

    def test_a_pole_on_the_other_side_is_invisible(self):
        mod = lambda s, b, h, q, k: ops.where(s > 0.0, ops.log(s), 0.0)
        assert slopes(mod, [-1.0, 0.0, 2.0]) == [0.0, 0.0, 0.5]

    def test_an_overflow_on_the_other_side_is_invisible(self):
        mod = lambda s, b, h, q, k: ops.where(s > 5.0, s, ops.exp(s * s))
        assert slopes(mod, [1e3])[0] == 1.0

    def test_a_mask_in_the_score_does_not_touch_the_slope(self):
        mod = lambda s, b, h, q, k: ops.where(k <= q, s * s, -INF)
        assert slopes(mod, [3.0]) == [6.0]

    def test_an_added_mask_keeps_slope_one(self):
        mod = lambda s, b, h, q, k: s + ops.where(k <= q, 0.0, -INF)
        assert slopes(mod, [3.0]) == [1.0]


class TestSaturation:
    def test_tanh_sigmoid_and_erf_are_flat_at_infinity(self):
        for function in (ops.tanh, ops.sigmoid, ops.erf):
            assert slopes(lambda s, b, h, q, k: function(s), [-INF, INF]) == [0.0, 0.0]

    def test_soft_capping_is_flat_at_infinity(self):
        assert slopes(lambda s, b, h, q, k: 20.0 * ops.tanh(s / 20.0), [-INF, 0.0, INF]) == [0.0, 1.0, 0.0]

    def test_sqrt_is_vertical_at_zero(self):
        assert slopes(lambda s, b, h, q, k: ops.sqrt(s), [0.0]) == [INF]

    def test_softplus_is_flat_far_below_zero_and_steep_far_above(self):
        assert slopes(lambda s, b, h, q, k: s.softplus(), [-INF, -1e3, 1e3]) == [0.0, 0.0, 1.0]

    def test_softplus_is_half_steep_at_zero(self):
        assert slopes(lambda s, b, h, q, k: s.softplus(), [0.0]) == pytest.approx([0.5])


SMOOTH_AT_ZERO = (
    "exp",
    "exp2",
    "expm1",
    "log1p",
    "tanh",
    "sigmoid",
    "erf",
    "erfc",
    "sin",
    "cos",
    "silu",
    "square",
    "neg",
    "softplus",
)


@pytest.mark.parametrize("name", SMOOTH_AT_ZERO)
def test_a_function_that_is_smooth_at_zero_has_its_slope_there(name):
    """A score of exactly 0 is no rarity: tables and projections start at 0."""
    found = traced(lambda s, b, h, q, k: getattr(s, name)())
    program = program_of(found.text)
    expected = numerical(lambda step: evaluate(program, {"score": np.array([step])}, (), found.scalars)["score"], 1e-3)
    np.testing.assert_allclose(dscore(program, {"score": np.array([0.0])}, (), found.scalars), expected, atol=1e-9)
