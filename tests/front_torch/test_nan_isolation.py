"""What is stored at positions that nobody attends, nan and inf included, reaches nothing; at kept positions it shows."""

import pytest
import torch

import flexsdpa
from flexsdpa import mods
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.torch import attention

B, H, S, D = 2, 4, 40, 8
LENGTHS = torch.tensor([33, 7])
INSIDE = (torch.arange(S) < LENGTHS[:, None])[:, None, :, None]
SEEN = {
    "plain": {},
    "mod": {"score_mod": mods.softcap(2.0)},
    "causal": {"mask_mod": mods.causal},
    "padding": {"mask_mod": mods.padding(30)},
}
VALUES = [float("nan"), float("inf"), -float("inf")]
PADDED = {
    "mask": {"mask_mod": mods.padding(LENGTHS, q_lengths=LENGTHS)},
    "mask and causal": {"mask_mod": mods.and_masks(mods.causal, mods.padding(LENGTHS, LENGTHS))},
    "mask and mod": {"mask_mod": mods.padding(LENGTHS, LENGTHS), "score_mod": mods.softcap(2.0)},
    "score": {"score_mod": lambda s, b, h, i, j: torch.where((i < LENGTHS[b]) & (j < LENGTHS[b]), s * 2, -torch.inf)},
}


def run(inputs, **options):
    leaves = [x.clone().requires_grad_() for x in inputs]
    out, lse = attention(*leaves, return_lse=True, **options)
    weights = random_tensor(*out.shape, dtype=out.dtype, seed=50)
    loss = (out * weights).sum() + torch.where(lse == -torch.inf, 0.0, lse).sum()
    return [out, lse, *torch.autograd.grad(loss, leaves)]


def assert_same(poisoned, clean):
    for seen, expected in zip(poisoned, clean, strict=True):
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tiles", [{}, {"tile_q": 7, "tile_kv": 9, "tile_elements": 200}], ids=["one tile", "many tiles"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("how", PADDED)
def test_padding_is_not_read(how, value, dtype, tiles):
    inputs = random_qkv(B, H, S, D, Hkv=2, dtype=dtype)
    poisoned = [torch.where(INSIDE, x, value) for x in inputs]
    with flexsdpa.options(**tiles):
        assert_same(run(poisoned, **PADDED[how]), run(inputs, **PADDED[how]))


@pytest.mark.parametrize("which", [0, 1, 2], ids=["q", "k", "v"])
@pytest.mark.parametrize("value", VALUES)
def test_padding_of_one_input_is_not_read(which, value):
    inputs = list(random_qkv(B, H, S, D, Hkv=2))
    clean = run(inputs, **PADDED["mask"])
    inputs[which] = torch.where(INSIDE, inputs[which], value)
    assert_same(run(inputs, **PADDED["mask"]), clean)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("mod", [None, mods.softcap(2.0)], ids=["plain", "mod"])
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("which", ["k", "v", "kv"])
def test_future_tokens_do_not_reach_the_past(which, value, mod, backend):
    q, k, v = random_qkv(B, H, S, D, Hkv=2)
    clean = run((q, k, v), mask_mod=mods.causal, score_mod=mod, backend=backend)
    future = torch.arange(S)[:, None] >= 25
    k = torch.where(future, value, k) if "k" in which else k
    v = torch.where(future, value, v) if "v" in which else v
    out, lse = attention(q, k, v, mask_mod=mods.causal, score_mod=mod, return_lse=True, backend=backend)
    torch.testing.assert_close(out[:, :, :25], clean[0][:, :, :25])
    torch.testing.assert_close(lse[:, :, :25], clean[1][:, :, :25])
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = attention(*leaves, mask_mod=mods.causal, score_mod=mod, backend=backend)
    weights = random_tensor(*out.shape, seed=50)
    dq = torch.autograd.grad((out * weights).sum(), leaves)[0]
    clean = run([x[:, :, :25] for x in random_qkv(B, H, S, D, Hkv=2)], mask_mod=mods.causal, score_mod=mod, backend="reference")
    leaves = [x.clone().requires_grad_() for x in (q[:, :, :25], k, v)]  # the queries of the past, and all keys
    out, lse = attention(*leaves, mask_mod=mods.causal, score_mod=mod, return_lse=True)
    seen = torch.autograd.grad((out * random_tensor(*out.shape, seed=50)).sum() + lse.sum(), leaves)
    assert torch.isfinite(dq[:, :, :25]).all()
    assert_same([x[:, :, :25] for x in seen], clean[2:])
    assert not any(x[:, :, 25:].any() for x in seen)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("Sq", [1, 5])
def test_the_unused_tail_of_a_cache_is_not_read(Sq, value):
    q, k, v = random_qkv(B, H, Sq, D, Hkv=2, Skv=300)
    filled = torch.tensor([100, 7])
    mask = mods.padding(filled)
    clean = run((q, k, v), mask_mod=mask)
    unwritten = (torch.arange(300) >= filled[:, None])[:, None, :, None]
    assert_same(run((q, torch.where(unwritten, value, k), torch.where(unwritten, value, v)), mask_mod=mask), clean)


@pytest.mark.parametrize("value", VALUES)
def test_gradients_that_arrive_at_masked_queries_reach_nothing(value):
    leaves = [x.requires_grad_() for x in random_qkv(B, H, S, D, Hkv=2)]
    table = torch.ones(H, requires_grad=True)
    mod = lambda s, b, h, i, j: s * table[h]
    out = attention(*leaves, score_mod=mod, mask_mod=mods.padding(LENGTHS, q_lengths=LENGTHS))
    grad = torch.ones_like(out)
    clean = torch.autograd.grad(out, [*leaves, table], torch.where(INSIDE, grad, 0.0), retain_graph=True)
    assert_same(torch.autograd.grad(out, [*leaves, table], torch.where(INSIDE, grad, value)), clean)


@pytest.mark.parametrize("value", VALUES)
def test_captured_values_at_masked_positions_reach_nothing(value):
    q, k, v = random_qkv(B, H, S, D)
    results = []
    for filler in (0.0, value):
        table = torch.where(torch.arange(S) < 20, 0.5, filler).requires_grad_()
        mod = lambda s, b, h, i, j: s * table[j] + table[i] * table[j]
        results.append([*run((q, k, v), score_mod=mod, mask_mod=lambda b, h, i, j: (j < 20) & (i < 20)), None])
        out = attention(q, k, v, score_mod=mod, mask_mod=lambda b, h, i, j: (j < 20) & (i < 20))
        results[-1][-1] = torch.autograd.grad(out.square().sum(), table)[0]
    assert_same(results[1], results[0])
    assert not results[1][-1][20:].any()


def test_an_infinite_slope_at_masked_positions_does_not_reach_the_gradient():
    q, k, v = random_qkv(1, 2, 12, 4)
    k[:, :, 5:] = 0.0  # scores are 0 there: sqrt has an infinite slope, log is -inf
    mod = lambda s, b, h, i, j: s + torch.sqrt(s.abs()) + torch.where(j < 5, 0.0, torch.log(s.abs()))
    results = run((q, k, v), score_mod=mod, mask_mod=lambda b, h, i, j: j < 5)
    assert_same([r[:, :, :5] for r in results[3:]], run((q, k[:, :, :5], v[:, :, :5]), score_mod=mod)[3:])
    assert torch.isfinite(results[2]).all()


@pytest.mark.parametrize("name", SEEN)
def test_nan_at_kept_positions_shows(name):
    options = SEEN[name]
    q, k, v = random_qkv(B, H, S, D)
    for which in range(3):
        inputs = [q.clone(), k.clone(), v.clone()]
        inputs[which][0, 1, 10, 3] = float("nan")
        out, lse = attention(*inputs, **options, return_lse=True)
        assert torch.isnan(out[0, 1]).any()
        assert torch.isfinite(out[1]).all()
        assert torch.isfinite(out[0, [0, 2, 3]]).all()
        assert torch.isnan(lse[0, 1]).any() == (which != 2)
        poisoned = run(inputs, **options)[2:]
        assert all(torch.isnan(g[0, 1]).any() for g in poisoned[:2])
        assert all(torch.isfinite(g[1]).all() for g in poisoned)


def test_nan_shows_exactly_in_the_rows_that_see_it():
    q, k, v = random_qkv(B, H, S, D)
    v[0, 0, 17, 2] = float("nan")
    out = attention(q, k, v, mask_mod=mods.sliding_window(5))
    expected = torch.zeros(B, H, S, D, dtype=torch.bool)
    expected[0, 0, 17:22, 2] = True
    assert torch.equal(torch.isnan(out), expected)


@pytest.mark.parametrize("value", [float("inf"), -float("inf")])
def test_infinite_values_stay_infinite_in_the_rows_that_see_them(value):
    q, k, v = random_qkv(B, H, S, D)
    v[0, 0, 17, 2] = value
    out = attention(q, k, v, mask_mod=mods.sliding_window(5))
    expected = torch.zeros(B, H, S, D, dtype=torch.bool)
    expected[0, 0, 17:22, 2] = True
    assert torch.equal(out == value, expected)
    assert torch.isfinite(out[~expected]).all()
