"""The cuDNN graph calls of representative mods, as files: how a program becomes a graph, and its derivative the graph's backward.

To accept a change: UPDATE_GOLDEN=1 python -m pytest tests/golden, and look at the difference before committing it.
"""

from pathlib import Path

import numpy as np
import pytest

from flexsdpa.backends.cudnn.lower import RULES, Lowering, view_of
from flexsdpa.backends.cudnn.tune import finished
from flexsdpa.ir.canonical import derivative_of, program_of
from flexsdpa.trace.recorder import Frontend
from flexsdpa.trace.run import trace
from golden.golden_mods import MODS
from golden.test_golden import assert_kept
from null.cudnn.fake_graph import FakeGraph, Types

GRAPHS = Path(__file__).parent / "graphs"
SHAPE = (2, 4, 16, 16)


def calls(score_mod, mask_mod):
    """(what cuDNN cannot do, or the lines of both callbacks)."""
    program = finished(derivative_of(program_of(trace(score_mod, mask_mod, Frontend()).text).text, frozenset()).program)
    missing = sorted(
        {f"{i.op}({program.instrs[i.args[-1]].kind})" for i in program.instrs if i.args and i.op != "read"} - set(RULES)
    )
    missing += [f"read at computed positions: {n}" for n in program.reads() if view_of(program, program.instrs[n]) is None]
    if missing:
        return f"refused: {'; '.join(missing)}\n"
    graph = FakeGraph(SHAPE)

    def declare(what):
        kind = np.int32 if getattr(what, "kind", "i") == "i" else np.float32
        return graph.input(str(what), np.zeros((1, 1, 1, 1), kind))

    lowering = Lowering(program, Types, declare)
    score = lowering.score_mod(graph, graph.score(np.zeros(SHAPE)))
    forward = len(graph.lines)
    gradient = graph.score(np.zeros(SHAPE))
    gradient.name = "dscore"
    slope = lowering.score_mod_bprop(graph, gradient)
    lines = ["score_mod:", *graph.lines[:forward], f"return {score.name}", ""]
    return "\n".join([*lines, "score_mod_bprop:", *graph.lines[forward:], f"return {slope.name}", ""])


@pytest.mark.parametrize("name", MODS)
def test_graph_calls(name):
    assert_kept(GRAPHS / f"{name}.txt", calls(*MODS[name]))


def test_every_file_belongs_to_a_mod():
    assert {file.stem for file in GRAPHS.iterdir()} == set(MODS)
