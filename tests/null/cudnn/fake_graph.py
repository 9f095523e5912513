"""A cuDNN graph that computes with NumPy what it is asked to, and writes it down. Holds cuDNN's rules of operands."""

from __future__ import annotations

import math

import numpy as np


class Types:
    FLOAT = "FLOAT"
    INT32 = "INT32"
    BOOLEAN = "BOOLEAN"


HELD = {"FLOAT": np.float32, "INT32": np.int32, "BOOLEAN": np.int32}


class Tensor:
    def __init__(self, name, data, virtual):
        self.name, self.data, self.virtual, self.kind = name, np.asarray(data), virtual, None

    def set_data_type(self, kind):
        self.kind = kind
        self.data = self.data.astype(HELD[kind])
        return self


class FakeGraph:
    """Methods of a graph that lowering may call. ``lines`` is what was called."""

    def __init__(self, shape):
        self.shape, self.lines = shape, []

    def input(self, name, data):
        tensor = Tensor(name, data, virtual=False)
        tensor.kind = "FLOAT" if tensor.data.dtype.kind == "f" else "INT32"
        return tensor

    def score(self, data):
        tensor = Tensor("score", np.broadcast_to(np.asarray(data, np.float32), self.shape), virtual=True)
        tensor.kind = "FLOAT"
        return tensor

    def _make(self, text, data):
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return Tensor(name, data, virtual=True)

    def gen_index(self, input, axis):
        assert input.virtual
        index = np.arange(self.shape[axis], dtype=np.int32).reshape([-1 if d == axis else 1 for d in range(4)])
        return self._make(f"gen_index({input.name}, axis={axis})", np.broadcast_to(index, self.shape))

    def identity(self, input, compute_data_type):
        assert input.virtual
        return self._make(f"identity({input.name})", input.data)

    def binary_select(self, input0, input1, mask):
        assert input0.virtual
        assert mask.virtual
        assert mask.kind == "INT32"
        return self._make(
            f"select({mask.name}, {input0.name}, {input1.name})", np.where(mask.data != 0, input0.data, input1.data)
        )


def _unary(name, compute):
    def call(self, input, compute_data_type):
        assert input.virtual
        assert compute_data_type == "FLOAT"
        assert input.kind == "FLOAT", (name, input.kind)
        with np.errstate(all="ignore"):
            return self._make(f"{name}({input.name})", compute(input.data))

    return call


def _binary(name, first, second, compute, logic=False):
    def call(self, compute_data_type, **operands):
        x, y = operands[first], operands[second]
        assert x.virtual, f"the first operand of {name} is not virtual"
        assert None not in (x.kind, y.kind)
        if not logic:
            assert x.kind == y.kind, (name, x.kind, y.kind)
        if name.startswith("cmp") and x.kind == "FLOAT":
            assert compute_data_type == "FLOAT", "cuDNN compares floats in FLOAT"
        with np.errstate(all="ignore"):
            return self._make(f"{name}({x.name}, {y.name})", compute(x.data, y.data))

    return call


_erf = np.vectorize(math.erf, otypes=[np.float64])
for _name, _compute in {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "tanh": np.tanh, "sin": np.sin,
    "cos": np.cos, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "erf": _erf, "floor": np.floor, "ceil": np.ceil,
    "abs": np.abs, "neg": np.negative,
}.items():  # fmt: skip
    setattr(FakeGraph, _name, _unary(_name, _compute))
for _name, _compute in {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}.items():
    setattr(FakeGraph, _name, _binary(_name, "a", "b", _compute))
for _name, _compute in {"max": np.maximum, "min": np.minimum, "pow": np.power}.items():
    setattr(FakeGraph, _name, _binary(_name, "input0", "input1", _compute))
for _name, _compute in {"cmp_eq": np.equal, "cmp_neq": np.not_equal, "cmp_lt": np.less, "cmp_le": np.less_equal,
                        "cmp_gt": np.greater, "cmp_ge": np.greater_equal}.items():  # fmt: skip
    setattr(FakeGraph, _name, _binary(_name, "input", "comparison", _compute))
for _name, _compute in {"logical_and": np.logical_and, "logical_or": np.logical_or}.items():
    setattr(FakeGraph, _name, _binary(_name, "a", "b", _compute, logic=True))


def _logical_not(self, input, compute_data_type):
    assert input.virtual
    return self._make(f"logical_not({input.name})", input.data == 0)


FakeGraph.logical_not = _logical_not
