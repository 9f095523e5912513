"""A hand-written derivative of a graph callback against the derived one, at random positions and scores."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flexsdpa.dtypes import DTYPES
from flexsdpa.errors import TraceError, layout_message
from flexsdpa.ir.canonical import derivative_of, program_of
from flexsdpa.ir.evaluate import evaluate
from flexsdpa.ir.pretty import pretty
from flexsdpa.ir.program import Program
from flexsdpa.trace.graph_callback import RecordingGraph, record
from flexsdpa.trace.recorder import Frontend, Recorder
from flexsdpa.trace.tracer import Tracer

POINTS = 512
TOLERANCE = 1e-4
AT_TIES = 0.02
"""Share of points that may differ: a kink has no one slope, and a random score may fall on it."""
Array = np.ndarray[Any, Any]


def check_bprop(fn: Callable[..., Any], bprop: Callable[..., Any], tensors: Mapping[str, Any] | None, frontend: Frontend) -> None:
    """Raises TraceError, which shows both, if ``bprop`` is not the derivative of ``fn``."""
    recorder = Recorder(frontend, Tracer)
    score = recorder.value(recorder.builder.emit("score", "f"))
    indices = [recorder.value(recorder.builder.emit(name, "i")) for name in ("b", "h", "q", "kv")]
    graph = RecordingGraph(recorder, indices)
    new_score = recorder.cast(recorder.lift(record(fn, graph, score, tensors)), "f")
    slot = len(recorder.scalars)
    recorder.scalars.append(0.0)
    incoming = recorder.value(recorder.builder.scalar())
    given = recorder.cast(recorder.lift(record(bprop, graph, incoming, tensors, "bprop")), "f")
    text = recorder.builder.text([("score", new_score), ("given", given)])
    problem = _disagreement(text, slot, tuple(recorder.scalars), tuple(tuple(x.shape) for x in recorder.arrays))
    if problem:
        raise TraceError(problem)


@functools.lru_cache(maxsize=256)
def _disagreement(text: str, slot: int, scalars: tuple[float, ...], shapes: tuple[tuple[int, ...], ...]) -> str:
    program = program_of(text)
    forward = Program(program.arrays, program.scalars, program.instrs, (("score", _root(program, "score")),), program.text)
    derived = derivative_of(_text_of(forward), frozenset()).program
    random = np.random.default_rng(0)
    arrays = [_array(random, slot_.dtype, shape) for slot_, shape in zip(program.arrays, shapes, strict=True)]
    inputs: dict[str, Any] = {"score": random.normal(size=POINTS) * 3.0}
    inputs |= {name: random.integers(0, _length(shapes, d), POINTS) for d, name in enumerate(("b", "h", "q", "kv"))}
    values = [float(x) for x in scalars]
    values[slot] = float(random.normal())
    ours = evaluate(derived, inputs, arrays, values).get("dscore", np.zeros(()))
    theirs = evaluate(program, inputs, arrays, values)["given"]
    expected, found = np.broadcast_arrays(ours * values[slot], theirs)
    if _differ(expected, found).mean() <= AT_TIES:
        return ""
    n = int(np.argmax(_differ(expected, found)))
    n = min(n, POINTS - 1)
    return layout_message(
        "bprop of a graph callback is not the derivative of fn",
        (
            ("derived", pretty(derived).replace("\n", "; ")),
            ("bprop", pretty(program).replace("\n", "; ")),
            ("at", f"score {inputs['score'][n]:.4g}: derived {np.ravel(expected)[min(n, expected.size - 1)] / values[slot]:.4g}, "
                   f"bprop {np.ravel(found)[min(n, found.size - 1)] / values[slot]:.4g} for dscore 1"),
            ("instead", "leave bprop out: the derivative is derived from fn"),
        ),
    )  # fmt: skip


def _differ(expected: Array, found: Array) -> Array:
    with np.errstate(all="ignore"):
        close = np.abs(expected - found) <= TOLERANCE * (1 + np.abs(expected))
    differ: Array = ~(close | (np.isnan(expected) & np.isnan(found)))
    return differ


def _root(program: Program, name: str) -> int:
    n = program.result(name)
    assert n is not None
    return n


def _text_of(program: Program) -> str:
    lines = program.text.split("\n")
    kept = [line for line in lines if not line.startswith("return ")]
    return "\n".join([*kept, *(f"return {name} {n}" for name, n in program.results)])


def _array(random: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    kind = DTYPES[dtype].kind
    if kind == "f":
        return random.normal(size=shape)
    return random.integers(0, 2, shape).astype(np.bool_ if kind == "b" else np.int64)


def _length(shapes: Sequence[tuple[int, ...]], d: int) -> int:
    """How far a position may go: as far as the shortest tensor that it indexes, else some way."""
    return min([shape[d] for shape in shapes if len(shape) == 4 and shape[d] > 1], default=64)
