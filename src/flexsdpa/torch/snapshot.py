"""ScoreMod and MaskMod: mods traced once, for callers who want no tracing at all."""

from __future__ import annotations

from collections.abc import Callable
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


class _Snapshot:
    """A traced mod: program, captured tensors and the values of captured numbers, as they were when it was made.

    Numbers are frozen: a global or closure that changes later is not seen. Tensors are kept by reference: their values are
    read at every call, and they receive gradients. Can be pickled and copied; holds no code object. Under torch.compile
    a snapshot's numbers are tensors, so one graph serves snapshots with any values.
    """

    role = ""
    result = ""

    def __init__(self, mod: Callable[..., Any]) -> None:
        with ReadMode():
            traced = trace(*self._place(mod), TorchFrontend(torch.float32, torch.device("cpu"), False))
        self._fill(traced.text, list(traced.arrays), torch.tensor(traced.scalars, dtype=torch.float64))

    def _fill(self, text: str, arrays: list[Tensor], scalars: Tensor) -> None:
        self.text = text
        self.arrays = arrays
        self.scalars = scalars
        program = parse(text)
        self._steps = tuple((instr.op, instr.args, instr.attr) for instr in program.instrs)
        self._result = dict(program.results)[self.result]

    def _place(self, mod: Callable[..., Any]) -> tuple[Any, Any]:
        raise NotImplementedError

    def __getstate__(self) -> tuple[str, list[Tensor], Tensor]:
        return self.text, self.arrays, self.scalars

    def __setstate__(self, state: tuple[str, list[Tensor], Tensor]) -> None:
        self._fill(*state)

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
        ids: list[int] = []
        for op, args, attr in self._steps:
            if op in leaves:
                ids.append(recorder.lift(leaves[op]))
            elif op == "scalar":
                ids.append(self._scalar(recorder, int(attr)))
            elif op == "read":
                ids.append(recorder.read(self.arrays[int(attr)], tuple([recorder.value(ids[a]) for a in args])))
            elif op == "score":
                ids.append(recorder.builder.emit("score", "f"))
            else:
                ids.append(recorder.op(op, *[ids[a] for a in args], attr=attr))
        return recorder.value(ids[self._result])

    def _scalar(self, recorder: Recorder, slot: int) -> int:
        value = self.scalars[slot]
        recorder.scalars.append(value if recorder.frontend.compiling else value.item())
        return recorder.builder.scalar()

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
