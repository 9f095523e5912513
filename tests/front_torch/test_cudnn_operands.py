"""What a cuDNN graph takes beside q, k and v: numbers and views are those of this call, kept ones never stale. Needs no cuDNN."""

import gc
import math
import weakref

import pytest
import torch

from flexsdpa import mods
from flexsdpa.backends.cudnn.layout import Piece
from flexsdpa.backends.cudnn.lower import Length, Literal, Number, Start, View
from flexsdpa.backends.cudnn.torch_operands import Operands
from flexsdpa.backends.cudnn.tune import finished
from flexsdpa.ir.canonical import program_of
from flexsdpa.trace.recorder import Frontend
from flexsdpa.trace.run import trace

WHOLE = Piece(0, 6, 0, 10)
BAND = Piece(2, 4, 1, 9)
SIZES = (2, 3)


def softcap_operands():
    """uid 1: the cap as given; uid 2: its reciprocal, which the tuned program computes on the host."""
    program = finished(program_of(trace(mods.softcap(20.0), None, Frontend()).text))
    made = Operands(program)
    slots = [n for n, instr in enumerate(program.instrs) if instr.op == "scalar"]
    divided = [n for n, instr in enumerate(program.instrs) if instr.op == "div"]
    for uid, n in enumerate((*slots[:1], *divided[:1]), 1):
        made.add(Number(n, "f"), uid)
    return made


def numbers(made, scalars, piece=WHOLE):
    return {uid: x.item() for uid, x in made.packed((), scalars, SIZES, piece).items()}


def test_numbers_are_those_of_the_call():
    made = softcap_operands()
    assert len(made.hosts) == 2
    for cap in (20.0, 30.0, 20.0, 1e-3):
        assert numbers(made, [cap, cap]) == {1: pytest.approx(cap), 2: pytest.approx(1 / cap)}


def test_minus_zero_is_another_number():
    made = Operands(program_of(trace(lambda s, b, h, i, j: s * SCALE, None, Frontend()).text))
    n = next(n for n, instr in enumerate(made.program.instrs) if instr.op == "scalar")
    made.add(Number(n, "f"), 7)
    assert math.copysign(1.0, numbers(made, [0.0])[7]) == 1.0
    assert math.copysign(1.0, numbers(made, [-0.0])[7]) == -1.0
    assert math.isnan(numbers(made, [math.nan])[7])


SCALE = 0.5


def test_places_are_those_of_the_piece():
    made = softcap_operands()
    for uid, what in enumerate((Start("q"), Start("kv"), Length("q"), Length("kv"), Literal(-1e30, "f")), 10):
        made.add(what, uid)
    for piece in (WHOLE, BAND, WHOLE):
        found = numbers(made, [20.0, 20.0], piece)
        assert [found[uid] for uid in (10, 11, 12, 13)] == [piece.q0, piece.k0, piece.q1 - piece.q0, piece.k1 - piece.k0]
        assert found[14] == pytest.approx(-1e30)
        assert found[1] == 20.0


def test_a_number_that_cannot_be_computed_leaves_nothing_half_filled():
    made = softcap_operands()
    numbers(made, [20.0, 20.0])
    with pytest.raises(IndexError):
        numbers(made, [])
    assert numbers(made, [20.0, 20.0])[1] == 20.0


VIEWS = {
    "heads": (("h",), (3,)),
    "queries and keys": (("q", "kv"), (6, 10)),
    "longer than the call": (("kv",), (14,)),
    "keys of a batch": (("b", "kv"), (2, 10)),
    "a constant index": ((1, "q"), (4, 6)),
    "all": (("b", "h", "q", "kv"), (2, 3, 6, 10)),
}


def expected(x, axes, piece):
    cut = {"b": range(2), "h": range(3), "q": range(piece.q0, piece.q1), "kv": range(piece.k0, piece.k1)}
    places = {axis: torch.tensor(list(cut[axis])) if axis in axes else torch.tensor([0]) for axis in cut}
    grid = dict(zip(cut, torch.meshgrid(*places.values(), indexing="ij"), strict=True))
    return x[tuple(grid[axis] if isinstance(axis, str) else torch.tensor(axis) for axis in axes)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("name", VIEWS)
def test_views_are_those_of_the_tensor_and_piece(name, dtype):
    axes, shape = VIEWS[name]
    made = Operands(program_of(trace(None, None, Frontend()).text))
    made.add(View(0, axes, "f" if dtype.is_floating_point else "i"), 5)
    first, second = ((torch.arange(math.prod(shape)).reshape(shape) * k % 7).to(dtype) for k in (1, 3))
    for x in (first, second, first, first.clone()):
        for piece in (WHOLE, BAND, BAND):
            found = made.packed([x], [], SIZES, piece)[5]
            assert torch.equal(found.to(dtype), expected(x, axes, piece))


def heads():
    made = Operands(program_of(trace(None, None, Frontend()).text))
    made.add(View(0, ("h",), "f"), 5)
    return made, lambda x, piece=WHOLE: made.packed([x], [], SIZES, piece)[5].flatten().tolist()


def test_a_kept_view_sees_what_is_written_and_is_made_once():
    made, read = heads()
    x = torch.arange(3.0)
    assert read(x) == [0.0, 1.0, 2.0]
    kept = made.packed([x], [], SIZES, WHOLE)[5]
    x += 1
    assert made.packed([x], [], SIZES, WHOLE)[5] is kept
    assert read(x) == [1.0, 2.0, 3.0]


def test_a_tensor_that_moves_is_looked_at_anew():
    _, read = heads()
    x = torch.arange(3.0)
    read(x)
    x.data = torch.tensor([7.0, 8.0, 9.0])
    assert read(x) == [7.0, 8.0, 9.0]
    x.data = torch.arange(6.0)[::2]
    assert read(x) == [0.0, 2.0, 4.0]


def test_a_converted_copy_is_made_at_every_call():
    _, read = heads()
    x = torch.arange(3.0, dtype=torch.float64)
    read(x)
    x += 1
    assert read(x) == [1.0, 2.0, 3.0]


def test_a_tensor_is_not_kept_alive_and_its_place_may_be_taken():
    made, read = heads()
    for n in range(20):
        x = torch.full((3,), float(n))
        assert read(x) == [float(n)] * 3
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None
    assert made.kept == {}


def test_tensors_in_turn():
    _, read = heads()
    first, second = torch.zeros(3), torch.ones(3)
    for _ in range(3):
        assert read(first) == [0.0] * 3
        assert read(second) == [1.0] * 3
