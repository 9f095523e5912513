"""Every clause of a structure means what it says: their conjunction is the mask, by brute force on small grids.

A wrong clause would mean skipped blocks and silent wrong numbers.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexsdpa import mods
from flexsdpa.ir.canonical import program_of
from flexsdpa.ir.evaluate import evaluate
from flexsdpa.ir.program import ArraySlot
from flexsdpa.ir.simplify import simplify
from flexsdpa.structure.analyse import AnyOf, Band, OneAxis, Positions, SameGroup, Unknown, analyse
from flexsdpa.testing.strategies import every_value, masks, random_array
from null.helpers import traced
from null.structure.grids import grid, positions
from null.structure.masks import MASKS, B, H


class Meaning:
    """The values of a program on a grid, and what a clause says about them."""

    def __init__(self, program, g, arrays, scalars):
        self.b, self.h, self.q, self.kv = positions(g)
        inputs = {"score": 0.0, "b": self.b, "h": self.h, "q": self.q, "kv": self.kv}
        self.shape = np.broadcast_shapes(*(x.shape for x in positions(g)))
        values = evaluate(every_value(program), inputs, arrays, scalars)
        self.values = [np.broadcast_to(values[f"v{n}"], self.shape) for n in range(len(program.instrs))]

    def bound(self, affine):
        assert (affine.q, affine.kv) == (0, 0)
        return affine.const + sum((coefficient * self.values[n] for n, coefficient in affine.terms), np.zeros(self.shape, int))

    def between(self, lower, x, upper):
        holds = np.ones(self.shape, bool)
        holds &= True if lower is None else self.bound(lower) <= x
        holds &= True if upper is None else x <= self.bound(upper)
        return holds

    def of(self, clause):
        match clause:
            case Band(lower, upper):
                return self.between(lower, self.kv - self.q, upper)
            case Positions(axis, lower, upper):
                x = self.kv if axis == "kv" else self.q
                return self.between(lower, x, None) & (True if upper is None else x < self.bound(upper))
            case SameGroup(_, q_value, kv_value):
                self.assert_exchanged(self.values[q_value], self.values[kv_value])
                return self.values[q_value] == self.values[kv_value]
            case OneAxis(axis, value):
                self.assert_constant_along(self.values[value], 2 if axis == "kv" else 3)
                return self.values[value]
            case Unknown(value):
                return self.values[value]
            case AnyOf(clauses):
                return np.logical_or.reduce([self.of(part) for part in clauses])
        raise AssertionError(clause)

    def assert_exchanged(self, of_q, of_kv):
        """One is the other with q and kv exchanged."""
        self.assert_constant_along(of_q, 3)
        self.assert_constant_along(of_kv, 2)
        shared = min(self.shape[2:])
        np.testing.assert_array_equal(of_q[:, :, :shared, 0], of_kv[:, :, 0, :shared])

    def assert_constant_along(self, values, axis):
        first = np.take(values, [0], axis)
        np.testing.assert_array_equal(values, np.broadcast_to(first, values.shape))


def assert_true(program, g, arrays, scalars):
    meaning = Meaning(program, g, arrays, scalars)
    said = np.ones(meaning.shape, bool)
    for clause in analyse(program).clauses:
        said &= meaning.of(clause)
    keep = program.result("keep")
    np.testing.assert_array_equal(said, True if keep is None else meaning.values[keep], err_msg=program.text)


@pytest.mark.parametrize("name", MASKS)
def test_the_clauses_of_a_ready_mask(name):
    found = traced(None, MASKS[name])
    assert_true(program_of(found.text), grid(70, 85, 16, 16, (0, B - 1), (0, H - 1)), found.arrays, found.scalars)


@given(masks(slots=(ArraySlot("i64", 1), ArraySlot("bool", 1), ArraySlot("f32", 1)), scalars=1), st.integers(0, 2**16))
def test_the_clauses_of_a_random_mask(drawn, seed):
    program = simplify(drawn)
    random = np.random.default_rng(seed)
    arrays = [random_array(random, slot, 9, (0, 1, 2, 3, 5, 8, -1)) for slot in program.arrays]
    assert_true(program, grid(9, 12, 4, 4, (0, 1), (0, 1)), arrays, [float(random.normal())])


def test_the_clauses_of_a_mask_whose_offset_overflows():
    found = traced(None, mods.causal(offset=2**63 - 1))
    assert_true(program_of(found.text), grid(4, 4, 4, 4), found.arrays, found.scalars)
