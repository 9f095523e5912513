"""Runs a score_mod and a mask_mod on traced values and checks what they return."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flexsdpa.dtypes import KIND_NAMES
from flexsdpa.errors import RequestError, TraceError, layout_message
from flexsdpa.trace.functions import PartialRead
from flexsdpa.trace.recorder import Frontend, Recorder
from flexsdpa.trace.tracer import Tracer

ARGUMENTS = {"score_mod": "(score, b, h, q_idx, kv_idx)", "mask_mod": "(b, h, q_idx, kv_idx)"}

OFFSET_KINDS = "q_offset must be an integer, or an integer tensor of shape () or (batch,)"

IDENTITY_TEXT = "flexsdpa-ir 1\nscalars 0\nscore\nreturn score 0"
"""Plain attention: no mod, no mask."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What a call's mods came to: program text, and the operands by slot."""

    text: str
    arrays: list[Any]
    scalars: list[Any]


def trace(score_mod: Any, mask_mod: Any, frontend: Frontend, q_offset: Any = None) -> Trace:
    """The program of a score_mod and a mask_mod together (either may be None), with their operands.

    q_offset: added to the query index that the mods see: an integer, a 0-D or a (B,) integer tensor.
    """
    recorder = Recorder(frontend, Tracer)
    results: list[tuple[str, int]] = []
    score = recorder.value(recorder.builder.emit("score", "f"))
    indices = [recorder.value(recorder.builder.emit(name, "i")) for name in ("b", "h", "q", "kv")]
    if q_offset is not None:
        indices[2] = indices[2] + offset_value(recorder, q_offset, indices[0])
    if score_mod is None:
        results.append(("score", score._id))
    else:
        results.append(("score", _score_result(recorder, _call(score_mod, "score_mod", [score, *indices], recorder))))
    if mask_mod is not None:
        results.append(("keep", _mask_result(recorder, _call(mask_mod, "mask_mod", indices, recorder))))
    return Trace(recorder.builder.text(results), recorder.arrays, recorder.scalars)


def offset_value(recorder: Recorder, q_offset: Any, b: Any) -> Any:
    """A q_offset as a traced integer."""
    rank = getattr(q_offset, "ndim", 0)
    if rank <= 1:
        value = recorder.value(recorder.read(q_offset, (b,)) if rank else recorder.lift(q_offset))
        if value._kind == "i":
            return value
    raise RequestError(OFFSET_KINDS, field="q_offset", got=q_offset)


def _call(mod: Any, role: str, arguments: list[Any], recorder: Recorder) -> Any:
    inline = getattr(mod, "_flexsdpa_inline", None)
    if inline is not None:
        return inline(recorder, role, arguments)
    if recorder.frontend.compiling:
        return mod(*arguments)
    if not callable(mod):
        hint = "read it at a position: lambda b, h, q_idx, kv_idx: mask[q_idx, kv_idx]" if hasattr(mod, "ndim") else ""
        headline = f"{role} must be a function {ARGUMENTS[role]}, not a {type(mod).__name__}"
        raise TraceError(layout_message(headline, (("instead", hint),)))
    try:
        return mod(*arguments)
    except TypeError as error:
        if not isinstance(error, TraceError) and _does_not_fit(mod, len(arguments)):
            expects = _signature(mod)
            uncalled = f"{_name(mod)} makes mods: call it, {_name(mod)}(...)" if isinstance(mod, type) else ""
            rows = (("given", f"{_name(mod)}{expects}"), ("expected", f"a function {ARGUMENTS[role]}"), ("instead", uncalled))
            raise TraceError(layout_message(f"{role} does not take {len(arguments)} arguments", rows)) from None
        raise


def _does_not_fit(mod: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(mod).bind(*range(count))
    except TypeError:
        return True
    except ValueError:
        return False
    return False


def _signature(mod: Callable[..., Any]) -> str:
    try:
        return str(inspect.signature(mod))
    except (TypeError, ValueError):
        return "(...)"


def _name(mod: Any) -> str:
    return str(getattr(mod, "__qualname__", type(mod).__name__))


def _score_result(recorder: Recorder, result: Any) -> int:
    n = _traced(recorder, result, "score_mod", "the new score, a single float", (int, float))
    if recorder.builder.kinds[n] == "b":
        raise TraceError(
            layout_message(
                "score_mod returned a boolean, expected the new score, a single float",
                (("instead", "pass the condition as mask_mod, or return where(cond, score, -float('inf'))"),),
            )
        )
    return recorder.cast(n, "f")


def _mask_result(recorder: Recorder, result: Any) -> int:
    n = _traced(recorder, result, "mask_mod", "a boolean: True where attention is allowed", (bool,))
    kind = recorder.builder.kinds[n]
    if kind != "b":
        hint = "compare it (x != 0)" if kind == "i" else "an additive mask belongs in score_mod: score + bias"
        headline = f"mask_mod returned a value that is not boolean ({KIND_NAMES[kind]}), expected True where attention is allowed"
        raise TraceError(layout_message(headline, (("instead", hint),)))
    return n


def _traced(recorder: Recorder, result: Any, role: str, expected: str, numbers: tuple[type, ...]) -> int:
    if isinstance(result, Tracer):
        return recorder.lift(result)
    if isinstance(result, PartialRead):
        raise result.incomplete()
    number = isinstance(result, numbers) and not (isinstance(result, bool) and bool not in numbers)
    single = getattr(result, "ndim", None) == 0
    if number or (single and (recorder.frontend.array_dtype(result) is not None or type(result).__module__ == "numpy")):
        return recorder.lift(result)
    if hasattr(result, "shape"):
        got, hint = f"a tensor of shape {tuple(result.shape)}", "read one element per position: bias[h, q_idx, kv_idx]"
    else:
        name = type(result).__name__
        got = "None" if result is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
        hint = "did it forget to return?" if result is None else ""
    raise TraceError(layout_message(f"{role} returned {got}, expected {expected}", (("instead", hint),)))
