"""Program: the frozen form of a mod (or of a mod and a mask together, or of a derivative)."""

from __future__ import annotations

from dataclasses import dataclass, field

from flexsdpa.dtypes import DTYPES


@dataclass(frozen=True, slots=True)
class ArraySlot:
    """A captured tensor as the program sees it: dtype and rank, never sizes or values."""

    dtype: str
    rank: int

    @property
    def kind(self) -> str:
        return DTYPES[self.dtype].kind


@dataclass(frozen=True, slots=True)
class Instr:
    """One value: ``op(args)``. ``attr`` is text, so that 0.0 and -0.0 (equal floats) stay apart."""

    op: str
    args: tuple[int, ...]
    attr: str
    kind: str


@dataclass(frozen=True, slots=True)
class Program:
    """A flat, value-numbered program. Instruction n only refers to instructions before n.

    arrays: the captured tensors, by slot. scalars: how many float operands. results: name -> instruction,
    for example ``score`` and ``keep``. Two programs are equal when their texts are.
    """

    arrays: tuple[ArraySlot, ...]
    scalars: int
    instrs: tuple[Instr, ...]
    results: tuple[tuple[str, int], ...]
    text: str = field(repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def result(self, name: str) -> int | None:
        """The instruction that gives the named result, or None."""
        return dict(self.results).get(name)

    def reads(self) -> list[int]:
        """Ids of all ``read`` instructions."""
        return [n for n, instr in enumerate(self.instrs) if instr.op == "read"]

    def reachable(self, roots: list[int]) -> set[int]:
        """Ids of everything that ``roots`` depend on, themselves included."""
        seen: set[int] = set()
        stack = list(roots)
        while stack:
            n = stack.pop()
            if n not in seen:
                seen.add(n)
                stack.extend(self.instrs[n].args)
        return seen

    def depends(self) -> list[frozenset[str]]:
        """For every instruction, the leaves (score, b, h, q, kv) that it depends on."""
        out: list[frozenset[str]] = []
        for instr in self.instrs:
            if instr.op in LEAF_NAMES:
                out.append(frozenset((instr.op,)))
            else:
                out.append(frozenset().union(*(out[a] for a in instr.args)))
        return out


LEAF_NAMES = frozenset(("score", "b", "h", "q", "kv"))
