"""flexsdpa.ops: one function for traced values, NumPy arrays and plain numbers."""

import numpy as np
import pytest

from flexsdpa import ops
from null.trace.agreement import assert_same_values

TABLE = np.arange(120.0).reshape(4, 30)

CALLS = {
    "abs": lambda s, q, k: ops.abs(s),
    "ceil": lambda s, q, k: ops.ceil(s),
    "clamp": lambda s, q, k: ops.clamp(s, min=-1.0, max=0.5),
    "cos": lambda s, q, k: ops.cos(s),
    "erf": lambda s, q, k: ops.erf(s),
    "exp": lambda s, q, k: ops.exp(s),
    "exp2": lambda s, q, k: ops.exp2(s),
    "expm1": lambda s, q, k: ops.expm1(s),
    "floor": lambda s, q, k: ops.floor(s),
    "floor_divide": lambda s, q, k: ops.floor_divide(q - k, 4),
    "isnan": lambda s, q, k: ops.isnan(s),
    "log": lambda s, q, k: ops.log(s * s + 0.1),
    "log1p": lambda s, q, k: ops.log1p(s * s),
    "log2": lambda s, q, k: ops.log2(s * s + 0.1),
    "logical_and": lambda s, q, k: ops.logical_and(q > k, s > 0),
    "logical_not": lambda s, q, k: ops.logical_not(q > k),
    "logical_or": lambda s, q, k: ops.logical_or(q > k, s > 0),
    "maximum": lambda s, q, k: ops.maximum(s, 0.5),
    "minimum": lambda s, q, k: ops.minimum(q, k),
    "pow": lambda s, q, k: ops.pow(s, 2),
    "read": lambda s, q, k: ops.read(TABLE, q % 4, k),
    "remainder": lambda s, q, k: ops.remainder(q - k, -4),
    "round": lambda s, q, k: ops.round(s),
    "rsqrt": lambda s, q, k: ops.rsqrt(s * s + 0.1),
    "sigmoid": lambda s, q, k: ops.sigmoid(s),
    "sign": lambda s, q, k: ops.sign(s),
    "sin": lambda s, q, k: ops.sin(s),
    "sqrt": lambda s, q, k: ops.sqrt(s * s),
    "tanh": lambda s, q, k: ops.tanh(s),
    "trunc": lambda s, q, k: ops.trunc(s),
    "where": lambda s, q, k: ops.where(q > k, s, 0.0),
}


def test_every_function_is_tested():
    assert set(CALLS) == set(ops.__all__)


@pytest.mark.parametrize("name", CALLS)
def test_traced_values_and_arrays_agree(name):
    assert_same_values(lambda s, b, h, q, k: CALLS[name](s, q, k), tolerance=1e-14)


@pytest.mark.parametrize("name", CALLS)
def test_plain_numbers_and_arrays_agree(name):
    number = CALLS[name](-1.3, 7, 4)
    array = CALLS[name](np.array([-1.3]), np.array([7]), np.array([4]))
    np.testing.assert_allclose(np.asarray(number), array[0], rtol=1e-15)


@pytest.mark.parametrize("name", CALLS)
def test_a_function_knows_its_name_and_says_what_it_does(name):
    function = getattr(ops, name)
    assert function.__name__ == name
    assert function.__doc__


def test_clamp_takes_its_bounds_by_position():
    assert ops.clamp(5.0, -1.0, 1.0) == 1.0
    assert_same_values(lambda s, b, h, q, k: ops.clamp(s, -1.0, 1.0))


def test_sign_of_nan_is_zero_on_arrays_too():
    assert ops.sign(np.array([np.nan])).tolist() == [0.0]


def test_sigmoid_of_a_very_negative_array_is_zero_without_a_warning():
    assert ops.sigmoid(np.array([-1e4])).tolist() == [0.0]
