"""Infix text of a program, for people."""

from __future__ import annotations

from collections.abc import Sequence

from flexsdpa.ir.program import Program

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>", "eq": "==", "ne": "!=", "lt": "<", "le": "<=",
}  # fmt: skip
LEAF_TEXT = {"q": "q_idx", "kv": "kv_idx"}


def pretty(program: Program, names: Sequence[str] = ()) -> str:
    """One line a result: ``score = s0 * tanh(score / s1)``. Values used twice get a line of their own.

    names: what to call the captured tensors; t0, t1, ... by default.
    """
    uses = [0] * len(program.instrs)
    reached = program.reachable([n for _, n in program.results])
    for n in reached:
        for a in program.instrs[n].args:
            uses[a] += 1
    lines: list[str] = []
    texts: list[str] = []
    for n, instr in enumerate(program.instrs):
        args = [texts[a] for a in instr.args]
        text = _expression(instr.op, instr.attr, args, names)
        if n in reached and instr.args and uses[n] > 1 and len(text) > 12:
            name = f"x{len(lines)}"
            lines.append(f"{name} = {_outer(text)}")
            text = name
        texts.append(text)
    lines += [f"{name} = {_outer(texts[n])}" for name, n in program.results]
    return "\n".join(lines)


def value_texts(program: Program, names: Sequence[str] = ()) -> list[str]:
    """The full infix text of every value."""
    texts: list[str] = []
    for instr in program.instrs:
        texts.append(_expression(instr.op, instr.attr, [texts[a] for a in instr.args], names))
    return [_outer(text) for text in texts]


def _expression(op: str, attr: str, args: list[str], names: Sequence[str]) -> str:
    if op in INFIX:
        return f"({args[0]} {INFIX[op]} {args[1]})"
    if op.startswith("const"):
        return attr
    if op == "scalar":
        return f"s{attr}"
    if op == "read":
        name = names[int(attr)] if int(attr) < len(names) else f"t{attr}"
        return f"{name}[{', '.join(_outer(a) for a in args)}]" if args else name
    if op == "neg":
        return f"(-{args[0]})"
    if op == "not":
        return f"~{args[0]}"
    if op == "to_f":
        return f"float({_outer(args[0])})"
    if op == "to_i":
        return f"int({_outer(args[0])})"
    if op == "to_b":
        return f"bool({_outer(args[0])})"
    if op in ("round_f", "wrap_i"):
        return f"{attr}({_outer(args[0])})"
    return f"{op}({', '.join(_outer(a) for a in args)})" if args else LEAF_TEXT.get(op, op)


def _outer(text: str) -> str:
    """Drops one pair of parentheses that encloses the whole text."""
    if not text.startswith("("):
        return text
    depth = 0
    for n, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[1:-1] if n == len(text) - 1 else text
    return text
