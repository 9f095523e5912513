"""Every function of the table that a mod may call, against NumPy."""

import math

import numpy as np
import pytest

from flexsdpa import ops
from flexsdpa.trace.functions import ALIASES, FLOAT_UNARY, FUNCTIONS, REVERSED
from null.helpers import traced
from null.trace.agreement import POSITIONS, assert_same_values, value_of

TABLE = np.random.default_rng(1).normal(size=(4, 30))

erf = np.vectorize(math.erf)


def to_bf16(x):
    """Rounded to 8 significant bits, half to even."""
    significand, exponent = np.frexp(x)
    return np.ldexp(np.rint(significand * 256) / 256, exponent)


UNARY = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log1p": np.log1p, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "erf": erf, "sin": np.sin,
    "cos": np.cos, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.round, "neg": np.negative, "abs": np.abs,
    "sign": np.sign, "square": np.square, "reciprocal": np.reciprocal, "relu": lambda x: np.where(x <= 0, 0, x),
    "softplus": lambda x: np.logaddexp(0, x), "silu": lambda x: x / (1 + np.exp(-x)), "log10": np.log10,
    "erfc": lambda x: 1 - erf(x), "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "logical_not": np.logical_not,
    "contiguous": lambda x: x, "clone": lambda x: x, "zeros_like": np.zeros_like, "ones_like": np.ones_like,
    "half": lambda x: x.astype(np.float16).astype(np.float64), "bfloat16": to_bf16,
    "float": lambda x: x.astype(np.float32).astype(np.float64), "double": lambda x: x, "bool": lambda x: x != 0,
    "int": lambda x: np.trunc(x).astype(np.int64), "long": lambda x: np.trunc(x).astype(np.int64),
    "short": lambda x: np.trunc(x).astype(np.int64),
}  # fmt: skip
"""Called as ``score.name()``."""

OTHERS = {
    "add": (lambda s, b, h, q, k: s.add(q, alpha=0.5), lambda s, b, h, q, k: s + 0.5 * q),
    "sub": (lambda s, b, h, q, k: s.sub(q, alpha=2), lambda s, b, h, q, k: s - 2 * q),
    "mul": (lambda s, b, h, q, k: s.mul(q), lambda s, b, h, q, k: s * q),
    "div": (lambda s, b, h, q, k: q.div(k + 1), lambda s, b, h, q, k: q / (k + 1)),
    "pow": (lambda s, b, h, q, k: s.pow(2), lambda s, b, h, q, k: s * s),
    "fmod": (lambda s, b, h, q, k: s.fmod(0.7), lambda s, b, h, q, k: np.fmod(s, 0.7)),
    "floor_divide": (lambda s, b, h, q, k: s.floor_divide(0.7), lambda s, b, h, q, k: s // 0.7),
    "remainder": (lambda s, b, h, q, k: s.remainder(-0.7), lambda s, b, h, q, k: s % -0.7),
    "minimum": (lambda s, b, h, q, k: s.minimum(q - k), lambda s, b, h, q, k: np.minimum(s, q - k)),
    "maximum": (lambda s, b, h, q, k: s.maximum(0.5), lambda s, b, h, q, k: np.maximum(s, 0.5)),
    "eq": (lambda s, b, h, q, k: q.eq(k), lambda s, b, h, q, k: q == k),
    "ne": (lambda s, b, h, q, k: q.ne(k), lambda s, b, h, q, k: q != k),
    "lt": (lambda s, b, h, q, k: s.lt(q), lambda s, b, h, q, k: s < q),
    "le": (lambda s, b, h, q, k: q.le(k), lambda s, b, h, q, k: q <= k),
    "gt": (lambda s, b, h, q, k: q.gt(k), lambda s, b, h, q, k: q > k),
    "ge": (lambda s, b, h, q, k: q.ge(k), lambda s, b, h, q, k: q >= k),
    "bitwise_and": (lambda s, b, h, q, k: q.bitwise_and(6), lambda s, b, h, q, k: q & 6),
    "bitwise_or": (lambda s, b, h, q, k: q.bitwise_or(6), lambda s, b, h, q, k: q | 6),
    "bitwise_xor": (lambda s, b, h, q, k: q.bitwise_xor(k), lambda s, b, h, q, k: q ^ k),
    "bitwise_not": (lambda s, b, h, q, k: q.bitwise_not(), lambda s, b, h, q, k: ~q),
    "bitwise_left_shift": (lambda s, b, h, q, k: q.bitwise_left_shift(3), lambda s, b, h, q, k: q << 3),
    "bitwise_right_shift": (lambda s, b, h, q, k: (q - k).bitwise_right_shift(1), lambda s, b, h, q, k: (q - k) >> 1),
    "logical_and": (lambda s, b, h, q, k: q.logical_and(s > 0), lambda s, b, h, q, k: np.logical_and(q, s > 0)),
    "logical_or": (lambda s, b, h, q, k: q.logical_or(k), lambda s, b, h, q, k: np.logical_or(q, k)),
    "logical_xor": (lambda s, b, h, q, k: q.logical_xor(k), lambda s, b, h, q, k: np.logical_xor(q, k)),
    "where": (lambda s, b, h, q, k: s.where(q > k, q), lambda s, b, h, q, k: np.where(q > k, s, q)),
    "clamp": (lambda s, b, h, q, k: s.clamp(-1, 0.5), lambda s, b, h, q, k: np.clip(s, -1, 0.5)),
    "clamp_min": (lambda s, b, h, q, k: (q - k).clamp_min(-2), lambda s, b, h, q, k: np.maximum(q - k, -2)),
    "clamp_max": (lambda s, b, h, q, k: s.clamp_max(0.5), lambda s, b, h, q, k: np.minimum(s, 0.5)),
    "masked_fill": (lambda s, b, h, q, k: s.masked_fill(q > k, -9.5), lambda s, b, h, q, k: np.where(q > k, -9.5, s)),
    "lerp": (lambda s, b, h, q, k: s.lerp(2.5, 0.25), lambda s, b, h, q, k: s + 0.25 * (2.5 - s)),
    "read": (lambda s, b, h, q, k: ops.read(TABLE, h, k), lambda s, b, h, q, k: TABLE[h, k]),
    "embedding": (lambda s, b, h, q, k: h.embedding(TABLE)[k], lambda s, b, h, q, k: TABLE[h, k]),
    "to": (lambda s, b, h, q, k: s.to("f16"), lambda s, b, h, q, k: s.astype(np.float16).astype(np.float64)),
    "type": (lambda s, b, h, q, k: (q * 20).type("u8"), lambda s, b, h, q, k: (q * 20).astype(np.uint8).astype(np.int64)),
    "type_as": (lambda s, b, h, q, k: s.type_as(q), lambda s, b, h, q, k: np.trunc(s).astype(np.int64)),
    "full_like": (lambda s, b, h, q, k: s.full_like(3), lambda s, b, h, q, k: np.full_like(s, 3)),
    "new_full": (lambda s, b, h, q, k: q.new_full((), 2.5), lambda s, b, h, q, k: np.full_like(q, 2.5)),
    "new_ones": (lambda s, b, h, q, k: s.new_ones(()), lambda s, b, h, q, k: np.ones_like(s)),
    "new_zeros": (lambda s, b, h, q, k: s.new_zeros((), dtype="i32"), lambda s, b, h, q, k: np.zeros_like(q)),
    "new_tensor": (lambda s, b, h, q, k: s.new_tensor(7), lambda s, b, h, q, k: np.full_like(s, 7)),
}  # fmt: skip


def positive(name, x):
    """Arguments in the domain of a function."""
    return abs(x) + 0.1 if name in ("log", "log2", "log1p", "log10", "sqrt", "rsqrt") else x


@pytest.mark.parametrize("name", UNARY)
def test_a_function_of_the_score(name):
    assert_same_values(
        lambda s, b, h, q, k: getattr(positive(name, s), name)(),
        lambda s, b, h, q, k: UNARY[name](positive(name, s)),
        tolerance=1e-14,
    )


@pytest.mark.parametrize("name", OTHERS)
def test_a_function_of_several_values(name):
    assert_same_values(*OTHERS[name], tolerance=1e-14)


@pytest.mark.parametrize("name", [*FLOAT_UNARY, "floor", "ceil", "trunc", "round", "neg", "abs", "sign"])
def test_a_function_of_an_integer(name):
    assert_same_values(lambda s, b, h, q, k: getattr(q + 1, name)(), lambda s, b, h, q, k: UNARY[name](q + 1), tolerance=1e-14)


class TestTheTableIsComplete:
    def test_every_function_is_tested(self):
        assert set(UNARY) | set(OTHERS) == set(FUNCTIONS) - set(ALIASES) - set(REVERSED)

    @pytest.mark.parametrize("alias", ALIASES)
    def test_an_alias_is_the_function_that_it_names(self, alias):
        assert FUNCTIONS[alias] is FUNCTIONS[ALIASES[alias]]

    @pytest.mark.parametrize("name", REVERSED)
    def test_a_reversed_function_exchanges_its_operands(self, name):
        value = (lambda s, q: s) if name == "rpow" else (lambda s, q: q)  # an integer has no traced exponent
        exchanged = traced(lambda s, b, h, q, k: getattr(value(s, q), name)(3) * s)
        plain = traced(lambda s, b, h, q, k: FUNCTIONS[REVERSED[name]](s._recorder, 3, value(s, q)) * s)
        assert exchanged.text == plain.text


class TestCorners:
    def test_clamp_with_one_bound(self):
        assert_same_values(lambda s, b, h, q, k: s.clamp(min=0.5), lambda s, b, h, q, k: np.maximum(s, 0.5))
        assert_same_values(lambda s, b, h, q, k: s.clamp(max=0.5), lambda s, b, h, q, k: np.minimum(s, 0.5))

    def test_clamp_of_integers_stays_integer(self):
        assert_same_values(lambda s, b, h, q, k: (q - k).clamp(-3, 3), lambda s, b, h, q, k: np.clip(q - k, -3, 3))

    def test_clamp_of_an_integer_by_a_float_is_a_float(self):
        assert_same_values(lambda s, b, h, q, k: (q - k).clamp(-1.5, 3), lambda s, b, h, q, k: np.clip(q - k, -1.5, 3.0))

    @pytest.mark.parametrize("mode", ["floor", "trunc"])
    def test_division_with_rounding(self, mode):
        rounding = {"floor": np.floor, "trunc": np.trunc}[mode]
        assert_same_values(lambda s, b, h, q, k: s.div(0.7, rounding_mode=mode), lambda s, b, h, q, k: rounding(s / 0.7))
        assert_same_values(
            lambda s, b, h, q, k: (q - k).div(4, rounding_mode=mode),
            lambda s, b, h, q, k: rounding((q - k) / 4).astype(int),
        )

    def test_fmod_of_integers(self):
        assert_same_values(lambda s, b, h, q, k: (q - k).fmod(4), lambda s, b, h, q, k: np.fmod(q - k, 4))

    def test_integer_casts_wrap(self):
        assert_same_values(
            lambda s, b, h, q, k: (q * 10**9).int(), lambda s, b, h, q, k: (q * 10**9).astype(np.int32).astype(int)
        )
        assert_same_values(
            lambda s, b, h, q, k: (q * 10**4).short(), lambda s, b, h, q, k: (q * 10**4).astype(np.int16).astype(int)
        )

    def test_a_cast_to_a_device_changes_nothing(self):
        assert_same_values(lambda s, b, h, q, k: s.to("cuda:0"), lambda s, b, h, q, k: s)

    def test_a_cast_by_keyword(self):
        assert_same_values(lambda s, b, h, q, k: q.to(dtype="f32"), lambda s, b, h, q, k: q.astype(float))

    def test_a_cast_to_a_numpy_dtype(self):
        assert_same_values(lambda s, b, h, q, k: s.to(np.dtype("int64")), lambda s, b, h, q, k: np.trunc(s).astype(int))

    def test_a_cast_to_a_numpy_type(self):
        assert_same_values(lambda s, b, h, q, k: s.to(np.int64), lambda s, b, h, q, k: np.trunc(s).astype(int))

    def test_where_takes_numbers(self):
        assert_same_values(lambda s, b, h, q, k: ops.where(q > k, 1, 2.5), lambda s, b, h, q, k: np.where(q > k, 1, 2.5))

    def test_isnan_and_its_relatives_at_special_values(self):
        special = {**POSITIONS, "score": np.array([np.nan, np.inf, -np.inf, 0.0, 1e300])}
        for name in ("isnan", "isinf", "isfinite"):
            found = value_of(lambda s, b, h, q, k: getattr(s, name)(), positions=special)
            assert found.tolist() == getattr(np, name)(special["score"]).tolist()

    def test_softplus_does_not_overflow(self):
        special = {**POSITIONS, "score": np.array([-1e4, -1.0, 0.0, 1.0, 1e4])}
        found = value_of(lambda s, b, h, q, k: s.softplus(), positions=special)
        np.testing.assert_allclose(found, np.logaddexp(0, special["score"]), rtol=1e-15)

    @pytest.mark.parametrize("mode", ["floor", "trunc"])  # fmt: skip
    def test_integer_division_is_exact_in_single_precision(self, mode):
        large = {**POSITIONS, "q": np.array([3 * (2**24 + 1), 3 * 2**40 + 3])}
        found = value_of(lambda s, b, h, q, k: q.div(3, rounding_mode=mode), work=np.float32, positions=large)
        assert found.tolist() == [2**24 + 1, 2**40 + 1]
