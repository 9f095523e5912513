"""Derivatives of random programs against differences in float64, away from kinks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flexsdpa.ir.evaluate import evaluate
from flexsdpa.ir.ops import GROUPS
from flexsdpa.ir.program import ArraySlot
from flexsdpa.ir.simplify import simplify
from flexsdpa.testing.strategies import every_value, programs
from null.ir.slopes import derived, numerical

ROWS = 24
H = 1e-4
FLOAT_OPS = [
    *(op.name for group in ("arithmetic", "rounding", "transcendental") for op in GROUPS[group]),
    "where(bff)", "lt(ff)", "le(ff)", "eq(ff)", "to_f", "and(bb)", "not(b)",
]  # fmt: skip
"""All that floats may pass through, but for casts to a dtype: those pass the slope on though their value is a staircase."""

SOURCE = programs(
    ops=FLOAT_OPS, slots=(ArraySlot("f64", 1),), scalars=1, results=(("score", "f"),),
    integers=(0, 1, 2, 3), floats=(0.0, 1.0, -1.0, 0.5, -2.5, 3.0),
)  # fmt: skip


def values(random):
    """Ordinary numbers: special ones sit on kinks."""
    inputs = {"score": random.normal(size=ROWS) * 2, **{leaf: random.integers(0, 5, ROWS) for leaf in ("b", "h", "q", "kv")}}
    return inputs, random.normal(size=5), [float(random.normal())]


def agreeing(function):
    """The slope at 0, and where all step sizes agree on it: neither a kink, a pole, a staircase nor noise in between."""
    fine, *others = (numerical(function, step) for step in (H / 2, H, 0.83 * H, 0.37 * H))
    with np.errstate(all="ignore"):
        alike = [np.abs(other - fine) <= 1e-6 * np.abs(fine) + 1e-8 for other in others]
    return fine, np.isfinite(fine) & np.all(alike, axis=0)


def noise(program, inputs, table, scalars):
    """What rounding of the largest intermediate value may do to a difference; inf where one sits on a kink or a pole."""
    results = evaluate(every_value(program), inputs, [table], scalars)
    computed = [f"v{n}" for n, instr in enumerate(program.instrs) if instr.args and instr.kind == "f"]
    sizes = np.abs([np.broadcast_to(results[name], ROWS) for name in computed] or np.ones((1, ROWS)))
    regular = np.all(np.isfinite(sizes) & (sizes > 0), axis=0)
    return np.where(regular, sizes.max(axis=0), np.inf) * np.finfo(np.float64).eps * 100 / H


def assert_slopes(program, slope, function, allowed):
    """Compares where differences are trustworthy; returns how many positions that were."""
    expected, fine = agreeing(function)
    expected, fine, slope = (np.broadcast_to(x, ROWS) for x in (expected, fine, slope))
    usable = fine & (allowed < 1e-3)
    error = np.abs(slope[usable] - expected[usable])
    assert np.all(error <= 1e-4 * np.abs(expected[usable]) + 1e-6 + allowed[usable]), program.text
    return int(usable.sum())


def test_slopes_in_the_score():
    compared = []

    @given(SOURCE, st.integers(0, 2**16))
    def check(drawn, seed):
        program = simplify(drawn)
        inputs, table, scalars = values(np.random.default_rng(seed))
        slope = evaluate(derived(program).program, inputs, [table], scalars).get("dscore", np.zeros(ROWS))

        def moved(step):
            return evaluate(program, {**inputs, "score": inputs["score"] + step}, [table], scalars)["score"]

        compared.append(assert_slopes(program, slope, moved, noise(program, inputs, table, scalars)))

    check()
    assert sum(compared) > len(compared) * ROWS / 8


def test_slopes_in_a_captured_tensor():
    """Every element moves at once: the slope is the sum over all reads."""
    compared = []

    @given(SOURCE, st.integers(0, 2**16))
    def check(drawn, seed):
        program = simplify(drawn)
        inputs, table, scalars = values(np.random.default_rng(seed))
        derivative = derived(program)
        results = evaluate(derivative.program, inputs, [table], scalars)
        slope = sum((results[read.partial] for read in derivative.reads), np.zeros(ROWS))

        def moved(step):
            return evaluate(program, inputs, [table + step], scalars)["score"]

        compared.append(assert_slopes(program, slope, moved, noise(program, inputs, table, scalars)))

    check()
    assert sum(compared) > len(compared) * ROWS / 8
