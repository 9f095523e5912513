"""Rewrites for a card: the same function up to rounding, with less to do for every score."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexsdpa import mods
from flexsdpa.backends.cudnn.tune import finished, tuned
from flexsdpa.ir.canonical import derivative_of, program_of
from flexsdpa.ir.evaluate import evaluate
from flexsdpa.testing.strategies import programs
from null.helpers import traced


def text_of(score_mod):
    return program_of(traced(score_mod, None).text)


def varying(program):
    """How many instructions are computed for every score."""
    depends = program.depends()
    return sum(bool(depends[n]) and i.op not in ("score", "q", "kv", "b", "h") for n, i in enumerate(program.instrs))


def test_a_quotient_by_a_number_is_a_product():
    body = finished(text_of(lambda s, b, h, i, j: s / 2.5)).text
    assert "mul 0" in body
    assert "div 1" in body  # 1 / 2.5, on the host


def test_factors_gather_on_the_host():
    program = finished(text_of(lambda s, b, h, i, j: ((s * 2.5) / 7.5) * 3.25))
    assert varying(program) == 1


def test_the_slope_of_a_soft_cap_is_four_operations():
    program = derivative_of(text_of(mods.softcap(30.0)).text, frozenset()).program
    before, after = varying(program), varying(finished(program))
    assert after < before
    assert after == 6  # two and a half for the score, its square, one product and one sum for the slope


@pytest.mark.parametrize("mod", [
    mods.softcap(3.0), lambda s, b, h, i, j: 3.0 - s, lambda s, b, h, i, j: (2.0 - s) * 4.5 / 1.5, lambda s, b, h, i, j: 2.5 / s,
    lambda s, b, h, i, j: (s - 2.5) * 3.5, lambda s, b, h, i, j: s * s * 2.5 * s,
], ids=range(6))  # fmt: skip
def test_it_is_the_same_function(mod):
    found = traced(mod, None)
    program = derivative_of(found.text, frozenset()).program
    inputs = {"score": np.random.default_rng(0).normal(size=200) * 3}
    expected, seen = (evaluate(p, inputs, (), found.scalars) for p in (program, finished(program)))
    for name, value in expected.items():
        np.testing.assert_allclose(seen[name], value, rtol=1e-12, atol=1e-12)


OPS = ("add(ff)", "sub(ff)", "mul(ff)", "div(ff)", "neg(f)", "where(bff)", "lt(ff)", "tanh")


@given(programs(ops=OPS, floats=(0.5, 1.0, 2.0, -3.0)), st.integers(0, 2**16))
def test_random_programs_keep_their_meaning(drawn, seed):
    random = np.random.default_rng(seed)
    inputs = {
        "score": random.normal(size=50),
        "b": np.zeros(50, int),
        "h": np.zeros(50, int),
        "q": np.arange(50),
        "kv": np.arange(50),
    }
    arrays = [
        random.normal(size=(60,) * slot.rank) if slot.kind == "f" else np.ones((60,) * slot.rank, int) for slot in drawn.arrays
    ]
    scalars = [float(x) for x in random.normal(size=drawn.scalars)]
    for change in (tuned, finished):
        expected, seen = (evaluate(p, inputs, arrays, scalars) for p in (drawn, change(drawn)))
        for name, value in expected.items():
            regular = np.isfinite(value) & (np.abs(value) < 1e6) if value.dtype.kind == "f" else np.ones(value.shape, bool)
            assert (np.isclose(seen[name], value, rtol=1e-6, atol=1e-6) | ~regular).mean() > 0.95
