"""A row without keys: out 0, LSE -inf, gradients exactly 0, and not one nan anywhere."""

import pytest
import torch

import flexsdpa
from flexsdpa.testing.budgets import assert_within_budget
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.testing.oracles import run_both
from flexsdpa.torch import attention

LENGTHS = torch.tensor([20, 5, 0])
MINUS_INF = -float("inf")


def by_mask(slope):
    return (lambda s, b, h, i, j: s * slope[h], lambda b, h, i, j: (i < LENGTHS[b]) & (j < LENGTHS[b]))


def by_score(slope):
    inside = lambda b, i, j: (i < LENGTHS[b]) & (j < LENGTHS[b])
    return (lambda s, b, h, i, j: torch.where(inside(b, i, j), s * slope[h], MINUS_INF), None)


def by_added_infinity(slope):
    table = torch.where(torch.arange(20) < LENGTHS[:, None], 0.0, MINUS_INF)
    return (lambda s, b, h, i, j: s * slope[h] + table[b, i] + table[b, j], None)


def by_masked_fill(slope):
    return (lambda s, b, h, i, j: (s * slope[h]).masked_fill((i >= LENGTHS[b]) | (j >= LENGTHS[b]), MINUS_INF), None)


MAKERS = [by_mask, by_score, by_added_infinity, by_masked_fill]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("make", MAKERS, ids=lambda f: f.__name__)
def test_rows_without_keys_agree_with_the_oracle(make, dtype):
    inputs = random_qkv(3, 4, 20, 8, Hkv=2, dtype=dtype)
    captured = [random_tensor(4, dtype=dtype)]
    assert_within_budget(run_both(attention, inputs, captured, make))
    with flexsdpa.options(tile_q=7, tile_kv=7):
        assert_within_budget(run_both(attention, inputs, captured, make))


@pytest.mark.parametrize("make", MAKERS, ids=lambda f: f.__name__)
def test_rows_without_keys_are_exactly_zero_and_minus_infinity(make):
    leaves = [x.requires_grad_() for x in (*random_qkv(3, 4, 20, 8, Hkv=2), torch.ones(4))]
    score_mod, mask_mod = make(leaves[3])
    out, lse = attention(*leaves[:3], score_mod=score_mod, mask_mod=mask_mod, return_lse=True)
    dead = (torch.arange(20) >= LENGTHS[:, None])[:, None].expand(3, 4, 20)
    assert not out[dead].any()
    assert torch.equal(lse == MINUS_INF, dead)
    dq, dk, dv, dslope = torch.autograd.grad(out.sum() + lse[~dead].sum(), leaves)
    assert torch.isfinite(dslope).all()
    assert not dq[dead].any()
    assert not dk[dead[:, :2]].any()
    assert not dv[dead[:, :2]].any()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_arrives_at_a_row_without_keys_goes_nowhere(value):
    leaves = [x.requires_grad_() for x in random_qkv(3, 4, 20, 8, Hkv=2)]
    out, lse = attention(*leaves, mask_mod=by_mask(None)[1], return_lse=True)
    dead = (torch.arange(20) >= LENGTHS[:, None])[:, None].expand(3, 4, 20)
    grads = torch.where(dead[..., None], value, torch.ones_like(out)), torch.where(dead, value, torch.ones_like(lse))
    clean = torch.where(dead[..., None], 0.0, torch.ones_like(out)), torch.where(dead, 0.0, torch.ones_like(lse))
    poisoned = torch.autograd.grad((out, lse), leaves, grads, retain_graph=True)
    assert all(map(torch.equal, poisoned, torch.autograd.grad((out, lse), leaves, clean)))


@pytest.mark.parametrize("mask", [
    lambda b, h, i, j: j < 0,
    lambda b, h, i, j: (i < 0) & (j == j),
    lambda b, h, i, j: False,
    lambda b, h, i, j: b > 100,
], ids=["no key", "no query", "constant", "no batch"])  # fmt: skip
def test_a_mask_that_allows_nothing(mask):
    leaves = [x.requires_grad_() for x in random_qkv(2, 4, 300, 8, seed=1)]
    out, lse = attention(*leaves, mask_mod=mask, return_lse=True)
    assert not out.any()
    assert torch.equal(lse, torch.full_like(lse, MINUS_INF))
    assert not any(g.any() for g in torch.autograd.grad(out.sum(), leaves))


@pytest.mark.parametrize("mask", [lambda b, h, i, j: True, lambda b, h, i, j: j >= 0], ids=["constant", "always"])
def test_a_mask_that_allows_everything_changes_nothing(mask):
    q, k, v = random_qkv(2, 4, 300, 8, seed=1)
    torch.testing.assert_close(attention(q, k, v, mask_mod=mask), attention(q, k, v))


@pytest.mark.parametrize("tile_kv", [4, 1024])
def test_a_first_tile_without_keys_for_some_rows_does_no_harm(tile_kv):
    mask = lambda b, h, i, j: (j > i + 8) | ((i % 7 == 3) & (j == 59))
    with flexsdpa.options(tile_kv=tile_kv, tile_q=32):
        assert_within_budget(run_both(attention, random_qkv(1, 2, 60, 8), (), lambda: (None, mask)))


def test_scores_of_minus_infinity_in_whole_tiles_and_single_places():
    table = torch.zeros(40)
    table[3:17] = MINUS_INF
    table[30] = MINUS_INF
    with flexsdpa.options(tile_kv=5, tile_q=8):
        judged = run_both(
            attention, random_qkv(2, 2, 40, 8), [random_tensor(2)], lambda t: (lambda s, b, h, i, j: s * t[h] + table[j], None)
        )
    assert_within_budget(judged)


def test_scores_of_plus_infinity_give_nan_as_softmax_does():
    q, k, v = random_qkv(1, 1, 4, 8)
    out = attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.where((i == 1) & (j == 2), float("inf"), s))
    assert torch.isnan(out[0, 0, 1]).all()
    assert torch.isfinite(out[0, 0, [0, 2, 3]]).all()


# A mask that depends on the score: the simplifier takes it out of where(cond, score, -inf).
BY_SCORE = {
    "sign": lambda s: s > 0,
    "threshold": lambda s: s > 0.5,
    "function of the score": lambda s: torch.tanh(s) > 0.1,
    "scaled score": lambda s: s * 2.5 < 1,
    "score and its function": lambda s: (s > -1) & (s.abs() < 1),
}


@pytest.mark.parametrize("name", BY_SCORE)
def test_a_score_can_decide_about_itself_and_be_changed(name):
    mod = lambda t: (lambda s, b, h, i, j: torch.where(BY_SCORE[name](s) | (i == j), s * t[h], MINUS_INF), None)
    assert_within_budget(run_both(attention, random_qkv(2, 4, 20, 8), [random_tensor(4)], mod))


@pytest.mark.parametrize("name", BY_SCORE)
def test_a_score_can_decide_about_itself_and_stay(name):
    mod = lambda: (lambda s, b, h, i, j: torch.where(BY_SCORE[name](s), s, MINUS_INF), None)
    assert_within_budget(run_both(attention, random_qkv(2, 4, 20, 8), (), mod))
