"""Packed sequences, with and without padding, and jagged nested tensors: sequences never see each other."""

from itertools import pairwise

import pytest
import torch

from flexsdpa import mods
from flexsdpa.testing.inputs import random_tensor
from flexsdpa.testing.oracles import dense_attention
from flexsdpa.torch import attention, varlen_attention

H, D = 4, 8
SETS = {
    "three": ([0, 11, 24, 39], None),
    "one": ([0, 39], None),
    "empty ones": ([0, 0, 12, 12, 39, 39], None),
    "single tokens": ([0, 1, 2, 3, 39], None),
    "rows after the last": ([0, 11, 24], None),
    "padded": ([0, 12, 24, 36], [9, 7, 8]),
    "padded to nothing": ([0, 12, 24, 39], [12, 0, 1]),
    "no sequence with rows": ([0, 0, 0], None),
}
BIAS = random_tensor(H, 80, seed=30)
MODS = {
    "plain": (None, None),
    "causal": (None, mods.causal),
    "score": (lambda s, b, h, i, j: s + BIAS[h, i - j + 40] * (b + 1), None),
    "both": (lambda s, b, h, i, j: s - 0.1 * h * (i - j).abs(), lambda b, h, i, j: (i - j).abs() < 3 + b),
}


def packed(rows=39, Hkv=2, Dv=D, dtype=torch.float32):
    return (
        random_tensor(rows, H, D, dtype=dtype, seed=1), random_tensor(rows, Hkv, D, dtype=dtype, seed=2),
        random_tensor(rows, Hkv, Dv, dtype=dtype, seed=3),
    )  # fmt: skip


def one_by_one(q, k, v, offsets, lengths, kv_offsets=None, kv_lengths=None, score_mod=None, mask_mod=None):
    """(out, lse) by dense attention on each sequence; rows that belong to none are 0 and -inf."""
    out = torch.zeros(q.shape[0], q.shape[1], v.shape[2], dtype=torch.float64)
    lse = torch.full((q.shape[1], q.shape[0]), -torch.inf, dtype=torch.float64)
    ends = [a + n for a, n in zip(offsets, lengths, strict=False)] if lengths else offsets[1:]
    kv_offsets = kv_offsets or offsets
    kv_ends = (
        [a + n for a, n in zip(kv_offsets, kv_lengths, strict=False)]
        if kv_lengths
        else (ends if kv_offsets is offsets else kv_offsets[1:])
    )
    for n, (start, end, kv_start, kv_end) in enumerate(zip(offsets, ends, kv_offsets, kv_ends, strict=False)):
        if start == end:
            continue
        bhsd = [x.transpose(0, 1)[None] for x in (q[start:end], k[kv_start:kv_end], v[kv_start:kv_end])]
        in_sequence = score_mod and (lambda s, b, h, i, j: score_mod(s, torch.tensor(n), h, i, j))
        kept = mask_mod and (lambda b, h, i, j: mask_mod(torch.tensor(n), h, i, j))
        part, part_lse = dense_attention(*bhsd, in_sequence, kept)
        out = torch.cat([out[:start], part[0].transpose(0, 1), out[end:]])
        lse = torch.cat([lse[:, :start], part_lse[0], lse[:, end:]], 1)
    return out, lse


@pytest.mark.parametrize("mod", MODS)
@pytest.mark.parametrize("name", SETS)
def test_each_sequence_attends_within_itself(name, mod):
    offsets, lengths = SETS[name]
    score_mod, mask_mod = MODS[mod]
    leaves = [x.requires_grad_() for x in packed(Dv=5)]
    options = {"lengths": torch.tensor(lengths)} if lengths else {}
    out, lse = varlen_attention(
        *leaves, torch.tensor(offsets), score_mod=score_mod, mask_mod=mask_mod, return_lse=True, **options
    )
    expected, expected_lse = one_by_one(*leaves, offsets, lengths, score_mod=score_mod, mask_mod=mask_mod)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-4, atol=1e-5)
    weights = random_tensor(*out.shape, seed=4)
    seen = torch.autograd.grad((out * weights).sum(), leaves)
    if expected.requires_grad:
        wanted = torch.autograd.grad((expected * weights).sum(), leaves)
        torch.testing.assert_close(seen, wanted, rtol=1e-4, atol=1e-5)
    else:
        assert not any(g.any() for g in seen)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["padded", "padded to nothing", "rows after the last"])
def test_what_is_stored_in_padding_reaches_nothing(name, value):
    offsets, lengths = SETS[name]
    lengths = lengths or [b - a for a, b in pairwise(offsets)]
    inside = torch.zeros(39, dtype=torch.bool)
    for start, length in zip(offsets, lengths, strict=False):
        inside[start : start + length] = True
    results = []
    for filler in (0.0, value):
        leaves = [torch.where(inside[:, None, None], x, filler).requires_grad_() for x in packed()]
        out = varlen_attention(*leaves, torch.tensor(offsets), lengths=torch.tensor(lengths), mask_mod=mods.causal)
        grad = torch.where(inside[:, None, None], torch.ones_like(out), filler)
        results.append([out, *torch.autograd.grad(out, leaves, grad)])
        assert not out[~inside].any()
    for seen, expected in zip(*results, strict=True):
        torch.testing.assert_close(seen, expected)


def test_keys_may_have_offsets_of_their_own():
    q, (_, k, v) = packed(20)[0], packed(50)
    offsets, kv_offsets = [0, 7, 7, 20], [0, 30, 35, 50]
    options = {"score_mod": MODS["both"][0], "mask_mod": lambda b, h, i, j: j <= i + 20}
    out = varlen_attention(q, k, v, torch.tensor(offsets), kv_offsets=torch.tensor(kv_offsets), **options)
    torch.testing.assert_close(out.double(), one_by_one(q, k, v, offsets, None, kv_offsets, **options)[0], rtol=1e-4, atol=1e-5)


def test_keys_may_have_lengths_of_their_own():
    q, (_, k, v) = packed(20)[0], packed(50)
    offsets, kv_offsets, lengths, kv_lengths = [0, 8, 20], [0, 30, 50], [5, 12], [30, 1]
    out = varlen_attention(
        q,
        k,
        v,
        torch.tensor(offsets),
        kv_offsets=torch.tensor(kv_offsets),
        lengths=torch.tensor(lengths),
        kv_lengths=torch.tensor(kv_lengths),
    )
    expected, _ = one_by_one(q, k, v, offsets, lengths, kv_offsets, kv_lengths)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)


def test_a_sequence_of_queries_without_keys_gives_zeros():
    q, (_, k, v) = packed(6)[0], packed(4)
    out, lse = varlen_attention(q, k, v, torch.tensor([0, 3, 6]), kv_offsets=torch.tensor([0, 4, 4]), return_lse=True)
    assert not out[3:].any()
    assert torch.equal(lse[:, 3:], torch.full((H, 3), -torch.inf))
    assert torch.isfinite(lse[:, :3]).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_offsets_of_any_integer_dtype(dtype):
    offsets, _ = SETS["three"]
    a = varlen_attention(*packed(), torch.tensor(offsets, dtype=dtype))
    assert torch.equal(a, varlen_attention(*packed(), torch.tensor(offsets)))


def test_new_offsets_build_nothing(empty_cache):
    for last in (39, 30, 25):
        varlen_attention(*packed(), torch.tensor([0, 9, 17, last]), mask_mod=mods.causal)
    assert empty_cache().builds == 1


def test_options_are_passed_on():
    offsets = torch.tensor(SETS["three"][0])
    sink = random_tensor(H)
    plain = varlen_attention(*packed(), offsets, scale=0.3)
    sunk, lse = varlen_attention(*packed(), offsets, scale=0.3, sink=sink, return_lse=True)
    _, plain_lse = varlen_attention(*packed(), offsets, scale=0.3, return_lse=True)
    torch.testing.assert_close(lse, torch.logaddexp(plain_lse, sink[:, None]))
    torch.testing.assert_close(sunk, plain * torch.exp(plain_lse - lse).T[..., None])


def test_a_captured_table_by_sequence_gets_its_gradient():
    offsets = torch.tensor(SETS["three"][0])
    table = random_tensor(3, H).requires_grad_()
    out = varlen_attention(*packed(), offsets, score_mod=lambda s, b, h, i, j: s * table[b, h])
    expected, _ = one_by_one(
        *packed(), SETS["three"][0], None, score_mod=lambda s, b, h, i, j: s * table.double()[b, h[:, 0, 0]].view(-1, 1, 1)
    )
    seen, wanted = (torch.autograd.grad(x.square().sum(), table)[0] for x in (out, expected))
    torch.testing.assert_close(seen, wanted, rtol=1e-4, atol=1e-5)


# Nested tensors.

LENGTHS = [11, 13, 0, 15]


def jagged(seed, heads=H, lengths=LENGTHS, dim=D):
    parts = [random_tensor(n, heads, dim, seed=seed + at) for at, n in enumerate(lengths)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("mod", MODS)
def test_nested_tensors_attend_within_their_sequences(mod, layout):
    score_mod, mask_mod = MODS[mod]
    q, k, v = jagged(1), jagged(20, heads=2), jagged(40, heads=2, dim=5)
    given = (q, k, v) if layout == "bshd" else [x.transpose(1, 2) for x in (q, k, v)]
    out = attention(*given, score_mod=score_mod, mask_mod=mask_mod, layout=layout)
    assert out.is_nested
    out = out if layout == "bshd" else out.transpose(1, 2)
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    expected = varlen_attention(q.values(), k.values(), v.values(), offsets, score_mod=score_mod, mask_mod=mask_mod)
    torch.testing.assert_close(out.values(), expected)
    assert torch.equal(out.offsets(), offsets)


def test_nested_gradients_flow():
    parts = [random_tensor(n, H, D, seed=n).requires_grad_() for n in (3, 5)]
    x = torch.nested.as_nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    out = attention(x, x, x, mask_mod=mods.causal)
    out.transpose(1, 2).values().square().sum().backward()
    for part in parts:
        copy = part.detach().requires_grad_()
        bhsd = copy.transpose(0, 1)[None]
        attention(bhsd, bhsd, bhsd, mask_mod=mods.causal).square().sum().backward()
        torch.testing.assert_close(part.grad, copy.grad, rtol=1e-4, atol=1e-5)


def test_nested_queries_and_keys_of_other_lengths():
    q, k = jagged(1, lengths=[2, 5]).transpose(1, 2), jagged(9, lengths=[7, 3]).transpose(1, 2)
    out = attention(q, k, k).transpose(1, 2)
    for n in range(2):
        one = [x.transpose(1, 2)[n].transpose(0, 1)[None] for x in (q, k, k)]
        torch.testing.assert_close(out[n].transpose(0, 1)[None].double(), dense_attention(*one)[0], rtol=1e-4, atol=1e-5)


def test_nested_tensors_with_holes_read_no_hole():
    values = random_tensor(20, H, D)
    values[5:10] = float("nan")
    x = torch.nested.nested_tensor_from_jagged(values, offsets=torch.tensor([0, 10, 20]), lengths=torch.tensor([5, 10]))
    out = attention(x.transpose(1, 2), x.transpose(1, 2), x.transpose(1, 2)).transpose(1, 2)
    first = values[:5].transpose(0, 1)[None]
    torch.testing.assert_close(
        out.values()[:5].transpose(0, 1)[None].double(), dense_attention(first, first, first)[0], rtol=1e-4, atol=1e-5
    )
    assert not out.values()[5:10].any()
