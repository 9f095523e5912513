"""Gradients of captured tensors: a sum over positions of partial slopes, placed at the indices that were read."""

import numpy as np
import pytest

from flexsdpa import ops
from flexsdpa.ir.canonical import derivative_of, program_of
from flexsdpa.ir.evaluate import evaluate
from null.helpers import traced
from null.ir.slopes import derived

RANDOM = np.random.default_rng(3)
Q, KV = (x.reshape(-1) for x in np.meshgrid(np.arange(5), np.arange(7), indexing="ij"))
H = Q % 2
SCORE = RANDOM.normal(size=len(Q))

TABLE = RANDOM.normal(size=(2, 13))
SLOPES = RANDOM.normal(size=2)
CAP = np.array([1.5])

MODS = {
    "a bias per distance": (lambda s, b, h, q, k: s + ops.read(TABLE, h, q - k + 6), [TABLE]),
    "a slope per head": (lambda s, b, h, q, k: s - ops.read(SLOPES, h) * (q - k), [SLOPES]),
    "a learned cap": (lambda s, b, h, q, k: ops.read(CAP, b) * ops.tanh(s / ops.read(CAP, b)), [CAP]),
    "two reads of one table": (lambda s, b, h, q, k: s + ops.read(TABLE, h, q) * ops.read(TABLE, 1 - h, k), [TABLE]),
    "negative indices": (lambda s, b, h, q, k: s * ops.read(TABLE, -1, -1 - k), [TABLE]),
    "two tables": (lambda s, b, h, q, k: s * ops.read(SLOPES, h) + ops.read(TABLE, h, k), [SLOPES, TABLE]),
    "one side of where": (
        lambda s, b, h, q, k: ops.where(k <= q, s + ops.read(SLOPES, h), s * ops.read(TABLE, h, k)),
        [SLOPES, TABLE],
    ),
}


def inputs():
    return {"score": SCORE, "b": np.zeros_like(Q), "h": H, "q": Q, "kv": KV}


@pytest.mark.parametrize("name", MODS)
def test_gradients_of_tables_are_limits_of_differences(name):
    mod, tables = MODS[name]
    found = traced(mod)
    assert [id(array) for array in found.arrays] == [id(table) for table in tables]
    weights = np.random.default_rng(5).normal(size=len(Q))

    def loss(arrays):
        return float((evaluate(program_of(found.text), inputs(), arrays, found.scalars)["score"] * weights).sum())

    derivative = derived(program_of(found.text))
    results = evaluate(derivative.program, inputs(), found.arrays, found.scalars)
    for slot, table in enumerate(found.arrays):
        gradient = np.zeros_like(table)
        for read in (read for read in derivative.reads if read.slot == slot):
            where = tuple(np.broadcast_to(results[index], len(Q)) for index in read.indices)
            np.add.at(gradient, where, results[read.partial] * weights)
        for place in np.ndindex(table.shape):
            step = np.zeros_like(table)
            step[place] = 1e-4
            moved = [[*found.arrays[:slot], table + sign * step, *found.arrays[slot + 1 :]] for sign in (1, -1)]
            expected = (loss(moved[0]) - loss(moved[1])) / 2e-4
            assert gradient[place] == pytest.approx(expected, rel=1e-6, abs=1e-7), place


class TestWhichReadsCount:
    def test_integer_and_bool_tables_have_no_gradient(self):
        ids, allowed = np.arange(7), np.ones(7, bool)
        found = traced(lambda s, b, h, q, k: s + ops.read(ids, k) * 1.0 + ops.where(ops.read(allowed, k), 0.0, 1.0))
        assert not derived(program_of(found.text)).reads

    def test_a_table_that_is_only_compared_has_no_gradient(self):
        found = traced(lambda s, b, h, q, k: ops.where(s > ops.read(SLOPES, h), s, 0.0))
        assert not derived(program_of(found.text)).reads

    def test_a_table_that_only_the_mask_reads_has_no_gradient(self):
        found = traced(lambda s, b, h, q, k: s, lambda b, h, q, k: ops.read(SLOPES, h) > 0.0)
        assert not derived(program_of(found.text)).reads

    def test_only_the_slots_that_are_asked_for_are_differentiated(self):
        found = traced(MODS["two tables"][0])
        assert [read.slot for read in derivative_of(found.text, frozenset((1,))).reads] == [1]

    def test_a_read_that_is_shared_is_differentiated_once(self):
        found = traced(lambda s, b, h, q, k: s * ops.read(SLOPES, h) + ops.read(SLOPES, h))
        assert len(derived(program_of(found.text)).reads) == 1
