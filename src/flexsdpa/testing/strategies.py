"""Hypothesis strategies: random well-formed programs, and values to run them on. Needs hypothesis; no framework.

``programs()`` draws a program; ``cases()`` draws one together with inputs, captured tensors and scalars, special values
included. Both shrink: to fewer instructions, and to the first entries of the value tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from flexsdpa.dtypes import DTYPES
from flexsdpa.ir.builder import Builder, const_text
from flexsdpa.ir.evaluate import INTEGER_NAMES, evaluate
from flexsdpa.ir.ops import GROUPS, INDICES, OPS, RESULT_KIND
from flexsdpa.ir.program import ArraySlot, Program
from flexsdpa.ir.text import parse

Array = np.ndarray[Any, Any]

FLOATS = (0.0, 1.0, -1.0, -0.0, 0.5, -2.5, 3.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
"""Constants, scalars, scores and elements of captured float tensors."""
INTEGERS = (0, 1, 2, -1, 3, -3, 7, 64, -65, 2**31, 2**62, 2**63 - 1, -(2**63))
"""Constants, indices and elements of captured integer tensors."""
SMALL_INTEGERS = (0, 1, 2, -1, 3, -3, 5, 7, 8, -12)

LEAVES = ("score", *INDICES)
SLOTS = (ArraySlot("f32", 1), ArraySlot("i64", 2), ArraySlot("bool", 1))
COMPUTED_OPS = tuple(name for name, op in OPS.items() if op not in GROUPS["leaves"])
"""Every op that takes operands, reads apart."""
EXACT_OPS = tuple(name for name in COMPUTED_OPS if OPS[name] not in GROUPS["transcendental"] and name not in ("pow", "to_i"))
"""Ops whose result does not depend on a mathematical library, nor on how a float beyond 64 bits becomes an integer."""
ARRAY_TYPES: dict[str, Any] = {
    "bool": np.bool_, **INTEGER_NAMES, "f16": np.float16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A program and what to run it on: ``inputs`` are vectors of one length, a position each."""

    program: Program
    inputs: dict[str, Array]
    arrays: tuple[Array, ...]
    scalars: tuple[float, ...]

    def run(self, program: Program | None = None, work: Any = np.float64) -> dict[str, Array]:
        """The results of the case's program, or of another one that takes the same operands."""
        return evaluate(program or self.program, self.inputs, self.arrays, self.scalars, work=work)


def constants(integers: Sequence[int] = INTEGERS, floats: Sequence[float] = FLOATS) -> dict[str, tuple[str, ...]]:
    """The constants that a program may hold, by kind, as program text."""
    return {
        "b": ("True", "False"),
        "i": tuple(str(value) for value in integers),
        "f": tuple(const_text(value) for value in floats),
    }


@st.composite
def programs(
    draw: st.DrawFn,
    *,
    ops: Sequence[str] = COMPUTED_OPS,
    leaves: Sequence[str] = LEAVES,
    slots: Sequence[ArraySlot] = SLOTS,
    scalars: int = 2,
    steps: int = 16,
    results: Sequence[tuple[str, str]] = (("score", "f"), ("keep", "b")),
    integers: Sequence[int] = INTEGERS,
    floats: Sequence[float] = FLOATS,
) -> Program:
    """A well-formed program.

    ops: the computed ops it may use, by name (``add``) or by call (``add(ff)``). leaves: score, b, h, q, kv. slots: the
    captured tensors. steps: how many instructions are added to the leaves, at most. results: name and kind of every result.
    integers, floats: its constants.
    """
    builder = Builder()
    for slot in slots:
        builder.array(slot.dtype, slot.rank)
    values: dict[str, list[int]] = {"f": [], "i": [], "b": []}
    texts = constants(integers, floats)

    def keep(n: int) -> None:
        if n not in values[builder.kinds[n]]:
            values[builder.kinds[n]].append(n)

    def constant(kind: str) -> None:
        keep(builder.emit(f"const_{kind} {draw(st.sampled_from(texts[kind]))}", kind))

    for leaf in leaves:
        keep(builder.emit(leaf, "f" if leaf == "score" else "i"))
    for _ in range(scalars):
        keep(builder.scalar())
    for kind in "fib":
        if texts[kind]:
            constant(kind)
    allowed = set(ops)
    calls = [call for call in RESULT_KIND if call in allowed or call.partition("(")[0] in allowed]
    choices = [*calls, *(f"const_{kind}" for kind in "fib" if texts[kind]), *(f"read {n}" for n in range(len(slots)))]
    for _ in range(draw(st.integers(steps // 2, steps))):
        choice = draw(st.sampled_from(choices))
        name, _, kinds = choice.partition("(")
        kinds = kinds.removesuffix(")")
        if any(not values[kind] for kind in kinds):
            continue
        if name.startswith("const_"):
            constant(name[-1])
        elif name.startswith("read "):
            number = int(name.removeprefix("read "))
            array = slots[number]
            if values["i"] or array.rank == 0:
                keep(builder.read(number, array.kind, [draw(st.sampled_from(values["i"])) for _ in range(array.rank)]))
        else:
            keep(builder.op(name, *(draw(_operand(values[kind])) for kind in kinds), attr=draw(_attribute(name))))
    return parse(builder.text([(name, draw(st.sampled_from(values[kind][:-4:-1]))) for name, kind in results]))


def _operand(known: Sequence[int]) -> st.SearchStrategy[int]:
    """One of the values so far, as often the latest as all others together, so that programs grow deep."""
    latest_first = list(reversed(known))
    return st.sampled_from(latest_first[:1] * len(known) + latest_first)


def _attribute(op: str) -> st.SearchStrategy[str]:
    if OPS[op].attr != "dtype":
        return st.just("")
    return st.sampled_from([name for name, dtype in DTYPES.items() if dtype.kind == op[-1]])


@st.composite
def cases(
    draw: st.DrawFn,
    source: st.SearchStrategy[Program] | None = None,
    *,
    rows: int = 48,
    size: int = 5,
    integers: Sequence[int] = INTEGERS,
    floats: Sequence[float] = FLOATS,
) -> Case:
    """A program of ``source`` (any by default) with values for all that it takes.

    rows: positions. size: length of every dimension of a captured tensor. integers, floats: what inputs, captured tensors
    and scalars are drawn from.
    """
    program = draw(source if source is not None else programs())
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    inputs = {leaf: random.choice(np.asarray(floats if leaf == "score" else integers), rows) for leaf in LEAVES}
    arrays = tuple(random_array(random, slot, size, integers, floats) for slot in program.arrays)
    return Case(program, inputs, arrays, tuple(random.choice(np.asarray(floats), program.scalars).tolist()))


def random_array(
    random: np.random.Generator,
    slot: ArraySlot,
    size: int,
    integers: Sequence[int] = INTEGERS,
    floats: Sequence[float] = FLOATS,
) -> Array:
    """A captured tensor for a slot, every dimension of length ``size``. NumPy has no bf16."""
    pools: dict[str, Sequence[Any]] = {"f": floats, "i": integers, "b": (True, False)}
    drawn = random.choice(np.asarray(pools[slot.kind]), (size,) * slot.rank)
    with np.errstate(over="ignore"):
        return np.asarray(drawn).astype(ARRAY_TYPES[slot.dtype])


@st.composite
def masks(draw: st.DrawFn, *, slots: Sequence[ArraySlot] = (), scalars: int = 0, depth: int = 3) -> Program:
    """A random mask: a program whose ``keep`` compares expressions of b, h, q and kv, nested ``depth`` deep at most.

    A second result, ``position``, makes it a program even where the mask turns out to be always True and is dropped.
    """
    builder = Builder()
    for slot in slots:
        builder.array(slot.dtype, slot.rank)
    floats = [builder.scalar() for _ in range(scalars)]

    def read(kind: str, left: int) -> int | None:
        numbers = [n for n, slot in enumerate(slots) if slot.kind == kind]
        if not numbers:
            return None
        number = draw(st.sampled_from(numbers))
        return builder.read(number, kind, [integer(left - 1) for _ in range(slots[number].rank)])

    def integer(left: int) -> int:
        shape = draw(
            st.sampled_from(("leaf", "leaf", "constant", "unary", "binary", "binary", "where", "read")[: 8 if left > 0 else 3])
        )
        if shape == "constant":
            return builder.emit(f"const_i {draw(st.sampled_from(SMALL_INTEGERS))}", "i")
        if shape == "unary":
            return builder.op(draw(st.sampled_from(("neg", "abs", "sign", "not"))), integer(left - 1))
        if shape == "binary":
            ops = ("add", "sub", "sub", "mul", "floordiv", "mod", "minimum", "maximum", "and", "or", "shr")
            return builder.op(draw(st.sampled_from(ops)), integer(left - 1), integer(left - 1))
        if shape == "where":
            return builder.op("where", boolean(left - 1), integer(left - 1), integer(left - 1))
        found = read("i", left) if shape == "read" else None
        return builder.op(draw(st.sampled_from(("q", "kv", "q", "kv", "b", "h")))) if found is None else found

    def number(left: int) -> int:
        shape = draw(st.sampled_from(("cast", "constant", "scalar", "read", "binary")[: 5 if left > 0 else 2]))
        if shape == "scalar" and floats:
            return draw(st.sampled_from(floats))
        if shape == "binary":
            return builder.op(draw(st.sampled_from(("add", "sub", "mul", "minimum", "div"))), number(left - 1), number(left - 1))
        found = read("f", left) if shape == "read" else None
        if found is not None:
            return found
        if shape == "cast":
            return builder.op("to_f", integer(left - 1))
        return builder.emit(f"const_f {const_text(draw(st.sampled_from(FLOATS)))}", "f")

    def boolean(left: int) -> int:
        shapes = ("integers", "integers", "integers", "numbers", "read", "unary", "binary", "binary", "where")
        shape = draw(st.sampled_from(shapes[: 9 if left > 0 else 3]))
        if shape == "unary":
            return builder.op("not", boolean(left - 1))
        if shape == "binary":
            return builder.op(
                draw(st.sampled_from(("and", "and", "or", "xor", "eq", "ne"))), boolean(left - 1), boolean(left - 1)
            )
        if shape == "where":
            return builder.op("where", boolean(left - 1), boolean(left - 1), boolean(left - 1))
        found = read("b", left) if shape == "read" else None
        if found is not None:
            return found
        pair = (number(left - 1), number(left - 1)) if shape == "numbers" else (integer(left - 1), integer(left - 1))
        return builder.op(draw(st.sampled_from(("lt", "le", "eq", "ne"))), *pair)

    keep = boolean(depth)
    return parse(builder.text([("keep", keep), ("position", builder.op("q"))]))


def every_value(program: Program) -> Program:
    """The program with a result for each of its instructions: ``v0``, ``v1``, ... For tests that look inside."""
    head = program.text[: program.text.index("\nreturn ")]
    returns = "".join(f"\nreturn v{n} {n}" for n in range(len(program.instrs)))
    return parse(head + returns)


def rebuilt(program: Program, change: Callable[[str, tuple[int, ...]], tuple[int, ...]]) -> Program:
    """A copy in which ``change(op, operands)`` gives the operands of every instruction."""
    builder = Builder()
    for slot in program.arrays:
        builder.array(slot.dtype, slot.rank)
    builder.scalar_count = program.scalars
    new: list[int] = []
    for instr in program.instrs:
        operands = change(instr.op, tuple(new[a] for a in instr.args))
        head = [instr.op, *([instr.attr] if instr.attr else [])]
        new.append(builder.emit(" ".join([*head, *map(str, operands)]), instr.kind))
    return parse(builder.text([(name, new[n]) for name, n in program.results]))
