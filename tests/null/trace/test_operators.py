"""Python operators on traced values mean what they mean on NumPy arrays, kinds mixed as torch and NumPy mix them."""

import math

import numpy as np
import pytest

from null.helpers import traced
from null.trace.agreement import assert_same_values

MODS = {
    "float + float": lambda s, b, h, q, k: s + 0.5,
    "float - int": lambda s, b, h, q, k: s - q,
    "int - float": lambda s, b, h, q, k: q - s,
    "number - float": lambda s, b, h, q, k: 2 - s,
    "number + int": lambda s, b, h, q, k: 3 + q,
    "float * bool": lambda s, b, h, q, k: s * (q > k),
    "number * float": lambda s, b, h, q, k: 0.25 * s,
    "int * int": lambda s, b, h, q, k: q * k,
    "float / float": lambda s, b, h, q, k: s / 1.7,
    "int / int": lambda s, b, h, q, k: q / (k + 1),
    "number / float": lambda s, b, h, q, k: 1.5 / s,
    "float // float": lambda s, b, h, q, k: s // 0.7,
    "int // negative int": lambda s, b, h, q, k: (q - k) // -4,
    "number // int": lambda s, b, h, q, k: 100 // (q + 1),
    "int // float": lambda s, b, h, q, k: (q - k) // 2.5,
    "float % float": lambda s, b, h, q, k: s % 0.7,
    "int % negative int": lambda s, b, h, q, k: (q - k) % -4,
    "number % int": lambda s, b, h, q, k: 100 % (q + 1),
    "float ** 2": lambda s, b, h, q, k: s**2,
    "float ** 1": lambda s, b, h, q, k: s**1,
    "float ** 0": lambda s, b, h, q, k: s**0,
    "float ** 0.5": lambda s, b, h, q, k: abs(s) ** 0.5,
    "float ** -1": lambda s, b, h, q, k: s**-1.0,
    "int ** 3": lambda s, b, h, q, k: (q - k) ** 3,
    "number ** float": lambda s, b, h, q, k: 2.0**s,
    "-float": lambda s, b, h, q, k: -s,
    "-int": lambda s, b, h, q, k: -q,
    "+float": lambda s, b, h, q, k: +s,
    "abs(float)": lambda s, b, h, q, k: abs(s),
    "abs(int)": lambda s, b, h, q, k: abs(q - k),
    "divmod, quotient": lambda s, b, h, q, k: divmod(q, 4)[0],
    "divmod, remainder": lambda s, b, h, q, k: divmod(s, 0.7)[1],
    "float < float": lambda s, b, h, q, k: s < 0.3,
    "float <= int": lambda s, b, h, q, k: s <= (q - k),
    "int > float": lambda s, b, h, q, k: q > s,
    "int > int": lambda s, b, h, q, k: q > k,
    "int >= int": lambda s, b, h, q, k: q >= k,
    "int < int": lambda s, b, h, q, k: q < k,
    "int <= int": lambda s, b, h, q, k: q <= k,
    "number > int": lambda s, b, h, q, k: 10 > q,
    "number < int": lambda s, b, h, q, k: 10 < q,
    "number <= int": lambda s, b, h, q, k: 10 <= q,
    "number == int": lambda s, b, h, q, k: 10 == q,
    "int - int": lambda s, b, h, q, k: q - k,
    "number % float": lambda s, b, h, q, k: 7.5 % s,
    "number // float": lambda s, b, h, q, k: 7.5 // s,
    "number >= int": lambda s, b, h, q, k: 10 >= q,
    "int == int": lambda s, b, h, q, k: q == k,
    "int != number": lambda s, b, h, q, k: q != 7,
    "bool == bool": lambda s, b, h, q, k: (q > k) == (s > 0),
    "bool != bool": lambda s, b, h, q, k: (q > k) != (s > 0),
    "bool < bool": lambda s, b, h, q, k: (q > k) < (s > 0),
    "bool & bool": lambda s, b, h, q, k: (q > k) & (s > 0),
    "bool | bool": lambda s, b, h, q, k: (q > k) | (s > 0),
    "bool ^ bool": lambda s, b, h, q, k: (q > k) ^ (s > 0),
    "True & bool": lambda s, b, h, q, k: True & (q > k),
    "False | bool": lambda s, b, h, q, k: False | (q > k),
    "True ^ bool": lambda s, b, h, q, k: True ^ (q > k),
    "~bool": lambda s, b, h, q, k: ~(q > k),
    "int & int": lambda s, b, h, q, k: q & 5,
    "int | int": lambda s, b, h, q, k: 3 | q,
    "int ^ int": lambda s, b, h, q, k: q ^ k,
    "~int": lambda s, b, h, q, k: ~q,
    "int << number": lambda s, b, h, q, k: q << 2,
    "number << int": lambda s, b, h, q, k: 1 << q,
    "int >> number": lambda s, b, h, q, k: (q - k) >> 1,
    "number >> int": lambda s, b, h, q, k: 1000 >> q,
    "bool + bool": lambda s, b, h, q, k: (q > k) + (s > 0),
    "bool * bool": lambda s, b, h, q, k: (q > k) * (s > 0),
    "bool + int": lambda s, b, h, q, k: (q > k) + q,
    "bool + number": lambda s, b, h, q, k: (q > k) + 1,
    "bool + float": lambda s, b, h, q, k: (q > k) + 0.5,
    "-int of bool": lambda s, b, h, q, k: -((q > k) + 0),
    "NumPy float * float": lambda s, b, h, q, k: np.float32(0.5) * s,
    "float - NumPy int": lambda s, b, h, q, k: s - np.int16(3),
    "NumPy bool & bool": lambda s, b, h, q, k: np.True_ & (q > k),
    "0-D array * float": lambda s, b, h, q, k: np.array(0.3) * s,
}


@pytest.mark.parametrize("name", MODS)
def test_an_operator_means_what_it_means_in_numpy(name):
    assert_same_values(MODS[name], tolerance=1e-15)


WITH_STAND_IN = {
    "round(float)": (lambda s, b, h, q, k: round(s), lambda s, b, h, q, k: np.rint(s)),
    "round(int)": (lambda s, b, h, q, k: round(q), lambda s, b, h, q, k: q),
    "math.floor(float)": (lambda s, b, h, q, k: math.floor(s), lambda s, b, h, q, k: np.floor(s)),
    "math.ceil(float)": (lambda s, b, h, q, k: math.ceil(s), lambda s, b, h, q, k: np.ceil(s)),
    "math.trunc(float)": (lambda s, b, h, q, k: math.trunc(s), lambda s, b, h, q, k: np.trunc(s)),
    "int // 0": (lambda s, b, h, q, k: q // 0, lambda s, b, h, q, k: 0 * q),
    "int % 0": (lambda s, b, h, q, k: q % 0, lambda s, b, h, q, k: 0 * q),
}


@pytest.mark.parametrize("name", WITH_STAND_IN)
def test_an_operator_that_numpy_arrays_lack(name):
    assert_same_values(*WITH_STAND_IN[name])


class TestThePrograms:
    """What is written, where the program matters as well as the value."""

    def body(self, mod):
        return traced(mod).text.split("\n")[7:-1]

    def test_small_powers_are_products(self):
        assert self.body(lambda s, b, h, q, k: s**3) == ["mul 0 0", "mul 5 0"]

    def test_large_powers_are_pow(self):
        assert self.body(lambda s, b, h, q, k: s**9) == ["const_i 9", "to_f 5", "pow 0 6"]

    def test_a_greater_than_is_a_less_than(self):
        assert self.body(lambda s, b, h, q, k: s * (q > k)) == ["lt 4 3", "to_f 5", "mul 0 6"]

    def test_unary_plus_writes_nothing(self):
        assert self.body(lambda s, b, h, q, k: +s) == []

    def test_a_value_that_is_computed_twice_is_written_once(self):
        assert self.body(lambda s, b, h, q, k: (s + q) * (s + q)) == ["to_f 3", "add 0 5", "mul 6 6"]

    def test_an_integer_score_is_cast(self):
        assert self.body(lambda s, b, h, q, k: q - k) == ["sub 3 4", "to_f 5"]

    def test_a_number_may_be_the_score(self):
        assert self.body(lambda s, b, h, q, k: 0) == ["const_i 0", "to_f 5"]

    def test_a_bool_may_be_the_mask(self):
        assert traced(None, lambda b, h, q, k: True).text.split("\n")[-3:] == ["const_b True", "return score 0", "return keep 5"]


class TestWhatATensorIsAsked:
    """Properties that code written for tensors looks at."""

    def test_shape_and_size(self):
        def mod(s, b, h, q, k):
            assert (s.shape, s.ndim, s.dim(), s.numel(), s.size()) == ((), 0, 0, 1, ())
            return s

        traced(mod)

    def test_dtype_and_device(self):
        def mod(s, b, h, q, k):
            assert (s.dtype, q.dtype, (q > k).dtype, s.device) == ("f32", "i64", "bool", "cpu")
            assert s.is_floating_point()
            assert not q.is_floating_point()
            return s

        traced(mod)

    def test_hasattr_is_false_for_what_is_not_supported(self):
        def mod(s, b, h, q, k):
            assert not hasattr(s, "backward")
            assert not hasattr(s, "_private")
            assert hasattr(s, "tanh")
            return s

        traced(mod)

    def test_a_traced_value_prints_without_data(self):
        def mod(s, b, h, q, k):
            assert repr(s) == "<traced value 0>"
            return s

        traced(mod)
