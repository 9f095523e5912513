"""block_rows: the runs of keys to visit are the blocks that are not empty, in order, each once."""

import numpy as np
import pytest

from flexsdpa import mods
from flexsdpa.ir.canonical import program_of
from flexsdpa.structure.blocks import EMPTY, FULL, Run, block_rows, occupancy
from flexsdpa.structure.ranges import ArrayRanges
from null.helpers import traced
from null.structure.grids import found_states, grid
from null.structure.masks import MASKS, S


@pytest.mark.parametrize("name", MASKS)
def test_runs_spell_out_the_block_states(name):
    found = traced(None, MASKS[name])
    program = program_of(found.text)
    g = grid(S - 3, S - 5, 16, 8)
    states = found_states(program, g, found.arrays, found.scalars)
    rows = block_rows(program, g, [ArrayRanges(np.asarray(a)) for a in found.arrays], found.scalars)
    for row, runs in zip(states, rows, strict=True):
        visited = np.zeros(g.kv_tokens, int)
        for run in runs:
            visited[run.start : run.stop] += 1
            blocks = row[run.start // g.block_kv : -(-run.stop // g.block_kv)]
            assert np.all(blocks == FULL) if run.full else not np.any((blocks == FULL) | (blocks == EMPTY))
        wanted = np.repeat(row != EMPTY, g.block_kv)[: g.kv_tokens]
        np.testing.assert_array_equal(visited, wanted.astype(int))
        assert [run.start for run in runs] == sorted(run.start for run in runs)


def test_a_causal_row_is_a_full_run_and_a_partial_one():
    program = program_of(traced(None, mods.causal).text)
    assert block_rows(program, grid(12, 12, 4, 4)) == [
        (Run(0, 4, False),),
        (Run(0, 4, True), Run(4, 8, False)),
        (Run(0, 8, True), Run(8, 12, False)),
    ]


def test_the_last_run_ends_with_the_keys():
    program = program_of(traced(None, mods.padding(100)).text)
    assert block_rows(program, grid(4, 10, 4, 4)) == [(Run(0, 10, True),)]


def test_rows_without_keys_have_no_runs():
    program = program_of(traced(None, lambda b, h, q, k: k < 0).text)
    assert block_rows(program, grid(8, 8, 4, 4)) == [(), ()]


def test_occupancy_counts_visited_and_full_blocks():
    assert occupancy(np.array([[0, 1], [2, 2]])) == (0.75, 0.5)
