"""Sizes of every kind: head groups, lengths, head dims, and nothing at all."""

import pytest
import torch

import flexsdpa
from flexsdpa import mods
from flexsdpa.testing.budgets import assert_within_budget
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.testing.oracles import run_both
from flexsdpa.torch import attention

DTYPES = (torch.float32, torch.bfloat16)


def bias_per_head(slope):
    """A mod whose answer depends on the query head, batch and both positions."""
    return (lambda s, b, h, i, j: s - slope[h] * (i - j) * 0.1 + 0.2 * b, lambda b, h, i, j: (j <= i + h) | (j == 0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("Hq", "Hkv"), [(2, 2), (6, 2), (8, 2), (8, 1), (12, 2), (9, 3), (5, 1), (28, 4)])
@pytest.mark.parametrize("Sq", [1, 19])
def test_any_group_of_query_heads_shares_a_kv_head(Hq, Hkv, Sq, dtype):
    inputs = random_qkv(2, Hq, Sq, 8, Hkv=Hkv, Skv=19, dtype=dtype, seed=Hq)
    assert_within_budget(run_both(attention, inputs, [random_tensor(Hq, dtype=dtype)], bias_per_head))


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize(("Hq", "Hkv"), [(6, 2), (8, 1), (4, 4)])
def test_plain_attention_with_groups(Hq, Hkv, backend):
    inputs = random_qkv(2, Hq, 33, 8, Hkv=Hkv, seed=7)
    assert_within_budget(run_both(attention, inputs, (), backend=backend))
    assert_within_budget(run_both(attention, inputs, (), lambda: (None, mods.causal), backend=backend))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("Sq", "Skv"), [(1, 100), (100, 1), (5, 130), (130, 5), (129, 257), (257, 129), (1, 1), (300, 40)])
def test_lengths_of_queries_and_keys_may_differ(Sq, Skv, dtype):
    inputs = random_qkv(1, 4, Sq, 8, Hkv=2, Skv=Skv, dtype=dtype, seed=8)
    assert_within_budget(run_both(attention, inputs, [random_tensor(4, dtype=dtype)], bias_per_head))
    assert_within_budget(run_both(attention, inputs, (), lambda: (None, mods.causal(offset=Skv - Sq))))
    assert_within_budget(run_both(attention, inputs))


@pytest.mark.parametrize("first", range(1, 131, 26))
def test_every_query_length_up_to_130(first):
    table = random_tensor(4, 259, seed=9)
    for Sq in range(first, first + 26):
        inputs = random_qkv(1, 4, Sq, 4, Hkv=2, Skv=130, seed=Sq)
        judged = run_both(
            attention, inputs, [table], lambda t: (mods.relative_bias(t), mods.causal(offset=130 - inputs[0].shape[2]))
        )
        assert_within_budget(judged)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("D", "Dv"), [(1, 1), (3, 3), (72, 72), (80, 80), (96, 96), (192, 128), (16, 40), (40, 16), (7, 1), (256, 256)]
)
def test_any_head_dim_and_value_dim(D, Dv, dtype):
    inputs = random_qkv(1, 2, 21, D, Dv=Dv, dtype=dtype, seed=D)
    assert_within_budget(run_both(attention, inputs, (), lambda: (mods.softcap(3.0), mods.causal)))
    assert_within_budget(run_both(attention, inputs))


def gradients_of(out, lse, *leaves):
    return torch.autograd.grad(out.sum() + lse.nan_to_num(neginf=0.0).sum(), leaves, allow_unused=True)


@pytest.mark.parametrize("mod", [None, lambda s, b, h, i, j: s * 2 + j], ids=["plain", "mod"])
def test_a_batch_of_nothing_gives_nothing(mod):
    leaves = [x.requires_grad_() for x in random_qkv(0, 4, 5, 8, Hkv=2, Dv=3)]
    out, lse = attention(*leaves, score_mod=mod, return_lse=True)
    assert out.shape == (0, 4, 5, 3)
    assert lse.shape == (0, 4, 5)
    assert [g.shape for g in gradients_of(out, lse, *leaves)] == [x.shape for x in leaves]


@pytest.mark.parametrize("mod", [None, lambda s, b, h, i, j: s * 2 + j], ids=["plain", "mod"])
def test_no_keys_give_zeros_and_minus_infinity(mod):
    leaves = [x.requires_grad_() for x in random_qkv(2, 4, 5, 8, Skv=0, Dv=3)]
    out, lse = attention(*leaves, score_mod=mod, return_lse=True)
    assert torch.equal(out, torch.zeros(2, 4, 5, 3))
    assert torch.equal(lse, torch.full((2, 4, 5), -torch.inf))
    assert torch.equal(gradients_of(out, lse, *leaves)[0], torch.zeros(2, 4, 5, 8))


@pytest.mark.parametrize("mod", [None, lambda s, b, h, i, j: s * 2 + j], ids=["plain", "mod"])
def test_no_queries_give_an_empty_result_and_zero_gradients(mod):
    leaves = [x.requires_grad_() for x in random_qkv(2, 4, 0, 8, Skv=6)]
    out, lse = attention(*leaves, score_mod=mod, return_lse=True)
    assert out.shape == (2, 4, 0, 8)
    assert lse.shape == (2, 4, 0)
    dk, dv = gradients_of(out, lse, *leaves)[1:]
    assert not dk.any()
    assert not dv.any()


def test_no_query_heads_give_an_empty_result():
    assert attention(torch.ones(1, 0, 3, 4), torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4)).shape == (1, 0, 3, 4)


def test_no_value_dim_still_gives_the_lse_and_its_gradient():
    q = torch.ones(1, 2, 3, 4, requires_grad=True)
    out, lse = attention(q, torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 0), return_lse=True)
    assert out.shape == (1, 2, 3, 0)
    torch.testing.assert_close(lse, torch.full((1, 2, 3), 2.0 + torch.tensor(3.0).log()))
    (dq,) = torch.autograd.grad(lse.sum(), q)
    torch.testing.assert_close(dq, torch.full((1, 2, 3, 4), 0.5))


def test_captured_gradients_of_an_empty_call_are_zeros():
    table = torch.ones(4, requires_grad=True)
    q, k, v = random_qkv(2, 4, 3, 8, Skv=0)
    out = attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[h])
    assert torch.equal(torch.autograd.grad(out.sum(), table)[0], torch.zeros(4))


TILES = [  # tile_q, tile_kv, tile_elements, length: a length that keeps the number of tiles small
    (1, 1, 1, 16),
    (1, 1000, 1, 16),
    (7, 3, 50, 60),
    (7, 7, 1 << 20, 31),
    (7, 7, 1 << 20, 300),
    (128, 7, 300, 300),
    (3, 128, 1 << 20, 300),
    (16, 64, 1 << 12, 300),
    (1000, 1000, 1 << 20, 300),
]


@pytest.mark.parametrize(("tile_q", "tile_kv", "tile_elements", "length"), TILES)
def test_any_tile_size_gives_the_same_answer(tile_q, tile_kv, tile_elements, length):
    inputs = random_qkv(2, 4, length, 4, Hkv=2, Skv=length + 9, seed=10)
    captured = [random_tensor(4, seed=1), random_tensor(2, length + 9, seed=2), torch.tensor(0.3)]

    def make(slope, key_bias, temperature):
        mask = lambda b, h, i, j: ((i - j + 3 * b) % 5 != 0) & (j < i + 20) | (h == j)
        return (lambda s, b, h, i, j: s * temperature + slope[h] * (i - j) * 0.05 + key_bias[b, j], mask)

    with flexsdpa.options(tile_q=tile_q, tile_kv=tile_kv, tile_elements=tile_elements):
        assert_within_budget(run_both(attention, inputs, captured, make, backend="reference"))
