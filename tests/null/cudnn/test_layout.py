"""How requests are cut into graphs: every allowed position lies in a piece, and native flags say what the mask says."""

import numpy as np
import pytest

from flexsdpa import mods, ops
from flexsdpa.backends.cudnn.layout import BANDS, Native, Piece, layout
from flexsdpa.ir.canonical import program_of
from null.helpers import traced

ids = np.arange(4000) // 700
BAND_MASKS = {
    "none": None,
    "causal": mods.causal,
    "offset 3": mods.causal(offset=3),
    "offset -5": mods.causal(offset=-5),
    "window": mods.sliding_window(33),
    "both sides": mods.sliding_window(20, causal=False),
    "only behind": lambda b, h, i, j: i - j < 40,
    "only ahead": lambda b, h, i, j: (j >= i + 5) & (j < i + 50),
    "far behind": lambda b, h, i, j: j < i - 7,
    "empty": lambda b, h, i, j: (j >= i + 5) & (j < i + 2),
}
OTHER_MASKS = {
    "documents": lambda b, h, i, j: ops.read(ids, i) == ops.read(ids, j),
    "documents, causal": lambda b, h, i, j: (ops.read(ids, i) == ops.read(ids, j)) & (i >= j),
    "prefix": mods.prefix_lm(50),
    "chunks": lambda b, h, i, j: i // 64 == j // 64,
}
LENGTHS = [(1, 1), (128, 128), (100, 300), (300, 100), (1000, 1000), (2100, 2100)]


def grid(q_len, kv_len):
    return np.arange(q_len)[:, None], np.arange(kv_len)


def allowed(mask, q_len, kv_len):
    i, j = grid(q_len, kv_len)
    if mask is None:
        return np.ones((q_len, kv_len), bool)
    return np.broadcast_to(np.asarray(mask(0, 0, i, j)), (q_len, kv_len))


@pytest.mark.parametrize("direction", BANDS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", [*BAND_MASKS, *OTHER_MASKS])
def test_pieces_hold_every_allowed_position_once(name, lengths, direction):
    mask = {**BAND_MASKS, **OTHER_MASKS}[name]
    keep = allowed(mask, *lengths)
    for score_mod in (None, mods.softcap(2.0)):
        found = layout(program_of(traced(score_mod, mask).text), direction, *lengths)
        count = np.zeros(lengths, int)
        for piece in found.pieces:
            assert 0 <= piece.q0 < piece.q1 <= lengths[0]
            assert 0 <= piece.k0 < piece.k1 <= lengths[1]
            count[piece.q0 : piece.q1, piece.k0 : piece.k1] += 1
        assert count.max(initial=0) <= 1
        assert count[keep].all()
        rows = np.concatenate([np.arange(p.q0, p.q1) for p in found.pieces] or [np.zeros(0, int)])
        assert found.may_be_dead or keep[rows].any(1).all()


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", BAND_MASKS)
def test_native_flags_say_what_the_mask_says(name, lengths):
    keep = allowed(BAND_MASKS[name], *lengths)
    found = layout(program_of(traced(None, BAND_MASKS[name]).text), "forward", *lengths)
    said = np.zeros(lengths, bool)
    if found.native is None and found.pieces:
        assert name in ("window", "both sides", "only behind")
        assert lengths[0] > lengths[1]
        return
    for p in found.pieces:
        i, j = grid(p.q1 - p.q0, p.k1 - p.k0)
        left, right = found.native.left, found.native.right
        assert left is None or left >= 1
        assert right is None or right >= 0
        band = np.ones((p.q1 - p.q0, p.k1 - p.k0), bool)
        band &= j > i - left if left is not None else True
        band &= j <= i + right if right is not None else True
        said[p.q0 : p.q1, p.k0 : p.k1] = band
    np.testing.assert_array_equal(said, keep)


def test_a_window_over_more_queries_than_keys_runs_in_bands():
    """cuDNN refuses a left bound there."""
    program = program_of(traced(None, mods.sliding_window(128)).text)
    assert layout(program, "forward", 2048, 2048).native == Native(128, 0)
    assert layout(program, "forward", 1024, 2048).native == Native(128, 0)
    found = layout(program, "forward", 2048, 1024)
    assert found.native is None
    assert not found.may_be_dead
    assert len(found.pieces) > 1
    assert layout(program_of(traced(None, mods.causal).text), "forward", 2048, 1024).native == Native(None, 0)


def test_a_mod_has_no_native_form_and_a_mask_alone_is_one_piece():
    causal = program_of(traced(None, mods.causal).text)
    assert layout(causal, "forward", 4096, 4096).pieces == (Piece(0, 4096, 0, 4096),)
    assert layout(causal, "forward", 4096, 4096).native == Native(None, 0)
    both = program_of(traced(mods.softcap(2.0), mods.causal).text)
    found = layout(both, "forward", 4096, 4096)
    assert found.native is None
    assert found.pieces[0] == Piece(0, 512, 0, 512)
    assert len(found.pieces) == BANDS["forward"]
    assert len(layout(both, "backward", 4096, 4096).pieces) == BANDS["backward"]
    assert len(layout(both, "forward", 256, 256).pieces) == 1
