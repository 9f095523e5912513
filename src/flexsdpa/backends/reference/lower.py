"""Program -> the text of a Python function over torch tensors. Plain Python: no framework is needed to read it.

The function computes one tile. Index values keep only the axes that they depend on: b (nb, 1, 1, 1), h (nh, 1, 1),
q (Tq, 1), kv (Tk,). Float values that nobody needs again are overwritten in place. Two modes: ``fast`` lets torch's own
indexing raise for a read out of range; ``careful`` clamps every read and returns where the result depends on one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexsdpa.ir.ops import INDICES
from flexsdpa.ir.program import Instr, Program

UNARY = {
    **{name: f"torch.{name}" for name in (
        "neg", "abs", "sign", "floor", "ceil", "trunc", "round", "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt",
        "rsqrt", "tanh", "sigmoid", "erf", "erfc", "sin", "cos")},
}  # fmt: skip
BINARY = {
    "add": "torch.add",
    "sub": "torch.sub",
    "mul": "torch.mul",
    "div": "torch.div",
    "pow": "torch.pow",
    "mod": "torch.remainder",
}
TENSOR_BINARY = {"minimum": "torch.minimum", "maximum": "torch.maximum"}
COMPARE = {"eq": "torch.eq", "ne": "torch.ne", "lt": "torch.lt", "le": "torch.le"}
MIRRORED = {"eq": "torch.eq", "ne": "torch.ne", "lt": "torch.gt", "le": "torch.ge"}
LOGIC = {"and": "torch.bitwise_and", "or": "torch.bitwise_or", "xor": "torch.bitwise_xor"}
INTEGER_HELPERS = {"floordiv": "int_floordiv", "mod": "int_mod", "shl": "int_shl", "shr": "int_shr"}
TORCH_DTYPES = {
    "f16": "torch.float16", "bf16": "torch.bfloat16", "f32": "torch.float32", "f64": "torch.float64",
    "u8": "torch.uint8", "i8": "torch.int8", "i16": "torch.int16", "i32": "torch.int32", "i64": "torch.int64",
}  # fmt: skip
COMMUTATIVE = frozenset(("add", "mul"))
PLACES = {"b": 0, "h": 1, "q": 2, "kv": 3}


@dataclass(frozen=True, slots=True)
class SliceNeed:
    """Fast code slices dimension ``dim`` of a captured tensor along an axis: it must be at least that long."""

    slot: int
    dim: int
    axis: str


@dataclass(frozen=True, slots=True)
class Lowered:
    """The text of ``def tile(score, b, h, q, kv, at, T, C, F, K)`` and what it takes for granted.

    T: captured tensors. C: float operands. F: the working dtype. K: makes a 0-D tensor of a Python number.
    at: slices of the tile along b, h, q, kv.
    """

    text: str
    needs: tuple[SliceNeed, ...]


def lower(program: Program, wanted: Sequence[str], careful: bool = False) -> Lowered:
    """A function that returns the wanted results as a tuple; in careful mode followed by where they are faulty, or None."""
    return _Lowering(program, [n for name in wanted if (n := program.result(name)) is not None], careful).run()


class _Lowering:
    def __init__(self, program: Program, roots: list[int], careful: bool) -> None:
        self.program = program
        self.roots = roots
        self.careful = careful
        self.axes = [frozenset(PLACES) if "score" in d else d for d in program.depends()]
        self.needed = program.reachable(roots)
        self.lines: list[str] = []
        self.needs: list[SliceNeed] = []
        self.text: dict[int, str] = {}
        self.poison: dict[int, str] = {}
        self.last_use = {n: len(program.instrs) for n in roots}
        for n in sorted(self.needed, reverse=True):
            for a in program.instrs[n].args:
                self.last_use.setdefault(a, n)
        self.owned: set[int] = set()

    def run(self) -> Lowered:
        for n, instr in enumerate(self.program.instrs):
            if n in self.needed:
                self._emit(n, instr)
        returned = [self._tensor(n) + (".clone()" if n in self.roots[:place] else "") for place, n in enumerate(self.roots)]
        if self.careful:
            faults = [self.poison[n] for n in self.roots if n in self.poison]
            returned.append(" | ".join(faults) or "None")
        body = [*self.lines, f"return ({', '.join(returned)},)" if returned else "return ()"]
        head = "def tile(score, b, h, q, kv, at, T, C, F, K):"
        return Lowered("\n    ".join([head, *body]) + "\n", tuple(self.needs))

    def _emit(self, n: int, instr: Instr) -> None:
        if instr.op in PLACES or instr.op == "score":
            self.text[n] = instr.op
            if instr.op == "score" and self.program.result("score") in self.roots:
                self.owned.add(n)  # the mask alone may not change a tile that the mod has yet to see
        elif instr.op.startswith("const"):
            self.text[n] = {"inf": "INF", "-inf": "-INF", "nan": "NAN"}.get(instr.attr, instr.attr)
        elif instr.op == "scalar":
            self.text[n] = f"C[{instr.attr}]"
        else:
            self.text[n] = f"v{n}"
            if instr.op == "read":
                self._read(n, instr)
            else:
                self.lines.append(f"v{n} = {self._expression(n, instr)}")
                if instr.kind == "f":
                    self.owned.add(n)
                if self.careful:
                    self._propagate(n, instr)

    def _is_number(self, n: int) -> bool:
        """Whether a value is a Python number in the text, not a tensor."""
        op = self.program.instrs[n].op
        return op == "scalar" or op.startswith("const")

    def _tensor(self, n: int) -> str:
        return f"K({self.text[n]})" if self._is_number(n) else self.text[n]

    def _out(self, n: int, *candidates: int) -> str:
        """``, out=v3`` when an operand of the same shape is no longer needed."""
        for a in candidates:
            dead = self.last_use.get(a) == n and a in self.owned
            if dead and self.axes[a] == self.axes[n] and self.program.instrs[a].kind == "f" == self.program.instrs[n].kind:
                return f", out={self.text[a]}"
        return ""

    def _expression(self, n: int, instr: Instr) -> str:
        op, args = instr.op, instr.args
        kind = self.program.instrs[args[-1]].kind
        if op == "not":
            return f"torch.bitwise_not({self._tensor(args[0])})"
        if op in UNARY:
            return f"{UNARY[op]}({self._tensor(args[0])}{self._out(n, args[0])})"
        if op in ("to_f", "to_i", "to_b", "round_f", "wrap_i"):
            return self._cast(op, instr.attr, self._tensor(args[0]))
        if op == "where":
            return self._where(args)
        x, y = args
        if op in INTEGER_HELPERS and kind == "i":
            return self._integer(op, x, y)
        if op == "floordiv":
            return f"torch.div({self._tensor(x)}, {self.text[y]}, rounding_mode='floor')"
        if op in TENSOR_BINARY:
            return f"{TENSOR_BINARY[op]}({self._tensor(x)}, {self._tensor(y)}{self._out(n, x, y)})"
        if op in BINARY:
            if self._is_number(x) and op in COMMUTATIVE:
                x, y = y, x
            return f"{BINARY[op]}({self._tensor(x)}, {self.text[y]}{self._out(n, x, y)})"
        if op in LOGIC:
            x, y = (y, x) if self._is_number(x) else (x, y)
            return f"{LOGIC[op]}({self._tensor(x)}, {self.text[y]})"
        if self._is_number(x) and not self._is_number(y):
            return f"{MIRRORED[op]}({self.text[y]}, {self.text[x]})"
        return f"{COMPARE[op]}({self._tensor(x)}, {self.text[y]})"

    def _cast(self, op: str, attr: str, x: str) -> str:
        if op == "to_b":
            return f"torch.ne({x}, 0)"
        if op == "round_f":
            return f"{x}.to({TORCH_DTYPES[attr]}).to(F, copy=True)"
        if op == "wrap_i":
            return f"{x}.to({TORCH_DTYPES[attr]}).to(torch.int64)"
        return f"{x}.to({'F' if op == 'to_f' else 'torch.int64'})"

    def _where(self, args: tuple[int, ...]) -> str:
        cond, yes, no = args
        numbers = self._is_number(yes) and self._is_number(no)
        return f"torch.where({self._tensor(cond)}, {self._tensor(yes) if numbers else self.text[yes]}, {self.text[no]})"

    def _integer(self, op: str, x: int, y: int) -> str:
        divisor = self.program.instrs[y]
        if op in ("floordiv", "mod") and divisor.op == "const_i" and divisor.attr != "0":
            if op == "mod":
                return f"torch.remainder({self._tensor(x)}, {divisor.attr})"
            return f"torch.div({self._tensor(x)}, {divisor.attr}, rounding_mode='floor')"
        return f"{INTEGER_HELPERS[op]}({self._tensor(x)}, {self._tensor(y)})"

    def _read(self, n: int, instr: Instr) -> None:
        slot = int(instr.attr)
        cast = {"f": "F", "i": "torch.int64", "b": "torch.bool"}[instr.kind]
        if self.careful:
            indices = "".join(f"{self._tensor(a)}, " for a in instr.args)
            self.lines.append(f"v{n}, p{n} = careful_read(T[{slot}], ({indices}), {cast})")
            self.poison[n] = " | ".join([f"p{n}", *self._poisons(instr.args)])
            if len(self.poison[n]) > len(f"p{n}"):
                self.lines.append(f"p{n} = {self.poison[n]}")
                self.poison[n] = f"p{n}"
            return
        value = self._sliced(slot, instr.args) or f"T[{slot}][{', '.join(self.text[a] for a in instr.args) or '...'}]"
        writable = ", copy=True" if n in self.roots and instr.kind == "f" else ""
        self.lines.append(f"v{n} = {value}.to({cast}{writable})")

    def _sliced(self, slot: int, args: tuple[int, ...]) -> str:
        """``T[0][at[0], at[3]]`` with its dimensions put in place, when every index is a bare index leaf (or a constant)."""
        ops = [self.program.instrs[a].op for a in args]
        leaves = [op for op in ops if op in PLACES]
        if not leaves or len(set(leaves)) != len(leaves) or any(op not in PLACES and op != "const_i" for op in ops):
            return ""
        parts = [f"at[{PLACES[op]}]" if op in PLACES else self.text[a] for op, a in zip(ops, args, strict=True)]
        self.needs += [SliceNeed(slot, d, op) for d, op in enumerate(ops) if op in PLACES]
        ordered = sorted(leaves, key=PLACES.__getitem__)
        permute = "" if ordered == leaves else f".permute({', '.join(str(leaves.index(axis)) for axis in ordered)})"
        axes = INDICES[PLACES[ordered[0]] :]
        places = ", ".join(":" if axis in ordered else "None" for axis in axes)
        spread = "" if len(ordered) == len(axes) else f"[{places}]"
        return f"T[{slot}][{', '.join(parts)}]{permute}{spread}"

    def _poisons(self, args: Sequence[int]) -> list[str]:
        return [self.poison[a] for a in args if a in self.poison]

    def _propagate(self, n: int, instr: Instr) -> None:
        """Where value n depends on a read out of range. ``&``, ``|`` and where() may not depend on one side."""
        poisons = self._poisons(instr.args)
        if not poisons:
            return
        if instr.op == "where":
            cond = self._tensor(instr.args[0])
            parts = self._poisons(instr.args[:1])
            parts += [f"({cond} & {p})" for p in self._poisons(instr.args[1:2])]
            parts += [f"(~{cond} & {p})" for p in self._poisons(instr.args[2:])]
        elif instr.op in ("and", "or") and instr.kind == "b":
            undecided = "" if instr.op == "and" else "~"
            parts = [
                f"({self.poison[a]} & {undecided}{self._tensor(other)})"
                for a, other in (instr.args, instr.args[::-1])
                if a in self.poison
            ]
            if len(poisons) == 2:
                parts.append(f"({poisons[0]} & {poisons[1]})")
        else:
            parts = poisons
        self.lines.append(f"p{n} = {' | '.join(parts)}")
        self.poison[n] = f"p{n}"
