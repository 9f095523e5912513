"""Block states by evaluating every position, for comparison with block_states."""

import numpy as np

from flexsdpa.ir.evaluate import evaluate
from flexsdpa.structure.blocks import EMPTY, FULL, PARTIAL, Grid, block_states
from flexsdpa.structure.ranges import ArrayRanges


def grid(q, kv, block_q, block_kv, b=(0, 0), h=(0, 0)):
    return Grid(b, h, q, kv, block_q, block_kv)


def positions(g):
    """b, h, q_idx, kv_idx as arrays that broadcast to (B, H, Sq, Skv)."""
    ranges = (np.arange(g.b[0], g.b[1] + 1), np.arange(g.h[0], g.h[1] + 1), np.arange(g.q_tokens), np.arange(g.kv_tokens))
    return [x.reshape([-1 if axis == n else 1 for n in range(4)]) for axis, x in enumerate(ranges)]


def kept(program, g, arrays=(), scalars=(), work=np.float64):
    """The mask at every position: (B, H, Sq, Skv)."""
    b, h, q, kv = positions(g)
    shape = np.broadcast_shapes(b.shape, h.shape, q.shape, kv.shape)
    if program.result("keep") is None:
        return np.ones(shape, bool)
    return np.broadcast_to(
        evaluate(program, {"score": 0.0, "b": b, "h": h, "q": q, "kv": kv}, arrays, scalars, work=work)["keep"], shape
    )


def true_states(mask, g):
    """EMPTY, PARTIAL or FULL of every block, from the mask at every position."""
    states = np.empty((g.rows, g.columns), np.int8)
    for row in range(g.rows):
        for column in range(g.columns):
            q, kv = row * g.block_q, column * g.block_kv
            block = mask[:, :, q : q + g.block_q, kv : kv + g.block_kv]
            states[row, column] = FULL if block.all() else PARTIAL if block.any() else EMPTY
    return states


def found_states(program, g, arrays=(), scalars=()):
    """What block_states says, all rows together."""
    parts = list(block_states(program, g, [ArrayRanges(np.asarray(a)) for a in arrays], list(scalars)))
    return np.concatenate(parts) if parts else np.zeros((0, g.columns), np.int8)


def assert_never_wrong(found, true):
    """EMPTY blocks keep nothing and FULL blocks keep everything; PARTIAL promises nothing."""
    assert found.shape == true.shape
    wrong = (found != PARTIAL) & (found != true)
    assert not wrong.any(), f"blocks {np.argwhere(wrong)[:5].tolist()}: found {found[wrong][:5]}, true {true[wrong][:5]}"
