"""How the reference backend walks a call: groups and tiles cover everything once, within the budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexsdpa import config
from flexsdpa.backends.reference.tiles import SMALL_KV, Sizes, plan_tiles, tiles_of_row
from flexsdpa.structure.blocks import Run

SIZES = st.builds(
    lambda b, hkv, g, sq, skv: Sizes(b, hkv * g, hkv, sq, skv, 8, 8),
    st.integers(0, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 700), st.integers(0, 3000),
)  # fmt: skip


class TestGroups:
    @given(SIZES, st.booleans(), st.booleans(), st.sampled_from([1, 100, 4096, 1 << 20]))
    def test_every_batch_and_head_is_in_one_group(self, sizes, per_batch, per_head, budget):
        with config.options(tile_elements=budget):
            walk = plan_tiles(sizes, per_batch=per_batch, per_head=per_head)
        covered = [(b, h) for g in walk.groups for b in range(g.b0, g.b1) for h in range(g.h0, g.h1)]
        assert sorted(covered) == [(b, h) for b in range(sizes.B) for h in range(sizes.Hkv)]

    @given(SIZES, st.booleans(), st.booleans())
    def test_a_tile_holds_at_most_the_budget(self, sizes, per_batch, per_head):
        """Or one group of heads of the configured tile, where even that is more."""
        walk = plan_tiles(sizes, per_batch=per_batch, per_head=per_head)
        for group in walk.groups:
            elements = group.size * sizes.G * walk.tile_q * walk.tile_kv
            least = sizes.G * config.get("tile_q") * config.get("tile_kv")
            assert elements <= max(config.get("tile_elements"), least)

    def test_a_mask_per_batch_keeps_long_batches_apart(self):
        sizes = Sizes(4, 2, 2, 500, 500, 8, 8)
        assert all(g.b1 - g.b0 == 1 for g in plan_tiles(sizes, per_batch=True, per_head=False).groups)
        assert all(g.h1 - g.h0 == 1 for g in plan_tiles(sizes, per_batch=False, per_head=True).groups)

    def test_short_batches_are_computed_together(self):
        sizes = Sizes(4, 2, 2, 16, SMALL_KV, 8, 8)
        assert len(plan_tiles(sizes, per_batch=True, per_head=True).groups) == 1


def runs_from(lengths):
    """Runs from (gap, length, full) triples."""
    runs, at = [], 0
    for gap, length, full in lengths:
        runs.append(Run(at + gap, at + gap + length, full))
        at += gap + length
    return runs


class TestTiles:
    @given(st.lists(st.tuples(st.sampled_from([0, 0, 7]), st.integers(1, 500), st.booleans()), max_size=6), st.integers(1, 300))
    def test_every_key_of_every_run_is_in_one_tile(self, lengths, tile_kv):
        runs = runs_from(lengths)
        tiles = list(tiles_of_row(runs, tile_kv))
        visited = [key for tile in tiles for key in range(tile.k0, tile.k1)]
        assert visited == [key for run in runs for key in range(run.start, run.stop)]
        assert all(tile.k1 - tile.k0 <= tile_kv for tile in tiles)

    @given(st.lists(st.tuples(st.sampled_from([0, 0, 7]), st.integers(1, 500), st.booleans()), max_size=6), st.integers(1, 300))
    def test_exactly_the_partial_runs_are_masked(self, lengths, tile_kv):
        runs = runs_from(lengths)
        masked = [
            tile.k0 + key for tile in tiles_of_row(runs, tile_kv) for first, last in tile.masked for key in range(first, last)
        ]
        assert masked == [key for run in runs if not run.full for key in range(run.start, run.stop)]

    @pytest.mark.parametrize("tile_kv", [16, 100, 1000])
    def test_no_runs_no_tiles(self, tile_kv):
        assert list(tiles_of_row([], tile_kv)) == []
