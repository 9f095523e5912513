"""What the framework-free tests share: programs in a few words, bitwise comparison, and tracing."""

import numpy as np

from flexsdpa.ir.builder import Builder, const_text
from flexsdpa.ir.canonical import program_of
from flexsdpa.ir.text import parse
from flexsdpa.trace.recorder import Frontend
from flexsdpa.trace.run import trace


class Sketch:
    """Writes values as nested calls: ``e.add(e.x, e.f(-0.0))``. Ops named like Python keywords end in ``_``.

    x (score) and y are floats, i (q_idx) and j (kv_idx) integers, p and r bools. y, p and r are read at b from captured
    tensors in slots 0, 1 and 2.
    """

    def __init__(self):
        self.builder = Builder()
        self.builder.array("f64", 1)
        self.builder.array("bool", 1)
        self.builder.array("bool", 1)
        self.x = self.builder.op("score")
        self.i, self.j, at = (self.builder.op(name) for name in ("q", "kv", "b"))
        self.y = self.builder.read(0, "f", [at])
        self.p, self.r = (self.builder.read(slot, "b", [at]) for slot in (1, 2))

    def __getattr__(self, name):
        return lambda *args, attr="": self.builder.op(name.removesuffix("_"), *args, attr=attr)

    def f(self, value):
        return self.builder.emit(f"const_f {const_text(value)}", "f")

    def n(self, value):
        return self.builder.emit(f"const_i {value}", "i")

    def flag(self, value):
        return self.builder.emit(f"const_b {value}", "b")


def sketch(**results):
    """The program of named results: ``sketch(score=lambda e: e.neg(e.x))``."""
    e = Sketch()
    return parse(e.builder.text([(name, write(e)) for name, write in results.items()]))


def program(*lines, arrays=(), scalars=0, **results):
    """A program from its instructions: ``program("score", "neg 0", score=1)``."""
    head = ["flexsdpa-ir 1", *(f"array {array}" for array in arrays), f"scalars {scalars}"]
    return parse("\n".join([*head, *lines, *(f"return {name} {n}" for name, n in results.items())]))


def traced(score_mod=None, mask_mod=None, q_offset=None):
    """What tracing without a framework gives: text, arrays and scalars."""
    return trace(score_mod, mask_mod, Frontend(), q_offset)


def program_from(score_mod=None, mask_mod=None, q_offset=None):
    """The canonical program of mods."""
    return program_of(traced(score_mod, mask_mod, q_offset).text)


def same(actual, expected):
    """Equal bit for bit, where any nan equals any nan."""
    actual, expected = np.broadcast_arrays(np.asarray(actual), np.asarray(expected))
    if actual.dtype != expected.dtype:
        return False
    if actual.dtype.kind != "f":
        return bool(np.array_equal(actual, expected))
    both_nan = np.isnan(actual) & np.isnan(expected)
    word = f"u{actual.dtype.itemsize}"
    return bool(np.all(both_nan | (np.ascontiguousarray(actual).view(word) == np.ascontiguousarray(expected).view(word))))


def assert_same_bits(actual, expected, note=""):
    if not same(actual, expected):
        actual, expected = np.broadcast_arrays(np.asarray(actual), np.asarray(expected))
        places = [n for n in range(actual.size) if not same(actual.flat[n], expected.flat[n])]
        shown = [f"[{n}] got {actual.flat[n]!r}, expected {expected.flat[n]!r}" for n in places[:5]]
        raise AssertionError("\n".join([f"{len(places)} of {actual.size} differ ({actual.dtype})", *shown, note]))


def masked(results):
    """The score that the softmax sees: -inf where ``keep`` is False."""
    return (
        np.where(results["keep"], results["score"], results["score"].dtype.type(-np.inf))
        if "keep" in results
        else results["score"]
    )
