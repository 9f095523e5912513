"""Shapes of ragged calls by family: the places where sm_12x needs its own path, all asked of one predicate."""

import pytest

from flexsdpa.eligibility.field import ragged
from flexsdpa.eligibility.field.case import FieldCase


def thd(cc, **changes):
    return FieldCase.of(
        **{"cc": cc, "layout": "thd_thd_thd", "mask": "padding_causal", "window": (-1, 0), "training": True, **changes}
    )


@pytest.mark.parametrize(("cc", "packed"), [
    ("8.0", False), ("8.9", False), ("9.0", True), ("10.0", True), ("10.3", True), ("11.0", True),
    ("12.0", False), ("12.1", False), ("12.7", False),
])  # fmt: skip
def test_statistics_by_family(cc, packed):
    case = thd(cc)
    assert ragged.ragged_statistics(case) is packed
    assert ragged.statistics_shape(case, tokens=700) == ((700, 16, 1) if packed else (2, 16, 2048, 1))
    assert ragged.declares_token_totals(case)[0] is packed


def test_context_parallelism_asks_the_same_function():
    assert ragged.packed_lse is ragged.ragged_statistics


def test_statistics_depend_on_the_queries_and_the_release():
    assert not ragged.ragged_statistics(thd("9.0", cudnn="9.5.1"))
    assert not ragged.ragged_statistics(thd("9.0", layout="bshd_bshd_bshd"))
    assert ragged.ragged_statistics(thd("9.0", layout="thd_bshd_bshd"))


@pytest.mark.parametrize("cc", ["12.0", "12.1"])
def test_sm_12x_declares_real_batches_and_the_longest_lengths(cc):
    assert ragged.graph_sizes(thd(cc, b=3, s_q=1000, s_kv=1500)) == (3, 1000, 1500)
    assert ragged.declares_token_totals(thd(cc)) == (False, False)


def test_other_families_declare_buckets():
    assert ragged.graph_sizes(thd("9.0", b=3, s_q=1000, s_kv=1500)) == (32, 4096, 8192)
    assert ragged.graph_sizes(thd("9.0", b=3, s_q=1000, layout="bshd_bshd_bshd")) == (3, 1000, 1000)
    assert ragged.declares_token_totals(thd("9.0")) == (True, True)


@pytest.mark.parametrize(("n", "batch", "tokens"), [
    (1, 32, 1024), (32, 32, 1024), (33, 64, 1024), (512, 512, 1024), (513, 1024, 1024), (1025, 1536, 2048),
    (32768, 32768, 32768), (32769, 33280, 65536),
])  # fmt: skip
def test_buckets(n, batch, tokens):
    assert ragged.bucket(n, *ragged.BATCHES) == batch
    assert ragged.bucket(n, *ragged.TOKENS) == tokens
