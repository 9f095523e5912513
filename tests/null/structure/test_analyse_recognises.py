"""analyse() names the masks that kernels have a native form for, however they are written, and says unknown for others."""

import numpy as np
import pytest

from flexsdpa import mods, ops
from flexsdpa.structure.analyse import AnyOf, Band, OneAxis, Positions, SameGroup, Unknown, analyse, describe
from null.helpers import program_from
from null.structure.masks import ALLOWED_KEYS, ALLOWED_PAIRS, LENGTHS, MASKS, OFFSETS, PREFIXES, SORTED_IDS, SORTED_ROWS, WINDOWS

NEGATIVE_INFINITY = -float("inf")


def lines(mask=None, score=None):
    """What analyse() says, in words."""
    program = program_from(score, mask)
    return sorted(ordered(line) for line in describe(program, analyse(program)))


def ordered(line):
    """Alternatives in alphabetical order: theirs follows hashes."""
    head = "prefix: " if line.startswith("prefix: ") else ""
    return head + " or ".join(sorted(line.removeprefix(head).split(" or ")))


def inside_the_score(mask):
    """The same mask, written as a score of -inf."""
    return lambda s, b, h, q, k: ops.where(mask(b, h, q, k), s, NEGATIVE_INFINITY)


KNOWN = {
    "causal": (mods.causal, ["causal"]),
    "causal, strictly": (lambda b, h, q, k: k < q, ["causal, offset -1"]),
    "causal, queries first": (lambda b, h, q, k: q >= k, ["causal"]),
    "causal, as a difference": (lambda b, h, q, k: q - k >= 0, ["causal"]),
    "causal, negated": (lambda b, h, q, k: ~(k > q), ["causal"]),
    "causal, scaled by minus one": (lambda b, h, q, k: -q <= -k, ["causal"]),
    "causal, offset 7": (mods.causal(offset=7), ["causal, offset 7"]),
    "causal, offset -7": (mods.causal(offset=-7), ["causal, offset -7"]),
    "causal, offset spread out": (lambda b, h, q, k: k + 2 <= q + 12 - 3, ["causal, offset 7"]),
    "causal, offset per batch": (mods.causal(offset=OFFSETS), ["causal, offset t0[b]"]),
    "causal, offset per batch and more": (lambda b, h, q, k: k <= q + ops.read(OFFSETS, b) - 3, ["causal, offset t0[b] - 3"]),
    "future only": (lambda b, h, q, k: k >= q, ["window: kv_idx - q_idx >= 0"]),
    "window": (mods.sliding_window(128), ["window: -127 <= kv_idx - q_idx <= 0"]),
    "window, open": (lambda b, h, q, k: k > q - 128, ["window: kv_idx - q_idx >= -127"]),
    "window on both sides": (mods.sliding_window(4, causal=False), ["window: -3 <= kv_idx - q_idx <= 3"]),
    "window with two widths": (lambda b, h, q, k: (q - k <= 5) & (k - q <= 2), ["window: -5 <= kv_idx - q_idx <= 2"]),
    "window per head": (
        lambda b, h, q, k: abs(q - k) < ops.read(WINDOWS, h),
        ["window: -t0[h] + 1 <= kv_idx - q_idx <= t0[h] - 1"],
    ),
    "documents": (mods.document(SORTED_IDS), ["same document: t0[q_idx] == t0[kv_idx]"]),
    "documents per batch": (mods.document(SORTED_ROWS), ["same document: t0[b, q_idx] == t0[b, kv_idx]"]),
    "documents, keys first": (
        lambda b, h, q, k: ops.read(SORTED_IDS, k) == ops.read(SORTED_IDS, q),
        ["same document: t0[q_idx] == t0[kv_idx]"],
    ),
    "causal documents": (
        mods.and_masks(mods.causal, mods.document(SORTED_IDS)),
        ["causal", "same document: t0[q_idx] == t0[kv_idx]"],
    ),
    "prefix": (mods.prefix_lm(30), ["prefix: causal or padding: kv_idx < 30"]),
    "prefix per batch": (mods.prefix_lm(PREFIXES), ["prefix: causal or padding: kv_idx < t0[b]"]),
    "padding": (mods.padding(50), ["padding: kv_idx < 50"]),
    "padding, inclusive": (lambda b, h, q, k: k <= 49, ["padding: kv_idx < 50"]),
    "padding per batch": (mods.padding(LENGTHS), ["padding: kv_idx < t0[b]"]),
    "padding on the left": (lambda b, h, q, k: k >= ops.read(LENGTHS, b), ["padding: kv_idx >= t0[b]"]),
    "padding of queries too": (mods.padding(LENGTHS, LENGTHS), ["padding: kv_idx < t0[b]", "queries: q_idx < t0[b]"]),
    "chunks": (lambda b, h, q, k: q // 16 == k // 16, ["same chunk: q_idx // 16 == kv_idx // 16"]),
    "allowed keys": (lambda b, h, q, k: ops.read(ALLOWED_KEYS, b, k), ["key condition: t0[b, kv_idx]"]),
    "every second query": (lambda b, h, q, k: q % 2 == 0, ["query condition: (q_idx % 2) == 0"]),
}

UNKNOWN = {
    "dilated": lambda b, h, q, k: (q - k) % 4 == 0,
    "pairs": lambda b, h, q, k: ops.read(ALLOWED_PAIRS, q, k),
    "twice as far": lambda b, h, q, k: k <= 2 * q,
    "sum of positions": lambda b, h, q, k: q + k < 10,
    "product of positions": lambda b, h, q, k: q * k < 10,
    "other documents": mods.not_mask(mods.document(SORTED_IDS)),
    "documents of keys": mods.document(SORTED_IDS, kv_ids=PREFIXES),
    "a float comparison": lambda b, h, q, k: (q - k) * 0.5 <= 4.5,
    "exclusive or": lambda b, h, q, k: (k <= q) ^ (k < 5),
    "a bound that depends on the query": lambda b, h, q, k: k <= ops.read(SORTED_IDS, q),
    "half of the heads": lambda b, h, q, k: (h < 2) | (k <= q),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_mask_is_described(name):
    mask, expected = KNOWN[name]
    assert lines(mask) == sorted(expected)
    assert analyse(program_from(None, mask)).known


@pytest.mark.parametrize("name", KNOWN)
def test_a_mask_inside_the_score_is_the_same_mask(name):
    mask, expected = KNOWN[name]
    assert lines(score=inside_the_score(mask)) == sorted(expected)


@pytest.mark.parametrize("name", UNKNOWN)
def test_any_other_mask_is_unknown(name):
    structure = analyse(program_from(None, UNKNOWN[name]))
    assert [type(clause) for clause in structure.clauses] == [Unknown]
    assert not structure.known


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_known_beside_it_is_still_found(name):
    structure = analyse(program_from(None, mods.and_masks(mods.causal, UNKNOWN[name])))
    assert structure.band() == (None, 0)
    assert not structure.known


def test_a_mask_on_the_score_is_unknown():
    structure = analyse(program_from(lambda s, b, h, q, k: ops.where(s > 0.0, s, NEGATIVE_INFINITY)))
    assert [type(clause) for clause in structure.clauses] == [Unknown]


@pytest.mark.parametrize("mods_of", [(None, None), (lambda s, b, h, q, k: s * 2.0, None), (None, lambda b, h, q, k: True)])
def test_no_mask_is_full_attention(mods_of):
    program = program_from(*mods_of)
    structure = analyse(program)
    assert structure.full
    assert structure.known
    assert describe(program, structure) == ["full (no mask)"]


class TestClauses:
    def clauses(self, mask):
        return analyse(program_from(None, mask)).clauses

    def test_a_window_is_one_band(self):
        (band,) = self.clauses(mods.sliding_window(8))
        assert isinstance(band, Band)
        assert (band.lower.const, band.upper.const) == (-7, 0)

    def test_a_document_names_the_tensor_that_it_reads(self):
        (group,) = self.clauses(lambda b, h, q, k: ops.read(SORTED_ROWS, b, q) == ops.read(SORTED_ROWS, b, k))
        assert isinstance(group, SameGroup)
        assert group.slot == 0

    def test_a_chunk_names_no_tensor(self):
        (group,) = self.clauses(lambda b, h, q, k: q // 8 == k // 8)
        assert isinstance(group, SameGroup)
        assert group.slot is None

    def test_a_prefix_is_one_of_two(self):
        (either,) = self.clauses(mods.prefix_lm(3))
        assert isinstance(either, AnyOf)
        assert {type(clause) for clause in either.clauses} == {Positions, Band}

    def test_three_alternatives_are_one_list(self):
        (either,) = self.clauses(lambda b, h, q, k: (k < 3) | (k <= q) | (q // 8 == k // 8))
        assert len(either.clauses) == 3

    def test_an_unknown_alternative_makes_the_whole_unknown(self):
        (clause,) = self.clauses(lambda b, h, q, k: (k <= q) | ((q - k) % 4 == 0))
        assert isinstance(clause, Unknown)

    def test_a_condition_on_keys_names_its_axis(self):
        (clause,) = self.clauses(lambda b, h, q, k: ops.read(ALLOWED_KEYS, b, k))
        assert (type(clause), clause.axis) == (OneAxis, "kv")

    @pytest.mark.parametrize(
        ("name", "band"),
        [("causal", (None, 0)), ("window", (-11, 0)), ("window on both sides", (-8, 8)), ("documents", (None, None))],
    )
    def test_band_gives_the_constant_bounds(self, name, band):
        assert analyse(program_from(None, MASKS[name])).band() == band

    def test_band_takes_the_narrower_of_two(self):
        mask = mods.and_masks(mods.sliding_window(8), mods.sliding_window(4, causal=False))
        assert analyse(program_from(None, mask)).band() == (-3, 0)


def test_chunks_are_recognised_whatever_their_shift():
    unknown = [
        shift
        for shift in range(1, 40)
        if not analyse(program_from(None, lambda b, h, q, k: (q + shift) // 64 == (k + shift) // 64)).known
    ]
    assert unknown == []


def test_shifted_documents_are_recognised_whatever_their_shift():
    ids = np.arange(100) // 10
    unknown = [
        shift for shift in range(1, 40)
        if not analyse(program_from(None, lambda b, h, q, k: ops.read(ids, q + shift) == ops.read(ids, k + shift))).known
    ]  # fmt: skip
    assert unknown == []
