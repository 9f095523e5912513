"""Numerical derivatives in float64, for comparison with derived programs."""

import numpy as np

from flexsdpa.ir.derivative import derivative
from flexsdpa.ir.evaluate import evaluate
from flexsdpa.ir.verify import verify

ALL_SLOTS = frozenset(range(8))


def derived(program, slots=ALL_SLOTS):
    """The derivative, checked to be well formed."""
    found = derivative(program, slots)
    verify(found.program)
    return found


def dscore(program, inputs, arrays=(), scalars=()):
    """d(score result)/d(score); zero where the derivative program does not name it."""
    results = evaluate(derived(program).program, inputs, arrays, scalars)
    return np.asarray(results.get("dscore", 0.0))


def numerical(function, h):
    """The slope at 0 of a function of one step, by differences of fourth order."""
    with np.errstate(all="ignore"):
        return (8 * (function(h) - function(-h)) - (function(2 * h) - function(-2 * h))) / (12 * h)
