"""The interval of one op, for every signature of every op: operands are drawn from special values, all combinations tried."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexsdpa.dtypes import DTYPES
from flexsdpa.ir.builder import Builder
from flexsdpa.ir.evaluate import evaluate
from flexsdpa.ir.ops import GROUPS, OPS, RESULT_KIND
from flexsdpa.ir.text import parse
from flexsdpa.structure.intervals import bounds
from flexsdpa.structure.ranges import ArrayRanges
from flexsdpa.testing.strategies import FLOATS, INTEGERS, SMALL_INTEGERS

LEAVES = {op.name for op in GROUPS["leaves"]}
CALLS = [call for call in RESULT_KIND if call.partition("(")[0] not in LEAVES]
POOLS = {
    "f": st.sampled_from([*FLOATS, -1e30, 1e10, 2.0**70, -7.25]),
    "i": st.sampled_from([*INTEGERS, *SMALL_INTEGERS, 255, -128, 127, 2**15, -(2**31)]),
    "b": st.booleans(),
}
DTYPE = {"f": ("f64", np.float64), "i": ("i64", np.int64), "b": ("bool", np.bool_)}
AXES = ("q", "kv", "b")
"""Operand n is read at an index of its own, so that all combinations occur."""


def one_op(call, attr):
    name, _, kinds = call.rstrip(")").partition("(")
    builder = Builder()
    slots = [builder.array(DTYPE[kind][0], 1) for kind in kinds]
    reads = [builder.read(slot, kind, [builder.op(axis)]) for slot, kind, axis in zip(slots, kinds, AXES, strict=False)]
    return parse(builder.text([("value", builder.op(name, *reads, attr=attr))])), kinds


@pytest.mark.parametrize("call", CALLS)
def test_no_combination_of_operands_falls_outside(call):
    name = call.partition("(")[0]
    attributes = [d.name for d in DTYPES.values() if d.kind == name[-1]] if OPS[name].attr else [""]

    @given(st.data(), st.sampled_from(attributes), st.sampled_from([np.float64, np.float32]))
    def check(data, attr, work):
        program, kinds = one_op(call, attr)
        arrays = [np.array(data.draw(st.lists(POOLS[kind], min_size=1, max_size=3)), DTYPE[kind][1]) for kind in kinds]
        boxes = {axis: (np.asarray(0), np.asarray(len(array) - 1)) for axis, array in zip(AXES, arrays, strict=False)}
        grid = np.meshgrid(*(np.arange(len(array)) for array in arrays), indexing="ij")
        values = evaluate(program, dict(zip(AXES, grid, strict=False)), arrays, work=work)["value"]
        low, high = bounds(program, boxes, [ArrayRanges(array) for array in arrays])[program.result("value")]
        if values.dtype == np.bool_:
            assert bool(low) or not values.any(), f"{values} may not be True: {arrays}"
            assert bool(high) or values.all(), f"{values} may not be False: {arrays}"
            return
        may_be_nan = (low, high) == (-np.inf, np.inf)
        inside = np.where(np.isnan(values), may_be_nan, (low <= values) & (values <= high))
        assert inside.all(), f"{values} in [{low}, {high}]: {arrays}"

    check()
