"""For masks with a native form, block_states finds every empty and every full block, not only some."""

import numpy as np
import pytest

from flexsdpa import mods
from flexsdpa.ir.canonical import program_of
from null.helpers import traced
from null.structure.grids import found_states, grid, kept, true_states

IDS = np.repeat(np.arange(7), [33, 1, 20, 64, 5, 40, 29])
ROWS = np.sort(np.random.default_rng(2).integers(0, 6, (3, len(IDS))), axis=1)
S = len(IDS)

AT_ANY_BLOCK_SIZE = {
    **{f"causal, offset {n}": mods.causal(offset=n) for n in (0, 1, -1, 7, -30, 64, 500, -500)},
    "causal, offset per batch": mods.causal(offset=np.array([0, 13, -50])),
    **{f"window of {n}": mods.sliding_window(n) for n in (1, 2, 16, 17, 100, 1000)},
    **{f"window of {n} on both sides": mods.sliding_window(n, causal=False) for n in (1, 2, 33, 1000)},
    **{f"prefix of {n}": mods.prefix_lm(n) for n in (0, 1, 40, 500)},
    "prefix per batch": mods.prefix_lm(np.array([0, 10, 90])),
    **{f"padding to {n}": mods.padding(n) for n in (0, 1, 100, 500)},
    "padding per batch": mods.padding(np.array([190, 64, 1])),
    "padding of queries too": mods.padding(np.array([190, 64, 1]), np.array([3, 190, 64])),
    "causal and padding": mods.and_masks(mods.causal, mods.padding(77)),
    "not causal": mods.not_mask(mods.causal),
    "nothing": lambda b, h, q, k: k < 0,
}

AT_BLOCKS_OF_32 = {
    "documents": mods.document(IDS),
    "documents per batch": mods.document(ROWS),
    "causal documents": mods.and_masks(mods.causal, mods.document(IDS)),
    "window in documents": mods.and_masks(mods.sliding_window(40), mods.document(ROWS)),
}
"""Captured tensors are scanned in blocks of 32 elements, so smaller blocks of queries or keys are not resolved."""


def assert_exact(mask, g):
    found = traced(None, mask)
    program = program_of(found.text)
    expected = true_states(kept(program, g, found.arrays), g)
    np.testing.assert_array_equal(found_states(program, g, found.arrays), expected)


@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("blocks", [(16, 16), (7, 13), (32, 8), (128, 64)])
@pytest.mark.parametrize("name", AT_ANY_BLOCK_SIZE)
def test_bands_prefixes_and_padding(name, blocks, batch):
    assert_exact(AT_ANY_BLOCK_SIZE[name], grid(S - 20, S, *blocks, b=(batch, batch)))


@pytest.mark.parametrize("name", ["causal, offset 0", "window of 16", "prefix of 40", "padding to 100"])
def test_single_positions(name):
    assert_exact(AT_ANY_BLOCK_SIZE[name], grid(80, 100, 1, 1))


@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("blocks", [(32, 32), (64, 32), (32, 96)])
@pytest.mark.parametrize("name", AT_BLOCKS_OF_32)
def test_sorted_documents(name, blocks, batch):
    assert_exact(AT_BLOCKS_OF_32[name], grid(S, S, *blocks, b=(batch, batch)))


@pytest.mark.parametrize("name", ["padding per batch", "prefix per batch", "causal, offset per batch"])
def test_all_batches_at_once(name):
    """A block is full if it is in every batch, empty if it is in every batch."""
    assert_exact(AT_ANY_BLOCK_SIZE[name], grid(S, S, 16, 16, b=(0, 2)))
