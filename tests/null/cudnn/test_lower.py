"""Programs as cuDNN graph calls, against the interpreter, on a fake graph that computes."""

import numpy as np
import pytest

from flexsdpa import mods, ops
from flexsdpa.backends.cudnn.lower import MASKED, Literal, Lowering, Number, Start, View
from flexsdpa.backends.cudnn.tune import finished
from flexsdpa.ir.canonical import derivative_of, program_of
from flexsdpa.ir.evaluate import evaluate
from null.cudnn.fake_graph import FakeGraph, Types
from null.helpers import traced

B, H, S, T = 2, 4, 6, 7
RANDOM = np.random.default_rng(0)
TABLES = {
    "heads": RANDOM.normal(size=H),
    "rows": RANDOM.normal(size=(B, S)),
    "columns": RANDOM.normal(size=(H, T)),
    "pairs": RANDOM.normal(size=(B, H, S, T)),
    "flags": np.arange(T) % 3 > 0,
    "ids": np.arange(max(S, T))[None].repeat(B, 0) // 3,
    "number": np.asarray(0.7),
}
heads, rows, columns, pairs, flags, ids, number = TABLES.values()
r = ops.read

SCORES = {
    "softcap": mods.softcap(2.0),
    "alibi": mods.alibi(heads),
    "alibi, symmetric": mods.alibi(heads, symmetric=True),
    "pairs": lambda s, b, h, i, j: s + r(pairs, b, h, i, j),
    "rows": lambda s, b, h, i, j: s * ops.tanh(r(rows, b, i)),
    "columns": lambda s, b, h, i, j: s - r(columns, h, j),
    "rows and columns": lambda s, b, h, i, j: s + r(rows, b, i) * r(columns, h, j),
    "a number on the left": lambda s, b, h, i, j: 3.0 - s,
    "a quotient": lambda s, b, h, i, j: 1.0 / (2.0 + ops.sigmoid(s)),
    "exp": lambda s, b, h, i, j: ops.exp(-s * s),
    "exp2": lambda s, b, h, i, j: ops.exp2(-ops.abs(s)),
    "log": lambda s, b, h, i, j: ops.log(2.0 + ops.sin(s)),
    "log2": lambda s, b, h, i, j: (2.0 + ops.cos(s)).log2(),
    "log1p": lambda s, b, h, i, j: ops.log1p(s * s),
    "expm1": lambda s, b, h, i, j: ops.expm1(-s * s),
    "roots": lambda s, b, h, i, j: ops.sqrt(1 + s * s) + ops.rsqrt(1 + s * s),
    "erf": lambda s, b, h, i, j: ops.erf(s),
    "rounding": lambda s, b, h, i, j: s - ops.floor(s) + ops.ceil(s * 2) - ops.trunc(s * 3),
    "sign": lambda s, b, h, i, j: ops.sign(s) * s * s,
    "clamp": lambda s, b, h, i, j: ops.clamp(s, -0.5, 0.7),
    "extrema": lambda s, b, h, i, j: ops.maximum(s, r(columns, h, j)) - ops.minimum(0.3, s),
    "selected": lambda s, b, h, i, j: ops.where(s > 0.1, s, s * 0.3),
    "selected by place": lambda s, b, h, i, j: ops.where((i > j) | (b == 1), s, s - 0.5),
    "selected by flag": lambda s, b, h, i, j: ops.where(r(flags, j), s, s - 0.5),
    "by head": lambda s, b, h, i, j: ops.where(h % 2 == 0, s, -s) + b * 0.5 * (j % 3),
    "buckets": lambda s, b, h, i, j: s + 0.1 * ((i // 7) % 5) - 0.2 * ((j - i) // 16),
    "integers": lambda s, b, h, i, j: s + 0.01 * ops.minimum(ops.abs(i - j), ops.maximum(j, 3)) + ops.sign(i - j) - (-j),
    "a captured number": lambda s, b, h, i, j: s * r(number),
    "host arithmetic": (lambda c: lambda s, b, h, i, j: s * (c * 2 + r(number)) - c / 3)(0.4),
    "casts": lambda s, b, h, i, j: s + 0.1 * (s * 3).long() + (i > j) * 0.5 + ops.where((i - j).bool(), 1.0, s),
    "float division": lambda s, b, h, i, j: s % 0.7 + (s // 0.7) * 0.1,
    "constant": lambda s, b, h, i, j: s * 0 + 0.5,
    "without the score": lambda s, b, h, i, j: r(columns, h, j) * 2,
}  # fmt: skip
MASKS = {
    "none": None,
    "causal": mods.causal,
    "window": mods.sliding_window(3),
    "documents": mods.and_masks(mods.causal, mods.document(ids)),
    "prefix": mods.prefix_lm(3),
    "flags": lambda b, h, i, j: r(flags, j) ^ (i == j),
    "not": lambda b, h, i, j: ~(ops.abs(i - j) > 2),
    "chunks": lambda b, h, i, j: (i % 3 == j % 3) | (i == j),
    "selected": lambda b, h, i, j: ops.where(h == 1, i >= j, j > i),
}
GRID = {
    "b": np.arange(B).reshape(-1, 1, 1, 1),
    "h": np.arange(H).reshape(-1, 1, 1),
    "q": np.arange(S)[:, None],
    "kv": np.arange(T),
}


def feed(graph, program, arrays, scalars, start=(0, 0)):
    """Makes inputs as a plan does at run time."""

    def declare(what):
        name = f"{type(what).__name__.lower()}"
        if isinstance(what, View):
            data = np.asarray(arrays[what.slot])
            order = sorted(range(len(what.axes)), key=lambda d: ["b", "h", "q", "kv"].index(what.axes[d]))
            data = data.transpose(order)
            for place, axis in enumerate(("b", "h", "q", "kv")):
                if axis not in what.axes:
                    data = np.expand_dims(data, place)
            cut = [slice(0, size) for size in graph.shape]
            data = data[tuple(cut[d] if data.shape[d] > 1 else slice(None) for d in range(4))]
            return graph.input(name, data.astype(np.float32 if what.kind == "f" else np.int32))
        if isinstance(what, Start):
            return graph.input(name, np.int32(start[what.axis == "kv"]))
        if isinstance(what, Literal):
            return graph.input(name, np.float32(what.value) if what.kind == "f" else np.int32(what.value))
        assert isinstance(what, Number)
        single = program_like(program, what.value)
        value = evaluate(single, {}, (), scalars, work=np.float32)["value"]
        return graph.input(name, value.astype(np.float32 if what.kind == "f" else np.int32))

    return declare


def program_like(program, n):
    from dataclasses import replace

    needed = program.reachable([n])
    kept = tuple(i if m in needed else type(i)("const_b", (), "True", "b") for m, i in enumerate(program.instrs[: n + 1]))
    return replace(program, instrs=kept, results=(("value", n),))


def expected(program, found, score):
    return evaluate(program, {"score": score, **GRID}, found.arrays, found.scalars)


def lowered(score_mod, mask_mod, prepare):
    found = traced(score_mod, mask_mod)
    program = prepare(derivative_of(program_of(found.text).text, frozenset()).program)
    score = RANDOM.normal(size=(B, H, S, T)).astype(np.float32)
    graph = FakeGraph((B, H, S, T))
    lowering = Lowering(program, Types, feed(graph, program, found.arrays, found.scalars))
    result = lowering.score_mod(graph, graph.score(score))
    slope = lowering.score_mod_bprop(graph, graph.score(np.full(score.shape, 2.0)))
    return expected(program, found, score.astype(np.float64)), result, slope


AS_IT_IS = lambda program: program


def check(score_mod, mask_mod, prepare=finished):
    want, result, slope = lowered(score_mod, mask_mod, prepare)
    keep = np.broadcast_to(want.get("keep", np.asarray(True)), result.data.shape)
    assert result.virtual
    assert slope.virtual
    np.testing.assert_allclose(result.data, np.where(keep, want["score"], np.float32(MASKED)), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(slope.data, np.where(keep, 2.0 * want.get("dscore", np.asarray(0.0)), 0.0), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("prepare", [AS_IT_IS, finished], ids=["as it is", "tuned"])
@pytest.mark.parametrize("name", SCORES)
def test_scores_and_their_slopes(name, prepare):
    check(SCORES[name], None, prepare)


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    check(None, MASKS[name])
    check(mods.softcap(2.0), MASKS[name])
