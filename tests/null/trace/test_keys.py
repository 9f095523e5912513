"""What a mod is, is its program: whatever changes what it computes changes the text or a scalar, at once; nothing else does."""

import functools
import types

import numpy as np
import pytest

from flexsdpa import ops
from flexsdpa.ir.canonical import program_of
from flexsdpa.trace.run import IDENTITY_TEXT
from null.helpers import traced

LIMIT = 5
FACTOR = 0.5


def key(score_mod=None, mask_mod=None):
    """What decides which plan runs, and with which values."""
    found = traced(score_mod, mask_mod)
    return found.text, [float(x) for x in found.scalars], [id(x) for x in found.arrays]


def text(score_mod=None, mask_mod=None):
    return traced(score_mod, mask_mod).text


def changed_by_a_test(s):
    return s + 1


def uses_globals(s, b, h, q, k):
    return ops.where(q - k < LIMIT, s * FACTOR, s)


def scaled_by(factor):
    return lambda s, b, h, q, k: s * factor


def window_of(width):
    def mask(b, h, q, k):
        return q - k < width

    return mask


class Window:
    def __init__(self, width):
        self.width = width

    def __call__(self, b, h, q, k):
        return q - k < self.width

    def method(self, b, h, q, k):
        return q - k < self.width


def plus_one(mod):
    @functools.wraps(mod)
    def changed(s, b, h, q, k):
        return mod(s, b, h, q, k) + 1.0

    return changed


class TestDifferentFunctionsHaveDifferentPrograms:
    def test_two_lambdas_on_one_line(self):
        one, two = (lambda s, b, h, q, k: s * 2, lambda s, b, h, q, k: s * 3)  # fmt: skip
        assert text(one) != text(two)

    def test_two_lambdas_with_one_bytecode_and_different_constants(self):
        one, two = (lambda s, b, h, q, k: s + q, lambda s, b, h, q, k: s + k)
        assert text(one) != text(two)

    def test_lambdas_made_in_a_loop_with_defaults(self):
        mods = [lambda s, b, h, q, k, n=n: s * n for n in range(2, 6)]
        assert len({text(mod) for mod in mods}) == 4

    def test_lambdas_made_in_a_loop_that_close_over_its_variable(self):
        mods = [lambda s, b, h, q, k: s * n for n in range(2, 6)]
        assert len({text(mod) for mod in mods}) == 1  # all of them see the last n, as Python has it
        assert text(mods[0]) == text(lambda s, b, h, q, k: s * 5)

    def test_closures(self):
        assert text(None, window_of(4)) != text(None, window_of(5))

    def test_keyword_only_defaults(self):
        def four(b, h, q, k, *, width=4):
            return q - k < width

        def five(b, h, q, k, *, width=5):
            return q - k < width

        assert text(None, four) != text(None, five)

    def test_partials(self):
        def mod(factor, s, b, h, q, k, offset=0):
            return s * factor + offset

        texts = {text(functools.partial(mod, 2)), text(functools.partial(mod, 3)), text(functools.partial(mod, 2, offset=7))}
        assert len(texts) == 3

    def test_bound_methods_and_callable_objects(self):
        assert text(None, Window(4).method) != text(None, Window(5).method)
        assert text(None, Window(4)) != text(None, Window(5))

    def test_decorated_functions(self):
        mod = scaled_by(2)
        assert text(plus_one(mod)) not in (text(mod), text(plus_one(plus_one(mod))))

    def test_one_integer_float_and_bool(self):
        texts = {text(lambda s, b, h, q, k: ops.where(q == 3, value, q)) for value in (1, 1.0, True)}
        assert len(texts) == 3

    def test_zero_and_minus_zero(self):
        assert text(scaled_by(0.0)) != text(scaled_by(-0.0))

    @pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan")])
    def test_special_floats_are_part_of_the_program(self, value):
        found = traced(scaled_by(value))
        assert not found.scalars
        assert f"const_f {value!r}" in found.text

    def test_a_mask_is_not_a_score(self):
        assert text(lambda s, b, h, q, k: s, lambda b, h, q, k: k <= q) != text(lambda s, b, h, q, k: s)

    def test_arrays_of_another_dtype_or_rank(self):
        tables = [np.zeros(4), np.zeros(4, np.float32), np.zeros((4, 1))]
        texts = {text(lambda s, b, h, q, k: s + ops.read(t, *[h, 0][: t.ndim])) for t in tables}
        assert len(texts) == 3


class TestAChangeIsSeenAtOnce:
    def test_a_global_integer(self, monkeypatch):
        before = key(uses_globals)
        monkeypatch.setitem(globals(), "LIMIT", 6)
        assert key(uses_globals)[0] != before[0]

    def test_a_global_float(self, monkeypatch):
        before = key(uses_globals)
        monkeypatch.setitem(globals(), "FACTOR", 0.25)
        assert key(uses_globals) == (before[0], [0.25], [])

    def test_a_global_function(self, monkeypatch):
        mod = lambda s, b, h, q, k: changed_by_a_test(s)
        before = key(mod)
        monkeypatch.setitem(globals(), "changed_by_a_test", lambda s: s - 1)
        assert key(mod) != before

    def test_a_closure_cell(self):
        width = 4

        def mask(b, h, q, k):
            return q - k < width

        before = key(None, mask)
        width = 5
        assert key(None, mask) != before

    def test_a_default(self):
        def mask(b, h, q, k, width=4):
            return q - k < width

        before = key(None, mask)
        mask.__defaults__ = (5,)
        assert key(None, mask) != before

    def test_a_keyword_default(self):
        def mask(b, h, q, k, *, width=4):
            return q - k < width

        before = key(None, mask)
        mask.__kwdefaults__["width"] = 5
        assert key(None, mask) != before

    def test_an_attribute(self):
        window = Window(4)
        before = key(None, window)
        window.width = 5
        assert key(None, window) != before
        assert key(None, window.method) == key(None, window)

    def test_a_module_constant(self):
        module = types.ModuleType("settings")
        module.WIDTH = 4
        mask = lambda b, h, q, k: q - k < module.WIDTH
        before = key(None, mask)
        module.WIDTH = 5
        assert key(None, mask) != before

    def test_the_code_itself(self):
        def mod(s, b, h, q, k):
            return s * 2

        before = key(mod)
        mod.__code__ = (lambda s, b, h, q, k: s * 3).__code__
        assert key(mod) != before

    def test_an_entry_of_a_list_or_dict(self):
        settings = {"widths": [4, 8]}
        mask = lambda b, h, q, k: q - k < settings["widths"][0]
        before = key(None, mask)
        settings["widths"][0] = 5
        assert key(None, mask) != before

    def test_a_zero_dimensional_numpy_array(self):
        width, factor = np.array(4), np.array(0.5)
        mod = lambda s, b, h, q, k: ops.where(q - k < width, s * factor, s)
        before = key(mod)
        factor[...] = 0.25
        assert key(mod) == (before[0], [0.25], [])
        width[...] = 5
        assert key(mod)[0] != before[0]

    def test_a_branch_on_a_captured_value(self):
        sharp = True
        mod = lambda s, b, h, q, k: s * s if sharp else s
        before = key(mod)
        sharp = False
        assert key(mod) != before


class TestOneProgramServesAllValues:
    """A new number or tensor of the same kind costs nothing: the program stays."""

    @pytest.mark.parametrize("values", [(0.5, 0.25), (20.0, 1e-30), (3.5, -7.25)])
    def test_another_float(self, values):
        one, two = (key(scaled_by(value)) for value in values)
        assert one[0] == two[0]
        assert (one[1], two[1]) == ([values[0]], [values[1]])

    def test_another_array_of_the_same_kind(self):
        tables = [np.zeros((4, 9)), np.ones((2, 5))]
        one, two = (key(lambda s, b, h, q, k: s + ops.read(table, h, q)) for table in tables)
        assert one[0] == two[0]
        assert one[2] != two[2]

    def test_contents_of_an_array(self):
        table = np.zeros(4)
        mod = lambda s, b, h, q, k: s + ops.read(table, h)
        before = key(mod)
        table[2] = 7.0
        assert key(mod) == before

    def test_the_same_code_written_again(self):
        assert key(scaled_by(0.5)) == key(lambda score, batch, head, q_idx, kv_idx: score * 0.5)

    def test_a_local_name_and_a_literal(self):
        def named(s, b, h, q, k):
            width = 4
            return ops.where(q - k < width, s, -float("inf"))

        assert text(named) == text(lambda s, b, h, q, k: ops.where(q - k < 4, s, -float("inf")))

    def test_a_nested_function_and_its_body(self):
        def outer(s, b, h, q, k):
            def inner(x):
                return x * 2

            return inner(s) + 1

        assert text(outer) == text(lambda s, b, h, q, k: s * 2 + 1)

    def test_a_method_a_partial_and_a_lambda(self):
        assert text(None, Window(4)) == text(None, functools.partial(Window(4))) == text(None, lambda b, h, q, k: q - k < 4)

    def test_tracing_twice(self):
        assert key(uses_globals) == key(uses_globals)


class TestOperands:
    def test_one_array_read_twice_is_one_slot(self):
        table = np.zeros(9)
        found = traced(lambda s, b, h, q, k: s + ops.read(table, q) + ops.read(table, k))
        assert [id(a) for a in found.arrays] == [id(table)]
        assert found.text.count("array ") == 1

    def test_equal_arrays_are_two_slots(self):
        one, two = np.zeros(9), np.zeros(9)
        assert len(traced(lambda s, b, h, q, k: s + ops.read(one, q) + ops.read(two, k)).arrays) == 2

    def test_the_score_and_the_mask_share_slots(self):
        table = np.zeros(9)
        found = traced(lambda s, b, h, q, k: s + ops.read(table, q), lambda b, h, q, k: ops.read(table, k) > 0.0)
        assert len(found.arrays) == 1

    def test_scalars_come_in_the_order_of_use(self):
        assert traced(lambda s, b, h, q, k: s * 0.5 + 0.25).scalars == [0.5, 0.25]

    def test_equal_floats_are_two_scalars(self):
        """They may differ at the next call."""
        assert traced(lambda s, b, h, q, k: s * 0.5 + 0.5).scalars == [0.5, 0.5]

    @pytest.mark.parametrize("number", [np.float32(0.5), np.float64(0.5), np.array(0.5), 0.5])
    def test_numbers_of_numpy_are_numbers(self, number):
        found = traced(scaled_by(number))
        assert not found.arrays
        assert found.scalars == [0.5]

    def test_without_mods_it_is_plain_attention(self):
        assert program_of(traced().text).text == IDENTITY_TEXT
