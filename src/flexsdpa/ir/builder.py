"""Builder: the only way to make a program. It writes text and numbers values as it goes.

The tracer uses one at every call, so ``emit`` is short and holds nothing that torch.compile cannot trace.
"""

from __future__ import annotations

from flexsdpa.errors import ProgramError
from flexsdpa.ir.ops import RESULT_KIND

VERSION_LINE = "flexsdpa-ir 1"


class Builder:
    """Collects instructions; an instruction that is already there is not written twice."""

    __slots__ = ("array_lines", "ids", "kinds", "lines", "scalar_count")

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.kinds: list[str] = []
        self.ids: dict[str, int] = {}
        self.array_lines: list[str] = []
        self.scalar_count = 0

    def emit(self, line: str, kind: str) -> int:
        """Adds a line of program text; returns its value's id."""
        known = self.ids.get(line)
        if known is None:
            known = len(self.kinds)
            self.ids[line] = known
            self.kinds.append(kind)
            self.lines.append(line)
        return known

    def op(self, name: str, *args: int, attr: str = "") -> int:
        """Adds ``name(args)``; its kind follows from the op table."""
        taken = "".join([self.kinds[a] for a in args])
        kind = RESULT_KIND.get(f"{name}({taken})")
        if kind is None:
            raise ProgramError(f"op {name!r} does not take kinds {taken!r}")
        head = f"{name} {attr}" if attr else name
        return self.emit(" ".join([head, *[str(a) for a in args]]), kind)

    def array(self, dtype: str, rank: int) -> int:
        """Declares a captured tensor; returns its slot."""
        self.array_lines.append(f"array {dtype} {rank}")
        return len(self.array_lines) - 1

    def scalar(self) -> int:
        """Declares a float operand; returns the id of its value."""
        self.scalar_count += 1
        return self.emit(f"scalar {self.scalar_count - 1}", "f")

    def read(self, slot: int, kind: str, indices: list[int]) -> int:
        """Adds a read of a captured tensor at integer values ``indices``."""
        return self.emit(" ".join(["read", str(slot), *[str(n) for n in indices]]), kind)

    def text(self, results: list[tuple[str, int]]) -> str:
        """The program's text, with the named results."""
        parts = [VERSION_LINE]
        parts.extend(self.array_lines)
        parts.append(f"scalars {self.scalar_count}")
        parts.extend(self.lines)
        parts.extend([f"return {name} {n}" for name, n in results])
        return "\n".join(parts)


def const_text(value: float) -> str:
    """Exact text of a float constant. Shortest repr round-trips every bit but nan's payload."""
    return repr(float(value))
