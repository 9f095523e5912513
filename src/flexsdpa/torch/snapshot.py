"""ScoreMod and MaskMod: mods traced once, for callers who want no tracing at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flexsdpa.errors import TraceError
from flexsdpa.ir.canonical import program_of
from flexsdpa.ir.pretty import pretty
from flexsdpa.ir.text import parse
from flexsdpa.torch.functions import ReadMode, TorchFrontend
from flexsdpa.trace.recorder import Recorder
from flexsdpa.trace.run import trace


@dataclass(frozen=True, eq=False)
class Taken:
    """One trace of a snapshot: text, captured tensors, float operands (a float64 tensor)."""

    text: str
    arrays: list[Tensor]
    scalars: Tensor


def _steps(text: str, result: str) -> tuple[tuple[tuple[str, tuple[int, ...], str], ...], int]:
    program = parse(text)
    return tuple((instr.op, instr.args, instr.attr) for instr in program.instrs), dict(program.results)[result]


def _scalar(recorder: Recorder, value: Tensor) -> int:
    recorder.scalars.append(value if recorder.frontend.compiling else value.item())
    return recorder.builder.scalar()


class _Snapshot:
    """A traced mod: program, captured tensors and the values of captured numbers, as they were when it was made.

    Numbers are frozen: a global or closure that changes later is not seen. Tensors are kept by reference: their values are
    read at every call, and they receive gradients. Can be pickled and copied; holds no code object. Under torch.compile
    a snapshot's numbers are tensors, so one graph serves snapshots with any values.
    """

    role = ""
    result = ""

    def __init__(self, mod: Callable[..., Any]) -> None:
        traces = []
        for work in (torch.float32, torch.float64):  # score.dtype differs, so a mod that asks for it may too
            with ReadMode():
                traces.append(trace(*self._place(mod), TorchFrontend(work, torch.device("cpu"), False)))
        traces = traces[:1] if traces[0].text == traces[1].text else traces
        self._fill([Taken(t.text, list(t.arrays), torch.tensor(t.scalars, dtype=torch.float64)) for t in traces])

    def _fill(self, taken: list[Taken]) -> None:
        self._taken = taken
        self._steps = tuple(_steps(one.text, self.result) for one in taken)

    @property
    def text(self) -> str:
        """The program's text, for fp32 work."""
        return self._taken[0].text

    def _place(self, mod: Callable[..., Any]) -> tuple[Any, Any]:
        raise NotImplementedError

    def __getstate__(self) -> list[Taken]:
        return self._taken

    def __setstate__(self, state: list[Taken]) -> None:
        self._fill(state)

    def __call__(self, *args: Any) -> Any:
        recorder = getattr(args[-1], "_recorder", None) if args else None
        if recorder is None:
            raise TraceError(f"{type(self).__name__} can only be called inside a mod or given to attention")
        return self._flexsdpa_inline(recorder, self.role, list(args))

    def _flexsdpa_inline(self, recorder: Recorder, role: str, arguments: list[Any]) -> Any:
        """Replays the program into another trace."""
        if role != self.role:
            raise TraceError(f"a {type(self).__name__} was given as {role}: it is a {self.role}")
        names = ("score", "b", "h", "q", "kv")[-len(arguments) :]
        leaves = dict(zip(names, arguments, strict=True))
        which = len(self._taken) - 1 if recorder.frontend.kind_dtype("f") == torch.float64 else 0
        taken, (steps, result) = self._taken[which], self._steps[which]
        ids: list[int] = []
        for op, args, attr in steps:
            if op in leaves:
                ids.append(recorder.cast(recorder.lift(leaves[op]), "f" if op == "score" else "i"))
            elif op == "scalar":
                ids.append(_scalar(recorder, taken.scalars[int(attr)]))
            elif op == "read":
                ids.append(recorder.read(taken.arrays[int(attr)], tuple([recorder.value(ids[a]) for a in args])))
            else:
                ids.append(recorder.op(op, *[ids[a] for a in args], attr=attr))
        return recorder.value(ids[result])

    def __repr__(self) -> str:
        text = pretty(program_of(self.text)).replace("\n", "; ")
        return f"{type(self).__name__}({text})"


class ScoreMod(_Snapshot):
    __doc__ = f"""A score_mod, traced once.

    {_Snapshot.__doc__}

    Example: ``capped = ScoreMod(mods.softcap(30.0)); attention(q, k, v, score_mod=capped)``
    """
    role = "score_mod"
    result = "score"

    def _place(self, mod: Callable[..., Any]) -> tuple[Any, Any]:
        return mod, None


class MaskMod(_Snapshot):
    __doc__ = f"""A mask_mod, traced once.

    {_Snapshot.__doc__}
    """
    role = "mask_mod"
    result = "keep"

    def _place(self, mod: Callable[..., Any]) -> tuple[Any, Any]:
        return None, mod
