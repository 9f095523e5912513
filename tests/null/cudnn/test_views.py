"""Views of captured tensors: which axes they have, and that run-time views and the oracle's descriptions agree."""

import numpy as np
import pytest

from flexsdpa import ops
from flexsdpa.backends.cudnn.layout import Piece
from flexsdpa.backends.cudnn.lower import view_of
from flexsdpa.ir.canonical import program_of
from flexsdpa.oracle.programs import view_place
from flexsdpa.spec.device import Device
from flexsdpa.spec.request import AttentionRequest
from flexsdpa.spec.tensors import TensorSpec, contiguous_strides
from flexsdpa.trace.recorder import Frontend
from flexsdpa.trace.run import trace

B, H, S = 2, 3, 4
PIECE = Piece(0, S, 0, S)
READS = {
    "head": ((H,), lambda t, b, h, i, j: ops.read(t, h), (1, H, 1, 1), (1, H, 1, 1)),
    "batch": ((B,), lambda t, b, h, i, j: ops.read(t, b), (B, 1, S, 1), (B, 1, S, S)),
    "query": ((S,), lambda t, b, h, i, j: ops.read(t, i), (1, 1, S, 1), (1, 1, S, S)),
    "key": ((S,), lambda t, b, h, i, j: ops.read(t, j), (1, 1, S, S), (1, 1, S, S)),
    "batch and key": ((B, S), lambda t, b, h, i, j: ops.read(t, b, j), (B, 1, S, S), (B, 1, S, S)),
    "key and head": ((S, H), lambda t, b, h, i, j: ops.read(t, j, h), (1, H, S, S), (1, H, S, S)),
    "all": ((B, H, S, S), lambda t, b, h, i, j: ops.read(t, b, h, i, j), (B, H, S, S), (B, H, S, S)),
}


def viewed(name, wide):
    shape, read, *_ = READS[name]
    table = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    program = program_of(trace(lambda s, b, h, i, j: s + read(table, b, h, i, j), None, Frontend()).text)
    (n,) = program.reads()
    return table, view_of(program, program.instrs[n], wide)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", READS)
def test_a_view_holds_what_is_read_at_every_position(name, wide):
    shape, read, narrow, broad = READS[name]
    table, view = viewed(name, wide)
    spec = TensorSpec("f32", (B, H, S, 8), contiguous_strides((B, H, S, 8)))
    array = TensorSpec("f32", shape, contiguous_strides(shape))
    request = AttentionRequest("backward", Device.parse("sm_90"), spec, spec, spec, "", (array,))
    dim, stride = view_place(request, view, PIECE)
    assert dim == (broad if wide else narrow)
    data = np.lib.stride_tricks.as_strided(table, dim, [4 * step for step in stride])
    b, h, i, j = np.ogrid[:B, :H, :S, :S]
    assert np.array_equal(np.broadcast_to(data, (B, H, S, S)), np.broadcast_to(read(table, b, h, i, j), (B, H, S, S)))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", READS)
def test_the_view_at_run_time_is_the_one_that_the_oracle_describes(name, wide):
    torch = pytest.importorskip("torch")
    from flexsdpa.backends.cudnn.torch_operands import view as run_time_view

    table, view = viewed(name, wide)
    spec = TensorSpec("f32", (B, H, S, 8), contiguous_strides((B, H, S, 8)))
    array = TensorSpec("f32", table.shape, contiguous_strides(table.shape))
    request = AttentionRequest("backward", Device.parse("sm_90"), spec, spec, spec, "", (array,))
    made = run_time_view(torch.from_numpy(table), view, (B, H), PIECE)
    dim, stride = view_place(request, view, PIECE)
    assert tuple(made.shape) == dim
    assert all(a == b for a, b, size in zip(made.stride(), stride, dim, strict=True) if size > 1)
