"""sink, q_offset and return_lse."""

import pytest
import torch

from flexsdpa import mods
from flexsdpa.testing.budgets import assert_within_budget
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.testing.oracles import dense_attention, run_both
from flexsdpa.torch import attention

H, S = 4, 23
MASKS = {"none": None, "causal": mods.causal, "rows without keys": lambda b, h, i, j: j < i - 3}


def dense_with_sink(q, k, v, sink, score_mod=None, mask_mod=None):
    """Dense attention with an extra column: a key whose score is the sink and whose value is 0."""
    (B, Hq, Sq, D), Skv = q.shape, k.shape[2]
    group = Hq // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    grid = [torch.arange(n).view(shape) for n, shape in ((B, (-1, 1, 1, 1)), (Hq, (-1, 1, 1)), (Sq, (-1, 1)), (Skv, (-1,)))]
    scores = q.double() @ k.mT / D**0.5
    scores = scores if score_mod is None else score_mod(scores, *grid)
    scores = scores if mask_mod is None else scores.masked_fill(~mask_mod(*grid), -torch.inf)
    scores = torch.cat([scores, sink.double().view(1, -1, 1, 1).expand(B, Hq, Sq, 1)], -1)
    return scores.softmax(-1)[..., :-1] @ v, scores.logsumexp(-1)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("score_mod", [None, mods.softcap(2.0)], ids=["plain", "mod"])
@pytest.mark.parametrize("mask", MASKS)
def test_a_sink_is_an_extra_column_without_a_value(mask, score_mod, backend):
    leaves = [x.requires_grad_() for x in (*random_qkv(2, H, S, 8, Hkv=2), random_tensor(H, seed=9))]
    q, k, v, sink = leaves
    seen = attention(q, k, v, score_mod=score_mod, mask_mod=MASKS[mask], sink=sink, return_lse=True, backend=backend)
    expected = dense_with_sink(q, k, v, sink, score_mod, MASKS[mask])
    weights = random_tensor(2, H, S, 8, seed=10), random_tensor(2, H, S, seed=11)
    for a, b in zip(seen, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)
    grads = [
        torch.autograd.grad(sum((x * w).sum() for x, w in zip(pair, weights, strict=True)), leaves) for pair in (seen, expected)
    ]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)
    assert all(torch.isfinite(g).all() for g in grads[0])


@pytest.mark.parametrize("value", [-1e4, 1e4, -float("inf")])
def test_a_sink_of_any_size_gives_finite_gradients(value):
    leaves = [x.requires_grad_() for x in (*random_qkv(2, H, S, 8), torch.full((H,), value))]
    out = attention(*leaves[:3], sink=leaves[3], mask_mod=mods.causal)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(out.square().sum(), leaves))
    expected = torch.zeros_like(out) if value > 0 else attention(*leaves[:3], mask_mod=mods.causal)
    torch.testing.assert_close(out, expected)


def test_a_sink_of_minus_infinity_over_a_row_without_keys_is_that_row():
    leaves = [x.requires_grad_() for x in (*random_qkv(1, 2, 5, 8), torch.full((2,), -float("inf")))]
    out, lse = attention(*leaves[:3], sink=leaves[3], mask_mod=lambda b, h, i, j: j < i, return_lse=True)
    assert not out[:, :, 0].any()
    assert torch.equal(lse[:, :, 0], torch.full((1, 2), -torch.inf))
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(out.sum(), leaves))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("sink_dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_sink_keeps_dtypes(dtype, sink_dtype):
    q, k, v = random_qkv(2, H, S, 8, dtype=dtype)
    sink = random_tensor(H, dtype=sink_dtype).requires_grad_()
    out, lse = attention(q, k, v, sink=sink, return_lse=True)
    assert (out.dtype, lse.dtype) == (dtype, torch.float64 if dtype == torch.float64 else torch.float32)
    (grad,) = torch.autograd.grad(out.float().square().sum(), sink)
    assert grad.dtype == sink_dtype
    tolerance = 2e-2 if dtype in (torch.bfloat16, torch.float16) else 1e-5
    torch.testing.assert_close(out.double(), dense_with_sink(q, k, v, sink)[0].detach(), rtol=tolerance, atol=tolerance)


def test_a_sink_follows_the_layout():
    q, k, v = random_qkv(2, H, S, 8)
    sink = random_tensor(H)
    expected = attention(q, k, v, sink=sink)
    out = attention(*(x.transpose(1, 2) for x in (q, k, v)), sink=sink, layout="bshd")
    torch.testing.assert_close(out.transpose(1, 2), expected)


# q_offset.

OFFSETS = {
    "int": 100,
    "0-D": torch.tensor(100),
    "per batch": torch.tensor([100, 40]),
    "int32": torch.tensor([100, 40], dtype=torch.int32),
    "zero": 0,
    "negative": -5,
    "0-D negative": torch.tensor(-5),
}


@pytest.mark.parametrize("Sq", [1, 7])
@pytest.mark.parametrize("name", OFFSETS)
def test_an_offset_is_the_position_of_the_first_query(name, Sq):
    table = random_tensor(H, 400, seed=12)
    score = lambda t: lambda s, b, h, i, j: s + t[h, i - j + 200] - 0.01 * i
    judged = run_both(
        attention, random_qkv(2, H, Sq, 8, Hkv=2, Skv=130), [table], lambda t: (score(t), mods.causal), q_offset=OFFSETS[name]
    )
    assert_within_budget(judged)


def test_decoding_step_by_step_gives_what_prefill_gives():
    q, k, v = random_qkv(2, H, S, 8, Hkv=2)
    options = {"score_mod": lambda s, b, h, i, j: s - 0.1 * (i - j), "mask_mod": mods.sliding_window(6)}
    whole = attention(q, k, v, **options)
    steps = [attention(q[:, :, n : n + 1], k[:, :, : n + 1], v[:, :, : n + 1], q_offset=n, **options) for n in range(S)]
    torch.testing.assert_close(torch.cat(steps, 2), whole, rtol=1e-5, atol=1e-6)


def test_without_an_offset_positions_start_at_0():
    q, k, v = random_qkv(1, 2, 1, 8, Skv=100)
    torch.testing.assert_close(attention(q, k, v, mask_mod=mods.causal), v[:, :, :1])
    torch.testing.assert_close(attention(q, k, v, mask_mod=mods.causal, q_offset=99), attention(q, k, v))


def test_new_offsets_build_nothing(empty_cache):
    q, k, v = random_qkv(1, 2, 1, 8, Skv=50)
    for n in range(20):
        attention(q, k, v, mask_mod=mods.causal, q_offset=n)
    assert empty_cache().builds == 1
    for n in range(20):
        attention(q, k, v, mask_mod=mods.causal, q_offset=torch.tensor(n))
    assert empty_cache().builds == 1


# LSE.


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("Sq", [1, 40])
def test_the_lse_is_natural_and_of_every_head(Sq, backend, dtype):
    q, k, v = random_qkv(2, 8, Sq, 8, Hkv=2, Skv=40, dtype=dtype)
    _, lse = attention(q, k, v, return_lse=True, backend=backend)
    _, expected = dense_attention(q, k, v)
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert lse.is_contiguous()
    torch.testing.assert_close(lse.double(), expected, rtol=1e-6, atol=3e-6)


def test_the_lse_of_equal_scores_is_the_logarithm_of_their_number():
    q = torch.zeros(1, 1, 5, 8)
    _, lse = attention(q, q, q, mask_mod=mods.causal, return_lse=True)
    torch.testing.assert_close(lse[0, 0], torch.arange(1, 6).log())


@pytest.mark.parametrize("mask", MASKS)
def test_a_penalty_on_the_lse_trains(mask):
    leaves = [x.requires_grad_() for x in random_qkv(2, H, S, 8, Hkv=2)]
    out, lse = attention(*leaves, mask_mod=MASKS[mask], return_lse=True)
    expected, expected_lse = dense_attention(*leaves, None, MASKS[mask])
    penalty = lambda out, lse: out.sum() + torch.where(lse == -torch.inf, 0.0, lse).square().mean()
    seen = torch.autograd.grad(penalty(out, lse), leaves)
    wanted = torch.autograd.grad(penalty(expected, expected_lse), leaves)
    torch.testing.assert_close(seen, wanted, rtol=1e-4, atol=1e-5)


def test_return_lse_changes_nothing_else():
    leaves = [x.requires_grad_() for x in random_qkv(2, H, S, 8)]
    alone = attention(*leaves, mask_mod=mods.causal)
    out, _ = attention(*leaves, mask_mod=mods.causal, return_lse=True)
    assert torch.equal(alone, out)
    grads = [torch.autograd.grad(x.sum(), leaves) for x in (alone, out)]
    torch.testing.assert_close(*grads, rtol=0, atol=0)
