"""Explains a read out of range: which captured tensor, which index, at which position."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch

from flexsdpa.errors import ReadError, layout_message
from flexsdpa.ir.evaluate import evaluate
from flexsdpa.ir.pretty import value_texts
from flexsdpa.ir.program import Program

if TYPE_CHECKING:
    from flexsdpa.backends.reference.torch_call import Call


def raise_fault(call: Call, position: dict[str, int]) -> NoReturn:
    """Raises ReadError for the first read that leaves its tensor at ``position`` (b, h, q, kv).

    The error's ``slot`` is the captured tensor's slot; the front end, which knows the function, adds its name.
    """
    program = call.compiled.program
    arrays = [(a.detach().cpu().float() if a.dtype == torch.bfloat16 else a.detach().cpu()).numpy() for a in call.arrays]
    q = call.q[position["b"], position["h"], position["q"]].double()
    k = call.k[position["b"], position["h"] // call.sizes.G, position["kv"]].double()
    inputs = {**position, "score": float((q * k).sum() * call.scale)}
    for n in program.reads():
        instr = program.instrs[n]
        array = call.arrays[int(instr.attr)]
        for d, a in enumerate(instr.args):
            index = int(evaluate(_only(program, a), inputs, arrays, call.C)["index"])
            size = array.shape[d]
            if not -size <= index < size:
                text = value_texts(program)[a]
                error = ReadError(
                    layout_message(
                        f"captured tensor number {instr.attr} was read out of range: "
                        f"index {index} in dimension {d} of size {size}",
                        (
                            ("tensor", f"{str(array.dtype).removeprefix('torch.')} of shape {tuple(array.shape)}"),
                            ("index", f"{text} = {index}"),
                            ("at", ", ".join(f"{name}={value}" for name, value in position.items()) + ", which the mask keeps"),
                            ("instead", "clamp the index, make the tensor longer, or mask the position"),
                        ),
                    )
                )
                error.slot = int(instr.attr)  # type: ignore[attr-defined]
                raise error
    raise ReadError(f"a captured tensor was read out of range at {position}")


def _only(program: Program, n: int) -> Program:
    """The program with one value as its only result, ``index``."""
    return Program(program.arrays, program.scalars, program.instrs, (("index", n),), program.text)
