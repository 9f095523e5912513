"""capture_name: how error texts call a captured tensor."""

import functools

import numpy as np
import pytest

from flexsdpa.trace.capture import capture_name

A_GLOBAL = np.zeros(3)


class Bias:
    def __init__(self, table):
        self.table = table

    def __call__(self, s, b, h, q, k):
        return s + self.table[h]

    def method(self, s, b, h, q, k):
        return s + self.table[h]


def uses_a_global(s, b, h, q, k):
    return s + A_GLOBAL[h]


def name_of(make, tensor=None):
    tensor = np.zeros(3) if tensor is None else tensor
    return capture_name((make(tensor),), tensor)


class TestNames:
    def test_a_closure_variable(self):
        assert name_of(lambda bias: lambda s, b, h, q, k: s + bias[h]) == "bias"

    def test_a_default(self):
        assert name_of(lambda bias: lambda s, b, h, q, k, table=bias: s + table[h]) == "table"

    def test_a_keyword_default(self):
        assert name_of(lambda bias: lambda s, b, h, q, k, *, table=bias: s + table[h]) == "table"

    def test_a_global(self):
        assert name_of(lambda _: uses_a_global, A_GLOBAL) == "A_GLOBAL"

    def test_an_attribute_of_a_callable_object(self):
        assert name_of(Bias) == "table"

    def test_an_attribute_of_a_bound_methods_owner(self):
        assert name_of(lambda bias: Bias(bias).method) == "self.table"

    def test_an_attribute_of_a_captured_object(self):
        def make(bias):
            holder = Bias(bias)
            holder.__class__ = type("Holder", (), {})
            return lambda s, b, h, q, k: s + holder.table[h]

        assert name_of(make) == "holder.table"

    def test_arguments_of_a_partial(self):
        def mod(first, s, b, h, q, k, last=None):
            return s + first[h]

        assert name_of(lambda bias: functools.partial(mod, bias)) == "argument 0"
        assert name_of(lambda bias: functools.partial(mod, None, last=bias)) == "last"

    def test_a_function_that_the_mod_calls(self):
        def make(bias):
            inner = lambda h: bias[h]
            return lambda s, b, h, q, k: s + inner(h)

        assert name_of(make) == "bias"

    def test_the_mask_is_searched_after_the_score(self):
        table = np.zeros(3)
        assert capture_name((None, lambda b, h, q, k: table[k] > 0), table) == "table"


@pytest.mark.parametrize("mod", [None, lambda s, b, h, q, k: s, functools.partial(print, 1)])
def test_a_tensor_that_cannot_be_found_has_no_name(mod):
    assert capture_name((mod,), np.zeros(3)) == ""
