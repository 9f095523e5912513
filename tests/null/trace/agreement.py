"""Mods on traced values against the same mods on NumPy arrays."""

import numpy as np

from flexsdpa.ir.evaluate import evaluate
from flexsdpa.ir.text import parse
from flexsdpa.ir.verify import verify
from null.helpers import traced

_random = np.random.default_rng(7)
ROWS = 200
POSITIONS = {
    "score": _random.normal(size=ROWS) * 3,
    "b": _random.integers(0, 3, ROWS),
    "h": _random.integers(0, 4, ROWS),
    "q": _random.integers(0, 30, ROWS),
    "kv": _random.integers(0, 30, ROWS),
}


def value_of(mod, work=np.float64, positions=POSITIONS):
    """A value that a traced function of (score, b, h, q_idx, kv_idx) computes, of whatever kind, by the interpreter."""
    seen = []

    def score_mod(s, b, h, q, k):
        seen.append(mod(s, b, h, q, k))
        return s

    found = traced(score_mod)
    body = found.text[: found.text.index("\nreturn ")]
    program = verify(parse(f"{body}\nreturn value {seen[0]._id}"))
    return evaluate(program, positions, found.arrays, found.scalars, work=work)["value"]


def assert_same_values(mod, numpy_mod=None, tolerance=0.0):
    """A traced mod computes what the mod (or a stand-in for it) computes on NumPy arrays."""
    with np.errstate(all="ignore"):
        expected = np.broadcast_to(np.asarray((numpy_mod or mod)(*POSITIONS.values())), ROWS)
    actual = np.broadcast_to(value_of(mod), ROWS)
    assert actual.dtype.kind == expected.dtype.kind
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
