"""Smallest and largest element of a captured tensor over index ranges, many ranges at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Range = tuple[Array, Array]

MAX_ELEMENTS = 1 << 22
"""Larger tensors are not scanned: their contents count as unknown."""

BLOCK = 32


class RangeTable:
    """Range minima and maxima along one axis: blocks of 32, then doubling steps. Answers are supersets at block ends."""

    def __init__(self, rows: Array) -> None:
        self.size = rows.shape[1]
        count = -(-self.size // BLOCK)
        padded = np.pad(rows, ((0, 0), (0, count * BLOCK - self.size)), mode="edge").reshape(len(rows), count, BLOCK)
        self.low = [padded.min(-1)]
        self.high = [padded.max(-1)]
        while (step := 1 << (len(self.low) - 1)) * 2 <= count:
            self.low.append(np.minimum(self.low[-1][:, :-step], self.low[-1][:, step:]))
            self.high.append(np.maximum(self.high[-1][:, :-step], self.high[-1][:, step:]))

    def query(self, row: Array, first: Array, last: Array) -> Range:
        """Bounds of rows[row, first..last], last included."""
        row, first, last = np.broadcast_arrays(row, first // BLOCK, last // BLOCK)
        level = np.frexp((last - first + 1).astype(np.float64))[1] - 1
        low, high = np.empty(row.shape, self.low[0].dtype), np.empty(row.shape, self.low[0].dtype)
        for k in np.unique(level):
            at = level == k
            r, start, end = row[at], first[at], last[at] - (1 << int(k)) + 1
            low[at] = np.minimum(self.low[k][r, start], self.low[k][r, end])
            high[at] = np.maximum(self.high[k][r, start], self.high[k][r, end])
        return low, high


class ArrayRanges:
    """Answers range questions about one captured tensor. Tables are made when first asked for."""

    def __init__(self, array: Array) -> None:
        self.array = array.view(np.uint8) if array.dtype == np.bool_ else array
        self.known = 0 < array.size <= MAX_ELEMENTS
        self._tables: dict[int, RangeTable] = {}
        self._whole: Range | None = None

    def query(self, indices: Sequence[Range]) -> tuple[Range, Array] | None:
        """Bounds over index ranges that lie inside the tensor, and which questions were answerable.

        None where nothing can be said. Ranges that may leave the tensor are marked as not answerable.
        """
        if not self.known:
            return None
        inside: list[Range] = []
        answerable = np.ones((), bool)
        for (low, high), size in zip(indices, self.array.shape, strict=True):
            answerable = answerable & (((low >= 0) & (high < size)) | ((low >= -size) & (high < 0)))
            wrap = np.where(high < 0, size, 0)
            inside.append((np.clip(low + wrap, 0, size - 1), np.clip(high + wrap, 0, size - 1)))
        varying = [d for d, (low, high) in enumerate(inside) if np.any(low != high)]
        if not varying:
            value = self.array[tuple(low for low, _ in inside)]
            return (value, value), answerable
        if len(varying) > 1:
            return self._bounds(), answerable
        return self._along(varying[0], inside), answerable

    def _along(self, axis: int, indices: list[Range]) -> Range:
        shape = [size for d, size in enumerate(self.array.shape) if d != axis]
        if axis not in self._tables:
            self._tables[axis] = RangeTable(np.moveaxis(self.array, axis, -1).reshape(-1, self.array.shape[axis]))
        row = np.zeros((), np.int64)
        for size, (low, _) in zip(shape, (pair for d, pair in enumerate(indices) if d != axis), strict=True):
            row = row * size + low
        return self._tables[axis].query(row, *indices[axis])

    def _bounds(self) -> Range:
        if self._whole is None:
            self._whole = (np.asarray(self.array.min()), np.asarray(self.array.max()))
        return self._whole
