"""Interval arithmetic never excludes a value that occurs, by brute force over small boxes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexsdpa.ir.evaluate import evaluate
from flexsdpa.ir.ops import INDICES
from flexsdpa.ir.program import ArraySlot
from flexsdpa.ir.simplify import simplify
from flexsdpa.structure.intervals import bounds
from flexsdpa.structure.ranges import ArrayRanges
from flexsdpa.testing.strategies import (
    EXACT_OPS,
    FLOATS,
    INTEGERS,
    SMALL_INTEGERS,
    every_value,
    programs,
    random_array,
)
from null.helpers import program

SLOTS = (ArraySlot("i32", 1), ArraySlot("f32", 1), ArraySlot("bool", 2), ArraySlot("u8", 1), ArraySlot("i64", 0))
RESULTS = (("f", "f"), ("i", "i"), ("b", "b"))
INTEGER_OPS = [
    "add(ii)",
    "sub(ii)",
    "mul(ii)",
    "floordiv(ii)",
    "mod(ii)",
    "neg(i)",
    "abs(i)",
    "sign(i)",
    "minimum(ii)",
    "maximum(ii)",
    "and(ii)",
    "or(ii)",
    "xor(ii)",
    "not(i)",
    "shl",
    "shr",
    "wrap_i",
    "where(bii)",
    "lt(ii)",
    "eq(ii)",
    "to_i(b)",
]
FLOAT_OPS = [
    "add(ff)",
    "sub(ff)",
    "mul(ff)",
    "div",
    "floordiv(ff)",
    "mod(ff)",
    "minimum(ff)",
    "maximum(ff)",
    "neg(f)",
    "abs(f)",
    "sign(f)",
    "floor",
    "ceil",
    "round",
    "where(bff)",
    "to_f",
    "lt(ff)",
    "le(ff)",
    "eq(ff)",
    "ne(ff)",
    "round_f",
    "to_i(f)",
]
BOOL_OPS = [
    "and(bb)",
    "or(bb)",
    "xor(bb)",
    "not(b)",
    "eq(bb)",
    "ne(bb)",
    "where(bbb)",
    "to_b",
    "to_i(b)",
    "to_f(b)",
    "lt(ii)",
    "le(ii)",
    "eq(ii)",
    "lt(ff)",
]

GROUPS = {
    "integers": programs(ops=INTEGER_OPS, slots=SLOTS, results=RESULTS, steps=12),
    "small integers": programs(ops=INTEGER_OPS, slots=SLOTS, results=RESULTS, steps=12, integers=SMALL_INTEGERS),
    "floats": programs(ops=FLOAT_OPS, slots=SLOTS, results=RESULTS, steps=12),
    "bools": programs(ops=BOOL_OPS, slots=SLOTS, results=RESULTS, steps=12, integers=SMALL_INTEGERS),
    "all": programs(ops=EXACT_OPS, slots=SLOTS, results=RESULTS, steps=14),
}


def random_boxes(random, count):
    """Ranges (first, last) of b, h, q and kv for some boxes; now and then far from zero or below it."""
    boxes = {}
    for name in INDICES:
        first = random.choice([0, 0, 1, 2, 3, 5, -2, -7, 2**31 - 2, 2**62], count)
        boxes[name] = (first, first + random.integers(0, 3, count))
    return boxes


def points(boxes):
    """Every position of every box as columns, and which box each belongs to."""
    columns = {name: [] for name in INDICES}
    box = []
    for n in range(BOXES):
        axes = [np.arange(int(boxes[name][0][n]), int(boxes[name][1][n]) + 1) for name in INDICES]
        for name, values in zip(INDICES, np.meshgrid(*axes, indexing="ij"), strict=True):
            columns[name].append(values.reshape(-1))
        box.append(np.full(columns["b"][-1].shape, n))
    return {name: np.concatenate(parts) for name, parts in columns.items()}, np.concatenate(box)


def outside(values, interval, box):
    """Which values of one instruction are not in the interval of their box."""
    low, high = (np.broadcast_to(bound, BOXES)[box] for bound in interval)
    if values.dtype == np.bool_:
        return np.where(values, ~low, ~high)
    inside = (low <= values) & (values <= high)
    return ~np.where(np.isnan(values), (low == -np.inf) & (high == np.inf), inside)


BOXES = 3


@pytest.mark.parametrize("group", GROUPS)
def test_every_value_lies_in_its_interval(group):
    @given(GROUPS[group], st.integers(0, 2**16), st.sampled_from([np.float64, np.float32]), st.booleans())
    def check(drawn, seed, work, simplified):
        source = every_value(simplify(drawn) if simplified else drawn)
        random = np.random.default_rng(seed)
        boxes = random_boxes(random, BOXES)
        arrays = [random_array(random, slot, 4) for slot in source.arrays]
        scalars = random.choice(np.asarray(FLOATS), source.scalars).tolist()
        known = [ArrayRanges(array) if random.random() < 0.8 else None for array in arrays]
        intervals = bounds(source, boxes, known, scalars if random.random() < 0.8 else None)
        at, box = points(boxes)
        at["score"] = random.choice(np.asarray(FLOATS), len(box))
        results = evaluate(source, at, arrays, scalars, work=work)
        for n, instr in enumerate(source.instrs):
            values = np.broadcast_to(results[f"v{n}"], len(box))
            wrong = outside(values, intervals[n], box)
            assert not wrong.any(), (
                f"{n} {instr}: {values[wrong][0]} is not in {intervals[n]} (box {box[wrong][0]})\n{source.text}"
            )

    check()


class TestSpecialOperands:
    def interval(self, *lines, arrays=(), known=(), scalars=(), boxes=None):
        source = program(*lines, arrays=arrays, scalars=len(scalars), value=len(lines) - 1)
        box = {name: (np.asarray(0), np.asarray(3)) for name in INDICES} if boxes is None else boxes
        return bounds(source, box, known, scalars)[-1]

    @pytest.mark.parametrize("value", INTEGERS)
    def test_an_integer_constant_is_a_point(self, value):
        assert [int(x) for x in self.interval(f"const_i {value}")] == [value, value]

    def test_a_nan_constant_may_be_anything(self):
        assert [float(x) for x in self.interval("const_f nan")] == [-np.inf, np.inf]

    def test_infinity_minus_infinity_may_be_anything(self):
        assert [float(x) for x in self.interval("const_f inf", "sub 0 0")] == [-np.inf, np.inf]

    def test_zero_times_infinity_may_be_anything(self):
        low, high = self.interval("const_f inf", "q", "to_f 1", "mul 0 2")
        assert (float(low), float(high)) == (-np.inf, np.inf)

    def test_a_comparison_with_nan_may_fail(self):
        _, may_not = self.interval("const_f nan", "const_f 1.0", "le 0 1")
        assert bool(may_not)

    @pytest.mark.parametrize(("line", "answers"), [("le 1 2", [True, True]), ("lt 2 1", [True, True]), ("eq 1 2", [True, True])])
    def test_what_may_be_nan_is_not_certain_to_be_at_most_infinity(self, line, answers):
        known = [ArrayRanges(np.array([np.nan, np.inf]))]
        box = {"q": (np.asarray(0), np.asarray(1))}
        source = program("q", "read 0 0", "const_f inf", line, arrays=["f32 1"], keep=3)
        assert [bool(x) for x in bounds(source, box, known)[3]] == answers

    @pytest.mark.parametrize("sign", ["1e+30", "-1e+30"])
    def test_a_product_that_overflows_in_fp32_is_unbounded(self, sign):
        lines = ["const_f 1e+30", "mul 0 0"] if sign == "1e+30" else ["const_f 1e+30", f"const_f {sign}", "mul 0 1"]
        low, high = self.interval(*lines)
        assert float(low if sign[0] == "-" else high) == (-np.inf if sign[0] == "-" else np.inf)

    def test_a_product_that_underflows_in_fp32_may_be_zero(self):
        low, _ = self.interval("const_f 1e-30", "mul 0 0")
        assert float(low) <= 0

    def test_overflow_is_not_assumed_away(self):
        low, high = self.interval("const_i 9223372036854775807", "q", "add 0 1")
        assert (int(low), int(high)) == (-(2**63), 2**63 - 1)

    @pytest.mark.parametrize("unknown", ["shl 0 1", "shr 0 1", "or 0 1", "xor 0 1"])
    def test_an_op_without_a_rule_may_give_anything(self, unknown):
        low, high = self.interval("q", "kv", unknown)
        assert (int(low), int(high)) == (-(2**63), 2**63 - 1)

    def test_an_unknown_scalar_may_be_anything(self):
        source = program("scalar 0", "const_f 1.0", "lt 0 1", scalars=1, keep=2)
        assert [bool(x) for x in bounds(source, {}, (), None)[2]] == [True, True]

    def test_only_what_the_roots_need_is_bounded(self):
        source = program("q", "kv", "add 0 0", "mul 1 1", value=2)
        box = {name: (np.asarray(0), np.asarray(3)) for name in INDICES}
        assert [interval is None for interval in bounds(source, box, roots=[2])] == [False, True, False, True]

    @pytest.mark.parametrize("table", [[1e-50, 2e-50], [1e-320]])
    def test_an_operand_that_fp32_rounds_to_zero_is_not_called_positive(self, table):
        source = program("q", "read 0 0", "const_f 0.0", "lt 2 1", arrays=["f64 1"], keep=3)
        box = {"q": (np.asarray(0), np.asarray(len(table) - 1))}
        _, may_not = bounds(source, box, [ArrayRanges(np.array(table))])[3]
        kept = evaluate(source, {"q": np.arange(len(table))}, [np.array(table)], work=np.float32)["keep"]
        assert bool(may_not) or kept.all()

    def test_a_scalar_that_fp32_rounds_to_zero_is_not_called_positive(self):
        source = program("scalar 0", "const_f 0.0", "lt 1 0", scalars=1, keep=2)
        _, may_not = bounds(source, {}, (), [1e-50])[2]
        kept = evaluate(source, {}, (), [1e-50], work=np.float32)["keep"]
        assert bool(may_not) or kept.all()
