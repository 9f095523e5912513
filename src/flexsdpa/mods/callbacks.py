"""Score functions of cuDNN users, written as graph calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flexsdpa.errors import RequestError, TraceError
from flexsdpa.trace.callback_check import check_bprop
from flexsdpa.trace.graph_callback import RecordingGraph, record
from flexsdpa.trace.tracer import Tracer


@dataclass(frozen=True, eq=False)
class from_graph_callback:
    """A score_mod from a cuDNN-style callback: ``fn(graph, score, tensors) -> tensor`` or ``fn(graph, score) -> tensor``.

    The callback runs on a graph of ours at every call, so it has a key, a structure, a derivative and every backend, like
    any other score_mod, and a changed default, global or attribute counts at once. It may be a function, a partial,
    a bound method or an object with state.

    fn: uses the graph's pointwise methods, ``gen_index`` and ``binary_select``, with cuDNN's argument names.
    tensors: what the callback finds under each name: tensors of shape (B or 1, H or 1, Sq or 1, Skv or 1), 0-D tensors, or
        numbers. Float tensors receive gradients.
    bprop: the callback's own derivative, ``bprop(graph, dscore, tensors) -> tensor``. It is not needed; where given it is
        recorded and compared with the derived one, and a difference is an error that shows both.

    Raises TraceError for a method that cannot be recorded (named, with the nearest), for a callback that returns anything but a
    tensor of the graph, and for a bprop that differs.

    Example::

        def softcap(graph, score, tensors):
            return graph.mul(a=graph.tanh(input=graph.div(a=score, b=tensors["cap"])), b=tensors["cap"])

        attention(q, k, v, score_mod=mods.from_graph_callback(softcap, tensors={"cap": 30.0}))
    """

    fn: Callable[..., Any]
    tensors: Mapping[str, Any] | None = None
    bprop: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        for name, value in (("fn", self.fn), ("bprop", self.bprop)):
            if value is not None and not callable(value):
                raise RequestError(f"{name} must be a callback (graph, score, tensors), not a {type(value).__name__}", field=name)

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        if not isinstance(score, Tracer):
            raise TraceError("a graph callback can only run where a score_mod is traced")
        graph = RecordingGraph(score._recorder, [b, h, q_idx, kv_idx])
        result = record(self.fn, graph, score, self.tensors)
        if self.bprop is not None and not score._recorder.frontend.compiling:
            check_bprop(self.fn, self.bprop, self.tensors, score._recorder.frontend)
        return result
