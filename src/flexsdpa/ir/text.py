"""Canonical text in, Program out. The parser is strict: anything that Builder would not write is refused."""

from __future__ import annotations

from flexsdpa.dtypes import DTYPES
from flexsdpa.errors import ProgramError
from flexsdpa.ir.builder import VERSION_LINE
from flexsdpa.ir.ops import OPS, RESULT_KIND
from flexsdpa.ir.program import ArraySlot, Instr, Program


def parse(text: str) -> Program:
    """Program text -> Program. Raises ProgramError that names the line."""
    lines = text.split("\n")
    if lines[0] != VERSION_LINE:
        raise ProgramError(f"program text must start with {VERSION_LINE!r}, not {lines[0]!r}")
    arrays: list[ArraySlot] = []
    instrs: list[Instr] = []
    results: list[tuple[str, int]] = []
    seen: set[str] = set()
    scalars = -1
    for number, line in enumerate(lines[1:], start=2):
        try:
            words = line.split(" ")
            if words[0] == "array" and scalars < 0:
                arrays.append(_array(words))
            elif words[0] == "scalars" and scalars < 0:
                scalars = _natural(words[1])
                _expect(len(words) == 2, "one number after 'scalars'")
            elif words[0] == "return":
                _expect(len(words) == 3 and words[1] != "", "'return name id'")
                results.append((words[1], _operand(words[2], len(instrs))))
            else:
                _refuse_if(scalars < 0 or bool(results), f"no instruction may stand here: {words[0]!r}")
                _refuse_if(line in seen, "this instruction is there already")
                seen.add(line)
                instrs.append(_instr(words, instrs, arrays, scalars))
        except (ProgramError, IndexError, ValueError) as error:
            raise ProgramError(f"line {number} of program text, {line!r}: {error}") from None
    if scalars < 0 or not results:
        raise ProgramError("program text ends early: 'scalars' and 'return' lines are needed")
    if len({name for name, _ in results}) != len(results):
        raise ProgramError("program text names one result twice")
    return Program(tuple(arrays), scalars, tuple(instrs), tuple(results), text)


def print_program(program: Program) -> str:
    """The text of a program, from its fields alone."""
    lines = [VERSION_LINE]
    lines += [f"array {slot.dtype} {slot.rank}" for slot in program.arrays]
    lines.append(f"scalars {program.scalars}")
    for instr in program.instrs:
        lines.append(" ".join([instr.op, *([instr.attr] if instr.attr else []), *map(str, instr.args)]))
    lines += [f"return {name} {n}" for name, n in program.results]
    return "\n".join(lines)


def _array(words: list[str]) -> ArraySlot:
    _, dtype, rank = words
    _refuse_if(dtype not in DTYPES, f"unknown dtype {dtype!r}")
    return ArraySlot(dtype, _natural(rank))


def _instr(words: list[str], before: list[Instr], arrays: list[ArraySlot], scalars: int) -> Instr:
    op = OPS.get(words[0])
    if op is None:
        raise ProgramError(f"unknown op {words[0]!r}")
    attr = words[1] if op.attr else ""
    args = tuple(_operand(word, len(before)) for word in words[2 if op.attr else 1 :])
    kinds = "".join(before[a].kind for a in args)
    if op.name == "read":
        slot = arrays[_natural(attr)]
        _expect(kinds == "i" * slot.rank, f"{slot.rank} integer indices needed, got kinds {kinds!r}")
        return Instr(op.name, args, attr, slot.kind)
    kind = RESULT_KIND.get(f"{op.name}({kinds})")
    if kind is None:
        raise ProgramError(f"{op.name} does not take kinds {kinds!r}")
    _check_attr(op.attr, op.name, attr, scalars)
    return Instr(op.name, args, attr, kind)


def _check_attr(what: str, op: str, attr: str, scalars: int) -> None:
    if what == "slot":
        _expect(_natural(attr) < scalars, f"scalar {attr} of {scalars}")
    elif what == "dtype":
        _refuse_if(attr not in DTYPES or DTYPES[attr].kind != op[-1], f"unknown dtype {attr!r}")
    elif op == "const_b":
        _expect(attr in ("True", "False"), "True or False")
    elif op == "const_i":
        _expect(str(int(attr)) == attr and -(2**63) <= int(attr) < 2**63, "a 64-bit integer")
    elif op == "const_f":
        _expect(repr(float(attr)) == attr, "a float as repr writes it")


def _operand(word: str, count: int) -> int:
    n = _natural(word)
    _refuse_if(n >= count, f"operand {n} is not defined yet")
    return n


def _natural(word: str) -> int:
    _expect(word.isascii() and word.isdigit() and str(int(word)) == word, f"a number, not {word!r}")
    return int(word)


def _expect(holds: bool, what: str) -> None:
    _refuse_if(not holds, f"expected {what}")


def _refuse_if(broken: bool, problem: str) -> None:
    if broken:
        raise ProgramError(problem)
