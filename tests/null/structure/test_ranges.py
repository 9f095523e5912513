"""Range minima and maxima of captured tensors against slices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexsdpa.structure import ranges
from flexsdpa.structure.ranges import BLOCK, ArrayRanges, RangeTable


@given(st.integers(1, 200), st.integers(0, 2**16))
def test_a_range_table_contains_the_range_and_is_exact_at_block_ends(size, seed):
    random = np.random.default_rng(seed)
    rows = random.integers(-50, 50, (3, size))
    first = random.integers(0, size, 20)
    last = np.minimum(first + random.integers(0, size, 20), size - 1)
    row = random.integers(0, 3, 20)
    low, high = RangeTable(rows).query(row, first, last)
    for n in range(20):
        inside = rows[row[n], first[n] : last[n] + 1]
        blocks = rows[row[n], first[n] // BLOCK * BLOCK : (last[n] // BLOCK + 1) * BLOCK]
        assert low[n] <= inside.min()
        assert inside.max() <= high[n]
        assert (low[n], high[n]) == (blocks.min(), blocks.max())


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int16, np.int64, np.float16, np.float32, np.float64])
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_array_ranges_contain_every_element(dtype, data, seed):
    random = np.random.default_rng(seed)
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=0, max_size=3)))
    array = np.asarray(random.integers(0, 100, shape)).astype(dtype)
    starts = [random.integers(-size, size, 8) for size in shape]
    indices = [(start, start + random.integers(0, 3, 8)) for start in starts]
    (low, high), answerable = ArrayRanges(array).query(indices)
    for n in range(8):
        if not np.broadcast_to(answerable, 8)[n]:
            continue
        places = [np.arange(first[n], last[n] + 1) for first, last in indices]
        elements = array[np.ix_(*places)] if places else array
        assert np.broadcast_to(low, 8)[n] <= elements.min()
        assert elements.max() <= np.broadcast_to(high, 8)[n]


class TestWhatIsAnswerable:
    ARRAY = np.arange(10, 20)

    def answerable(self, first, last):
        return ArrayRanges(self.ARRAY).query([(np.asarray(first), np.asarray(last))])[1].tolist()

    def test_a_range_inside_is(self):
        assert self.answerable([0, 3, 9], [9, 5, 9]) == [True, True, True]

    def test_a_range_of_negative_indices_is(self):
        assert self.answerable([-10, -1], [-1, -1]) == [True, True]

    def test_a_range_that_leaves_the_tensor_is_not(self):
        assert self.answerable([5, -11, 10], [10, -1, 12]) == [False, False, False]

    def test_a_range_through_zero_is_not(self):
        assert self.answerable([-1], [0]) == [False]

    def test_an_empty_tensor_is_not(self):
        assert ArrayRanges(np.zeros(0)).query([(np.asarray(0), np.asarray(0))]) is None

    def test_a_large_tensor_is_not_scanned(self, monkeypatch):
        monkeypatch.setattr(ranges, "MAX_ELEMENTS", 9)
        assert ArrayRanges(self.ARRAY).query([(np.asarray(0), np.asarray(0))]) is None

    def test_negative_indices_count_from_the_end(self):
        (low, high), _ = ArrayRanges(self.ARRAY).query([(np.asarray(-1), np.asarray(-1))])
        assert (int(low), int(high)) == (19, 19)
