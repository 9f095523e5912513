"""Well-formedness of a Program, as a table of rules. Tests run it after every pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flexsdpa.dtypes import DTYPES
from flexsdpa.errors import ProgramError
from flexsdpa.ir.ops import OPS, RESULT_KIND
from flexsdpa.ir.program import Program
from flexsdpa.ir.text import print_program


def _order(program: Program) -> Iterator[str]:
    for n, instr in enumerate(program.instrs):
        if any(not 0 <= a < n for a in instr.args):
            yield f"instruction {n} refers to itself or to a later one"


def _kinds(program: Program) -> Iterator[str]:
    for n, instr in enumerate(program.instrs):
        taken = "".join(program.instrs[a].kind for a in instr.args)
        if instr.op == "read":
            slot = program.arrays[int(instr.attr)]
            if taken != "i" * slot.rank or instr.kind != slot.kind:
                yield f"read {n} of a rank {slot.rank} {slot.dtype} tensor has kinds {taken!r} -> {instr.kind!r}"
        elif RESULT_KIND.get(f"{instr.op}({taken})") != instr.kind:
            yield f"instruction {n}: {instr.op} of {taken!r} is not {instr.kind!r}"


def _attrs(program: Program) -> Iterator[str]:
    for n, instr in enumerate(program.instrs):
        if bool(instr.attr) != bool(OPS[instr.op].attr):
            yield f"instruction {n}: {instr.op} with attribute {instr.attr!r}"
        if instr.op == "scalar" and not 0 <= int(instr.attr) < program.scalars:
            yield f"instruction {n}: scalar {instr.attr} of {program.scalars}"
        if OPS[instr.op].attr == "dtype" and instr.attr not in DTYPES:
            yield f"instruction {n}: unknown dtype {instr.attr!r}"


def _numbering(program: Program) -> Iterator[str]:
    seen: dict[tuple[object, ...], int] = {}
    for n, instr in enumerate(program.instrs):
        first = seen.setdefault((instr.op, instr.args, instr.attr), n)
        if first != n:
            yield f"instructions {first} and {n} are the same value"


def _results(program: Program) -> Iterator[str]:
    for name, n in program.results:
        if not 0 <= n < len(program.instrs):
            yield f"result {name!r} is not an instruction"
        elif name in ("score", "keep") and program.instrs[n].kind != ("f" if name == "score" else "b"):
            yield f"result {name!r} has kind {program.instrs[n].kind!r}"


def _text(program: Program) -> Iterator[str]:
    if print_program(program) != program.text:
        yield "the text is not the text of the fields"


RULES: tuple[Callable[[Program], Iterator[str]], ...] = (_order, _kinds, _attrs, _numbering, _results, _text)


def verify(program: Program) -> Program:
    """Returns the program, or raises ProgramError with everything that is wrong with it."""
    problems = list(_order(program))  # the other rules look operands up
    problems = problems or [problem for rule in RULES for problem in rule(program)]
    if problems:
        raise ProgramError("; ".join(problems))
    return program
