"""block_states against every position of small grids: for ready masks, masks with captured tensors, and random ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexsdpa import mods
from flexsdpa.ir.canonical import program_of
from flexsdpa.ir.program import ArraySlot
from flexsdpa.ir.simplify import simplify
from flexsdpa.testing.strategies import masks, random_array
from null.helpers import traced
from null.structure.grids import assert_never_wrong, found_states, grid, kept, positions, true_states
from null.structure.masks import MASKS, B, H, S

GRIDS = {
    "squares": grid(S, S, 16, 16, (0, B - 1), (0, H - 1)),
    "aligned to 32": grid(S, S, 32, 32, (0, B - 1), (0, H - 1)),
    "ragged ends": grid(70, 85, 16, 24, (0, B - 1), (0, H - 1)),
    "one batch and head": grid(70, 85, 8, 8, (1, 1), (2, 2)),
    "single positions": grid(40, 40, 1, 1, (2, 2), (3, 3)),
    "one block": grid(20, 20, 128, 128, (0, B - 1), (0, H - 1)),
    "one query": grid(1, 96, 1, 8, (0, B - 1), (0, H - 1)),
}


@pytest.mark.parametrize("size", GRIDS)
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_with_captured_tensors(name, size):
    g = GRIDS[size]
    found = traced(None, MASKS[name])
    program = program_of(found.text)
    by_numpy = np.broadcast_to(MASKS[name](*positions(g)), np.broadcast_shapes(*(x.shape for x in positions(g))))
    mask = kept(program, g, found.arrays, found.scalars)
    np.testing.assert_array_equal(mask, by_numpy)
    assert_never_wrong(found_states(program, g, found.arrays, found.scalars), true_states(mask, g))


def test_every_ready_mask_is_tested():
    names = {"causal", "sliding_window", "document", "prefix_lm", "padding", "and_masks", "or_masks", "not_mask"}
    scores = {"from_graph_callback", "softcap", "alibi", "alibi_slopes", "relative_bias", "t5_bias", "t5_bucket", "chain"}
    assert set(mods.__all__) == names | scores
    used = {type(mask).__name__ for mask in MASKS.values()}
    assert used >= {"_Causal", "sliding_window", "document", "prefix_lm", "padding", "_All", "_Any", "_Not"}


@given(
    masks(slots=(ArraySlot("i64", 1), ArraySlot("bool", 1), ArraySlot("f32", 1)), scalars=1),
    st.integers(0, 2**16),
    st.sampled_from([(1, 1), (2, 3), (4, 4)]),
    st.sampled_from([np.float64, np.float32]),
)
def test_a_random_mask(drawn, seed, blocks, work):
    program = simplify(drawn)
    random = np.random.default_rng(seed)
    arrays = [random_array(random, slot, 14, (0, 1, 2, 3, 5, 8, -1)) for slot in program.arrays]
    scalars = [float(random.choice([0.0, 1.0, -2.5, 7.0, np.inf, np.nan]))]
    g = grid(12, 14, *blocks, b=(0, 1), h=(0, 1))
    mask = kept(program, g, arrays, scalars, work)
    assert_never_wrong(found_states(program, g, arrays, scalars), true_states(mask, g))


class TestManyBlocks:
    """More blocks than one level classifies at once, and more rows than one chunk holds."""

    @pytest.mark.parametrize("name", ["causal", "window", "documents", "chunks", "prefix"])
    def test_coarse_levels_decide_as_fine_ones_would(self, name):
        found = traced(None, MASKS[name])
        program = program_of(found.text)
        g = grid(S, S, 1, 1)
        assert g.rows > 64
        assert_never_wrong(found_states(program, g, found.arrays), true_states(kept(program, g, found.arrays), g))

    def test_rows_are_classified_in_chunks(self):
        program = program_of(traced(None, mods.sliding_window(300)).text)
        g = grid(1100, 1100, 1, 50)
        q, k = np.arange(1100)[:, None], np.arange(22)[None]
        first, last = k * 50, k * 50 + 49
        keeps_some = (first <= q) & (q - last < 300)
        keeps_all = (last <= q) & (q - first < 300)
        np.testing.assert_array_equal(found_states(program, g), np.where(keeps_all, 2, np.where(keeps_some, 1, 0)))


class TestSmallSizes:
    PROGRAM = program_of(traced(None, mods.causal).text)

    @pytest.mark.parametrize(("q", "kv"), [(0, 5), (5, 0), (0, 0)])
    def test_no_queries_or_no_keys(self, q, kv):
        g = grid(q, kv, 4, 4)
        assert found_states(self.PROGRAM, g).shape == (g.rows, g.columns)

    def test_without_a_mask_all_blocks_are_full(self):
        program = program_of(traced(lambda s, b, h, q, k: s * 2.0).text)
        assert found_states(program, grid(10, 10, 4, 4)).tolist() == [[2, 2, 2]] * 3
