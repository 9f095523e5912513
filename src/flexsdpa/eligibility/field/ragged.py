"""Shapes of ragged (thd) calls. One predicate decides the layout of the statistics; everything that reads them asks it.

Forward and backward graphs, the buffers of auxiliary tensors and the merge of partial results under context parallelism must
agree: a mismatch reads the wrong layout without an error.
"""

from __future__ import annotations

from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.eligibility.field.row import since

DENSE_STATISTICS = ("sm_8x", "sm_12x")
"""Families whose backward takes no ragged statistics; cuDNN's own words name both."""
BATCHES, TOKENS = (32, 512, 512), (1024, 32768, 32768)
"""(smallest bucket, powers of two up to, multiples of) for batches and tokens of ragged graphs."""


def ragged_statistics(c: FieldCase) -> bool:
    """Whether statistics (and row maxima) of this call are (tokens, h, 1) rather than dense (b, h, s_q, 1)."""
    return c.q_format == "thd" and since(c, 9, 6) and not c.on(*DENSE_STATISTICS)


packed_lse = ragged_statistics
"""Whether the LSE that context parallelism merges is (tokens, h). The same question, so the same function."""


def statistics_shape(c: FieldCase, tokens: int) -> tuple[int, ...]:
    """The shape of the fp32 statistics that forward writes and backward reads. tokens: of all queries together."""
    return (tokens, c.h_q, 1) if ragged_statistics(c) else (c.b, c.h_q, c.s_q, 1)


def bucketed(c: FieldCase) -> bool:
    """Whether a ragged graph is declared for a bucket of batches and tokens; else for the real batch and maximum lengths.

    sm_12x takes the latter: its support check calls a batch stride beyond dim1 * dim2 * dim3 an interleaved layout.
    """
    return c.ragged and since(c, 9, 6) and not c.on("sm_12x")


def graph_sizes(c: FieldCase) -> tuple[int, int, int]:
    """(batch, query length, key length) that the graph's tensors declare."""
    if not bucketed(c):
        return c.b, c.s_q, c.s_kv
    batch = bucket(c.b, *BATCHES)
    s_q = bucket(c.b * c.s_q, *TOKENS) if c.q_format == "thd" else c.s_q
    s_kv = bucket(c.b * c.s_kv, *TOKENS) if c.kv_format == "thd" else c.s_kv
    return batch, s_q, s_kv


def bucket(n: int, smallest: int, largest_power: int, step: int) -> int:
    """``n`` rounded up: to ``smallest``, then to a power of two, beyond ``largest_power`` to a multiple of ``step``."""
    if n <= smallest:
        return smallest
    return 1 << (n - 1).bit_length() if n <= largest_power else -(-n // step) * step


def declares_token_totals(c: FieldCase) -> tuple[bool, bool]:
    """Whether a backward graph declares the totals of query and key tokens, which bound its scratch space."""
    return ragged_statistics(c), c.kv_format == "thd" and bucketed(c)
