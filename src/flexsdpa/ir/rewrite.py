"""Rewriter: copies a program instruction by instruction, applying rules as it goes; then numbers it canonically."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from flexsdpa.ir.builder import Builder
from flexsdpa.ir.ops import OPS
from flexsdpa.ir.program import Instr, Program
from flexsdpa.ir.text import parse

Rule = Callable[["Rewriter", str, tuple[int, ...], str], int | None]


class Rewriter:
    """Builds a program from (op, args, attr) requests. Rules see each request before it is emitted.

    A rule returns the id of an equal value, or None. ``instr(n)`` looks at what has been emitted.
    """

    def __init__(self, source: Program, rules: Mapping[str, Sequence[Rule]]) -> None:
        self.builder = Builder()
        for slot in source.arrays:
            self.builder.array(slot.dtype, slot.rank)
        self.builder.scalar_count = source.scalars
        self.source = source
        self.rules = rules
        self._instrs: list[Instr] = []
        self._digests: list[bytes] = []

    def instr(self, n: int) -> Instr:
        return self._instrs[n]

    def make(self, op: str, *args: int, attr: str = "") -> int:
        """The id of ``op(args)``, simplified."""
        if OPS[op].commutative and self._digests[args[1]] < self._digests[args[0]]:
            args = (args[1], args[0])
        for rule in self.rules.get(op, ()):
            found = rule(self, op, args, attr)
            if found is not None:
                return found
        return self._emit(op, args, attr)

    def copy(self) -> list[int]:
        """Copies the whole source; returns old id -> new id."""
        return self.copy_instrs(self.source.instrs)

    def copy_instrs(self, instrs: Iterable[Instr]) -> list[int]:
        new: list[int] = []
        for instr in instrs:
            new.append(self.make(instr.op, *(new[a] for a in instr.args), attr=instr.attr))
        return new

    def const(self, value: bool | int | float) -> int:
        """The id of a constant; its kind follows the Python type."""
        kind = {bool: "b", int: "i", float: "f"}[type(value)]
        return self.make(f"const_{kind}", attr=repr(value))

    def finish(self, results: Sequence[tuple[str, int]]) -> Program:
        """The program with these results: dead values dropped, numbered in the order in which results need them."""
        return _renumber(self.source, self._instrs, results)

    def _emit(self, op: str, args: tuple[int, ...], attr: str) -> int:
        if op == "read":
            kind = self.source.arrays[int(attr)].kind
            n = self.builder.read(int(attr), kind, list(args))
        else:
            n = self.builder.op(op, *args, attr=attr)
        if n == len(self._instrs):
            self._instrs.append(Instr(op, args, attr, self.builder.kinds[n]))
            seed = f"{op} {attr} ".encode() + b"".join(self._digests[a] for a in args)
            self._digests.append(hashlib.blake2b(seed, digest_size=8).digest())
        return n


def _renumber(source: Program, instrs: Sequence[Instr], results: Sequence[tuple[str, int]]) -> Program:
    builder = Builder()
    for slot in source.arrays:
        builder.array(slot.dtype, slot.rank)
    builder.scalar_count = source.scalars
    new: dict[int, int] = {}
    for _, root in results:
        stack = [root]
        while stack:
            n = stack[-1]
            waiting = [a for a in instrs[n].args if a not in new]
            if n in new or not waiting:
                stack.pop()
                if n not in new:
                    instr = instrs[n]
                    head = [instr.op, *([instr.attr] if instr.attr else [])]
                    new[n] = builder.emit(" ".join([*head, *(str(new[a]) for a in instr.args)]), instr.kind)
            else:
                stack.extend(reversed(waiting))
    return parse(builder.text([(name, new[n]) for name, n in results]))
