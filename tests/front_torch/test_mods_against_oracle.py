"""Every mod of flexsdpa.mods, and compositions, against the dense float64 oracle: out, LSE and all gradients."""

import pytest
import torch

from flexsdpa import mods
from flexsdpa.testing.budgets import assert_within_budget
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.testing.oracles import run_both
from flexsdpa.torch import attention

B, H, S = 2, 4, 37
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
DOCUMENTS = torch.tensor([[0] * 10 + [1] * 20 + [2] * 7, [5] * 30 + [3] * 7])
LENGTHS = torch.tensor([37, 11])


def table(*shape):
    return lambda dtype: random_tensor(*shape, dtype=dtype, seed=11)


# name: (captured tensors, what makes (score_mod, mask_mod) of them)
SCORES = {
    "softcap": ([], lambda: mods.softcap(2.0)),
    "softcap learned": ([lambda dtype: torch.tensor(1.5, dtype=dtype)], mods.softcap),
    "alibi": ([lambda dtype: torch.tensor(mods.alibi_slopes(H), dtype=dtype)], mods.alibi),
    "alibi symmetric": ([table(H)], lambda slopes: mods.alibi(slopes * 0.1, symmetric=True)),
    "relative bias": ([table(H, 2 * S - 1)], mods.relative_bias),
    "relative bias, one for all heads": ([table(2 * S - 1)], mods.relative_bias),
    "relative bias, clipped": ([table(H, 9)], lambda t: mods.relative_bias(t, clip=True)),
    "relative bias, centre": ([table(H, 80)], lambda t: mods.relative_bias(t, center=40)),
    "t5 bias": ([table(32, H)], mods.t5_bias),
    "t5 bias, one direction": ([table(8, H)], lambda t: mods.t5_bias(t, bidirectional=False, max_distance=20)),
    "chain": ([table(H, 2 * S - 1)], lambda t: mods.chain(mods.relative_bias(t), mods.softcap(3.0))),
    "chain of learned": (
        [table(H), lambda dtype: torch.tensor(2.0, dtype=dtype)],
        lambda slopes, cap: mods.chain(mods.softcap(cap), mods.alibi(slopes)),
    ),
}
MASKS = {
    "causal": mods.causal,
    "causal, offset": mods.causal(offset=5),
    "causal, negative offset": mods.causal(offset=-3),
    "causal, offset per batch": mods.causal(offset=torch.tensor([0, 9])),
    "causal, offset 0-D": mods.causal(offset=torch.tensor(4)),
    "sliding window": mods.sliding_window(6),
    "sliding window of 1": mods.sliding_window(1),
    "sliding window, both sides": mods.sliding_window(4, causal=False),
    "documents per batch": mods.document(DOCUMENTS),
    "documents for all": mods.document(DOCUMENTS[0]),
    "documents of keys": mods.document(DOCUMENTS, kv_ids=DOCUMENTS.flip(1).contiguous()),
    "documents, padding": mods.document(DOCUMENTS, padding_id=3),
    "prefix": mods.prefix_lm(8),
    "prefix per batch": mods.prefix_lm(torch.tensor([3, 20])),
    "padding": mods.padding(LENGTHS),
    "padding, one length": mods.padding(20),
    "padding of queries": mods.padding(LENGTHS, q_lengths=LENGTHS),
    "and": mods.and_masks(mods.causal, mods.document(DOCUMENTS), mods.padding(LENGTHS)),
    "or": mods.or_masks(mods.sliding_window(3), mods.prefix_lm(2)),
    "not": mods.not_mask(mods.causal),
    "nested": mods.and_masks(mods.or_masks(mods.causal, mods.document(DOCUMENTS)), mods.not_mask(mods.sliding_window(2))),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SCORES)
def test_score_mod_is_exact_in_every_direction(name, dtype):
    captured, make = SCORES[name]
    inputs = random_qkv(B, H, S, 16, Hkv=2, dtype=dtype, seed=1)
    judged = run_both(attention, inputs, [make_one(dtype) for make_one in captured], lambda *c: (make(*c), None))
    assert_within_budget(judged)


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_mask_mod_is_exact_in_every_direction(name, dtype):
    inputs = random_qkv(B, H, S, 16, Hkv=2, dtype=dtype, seed=2)
    assert_within_budget(run_both(attention, inputs, (), lambda: (None, MASKS[name])))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("score", ["softcap learned", "relative bias", "t5 bias", "chain of learned"])
@pytest.mark.parametrize("mask", ["causal", "documents per batch", "nested"])
def test_score_mod_and_mask_mod_together(score, mask, dtype):
    captured, make = SCORES[score]
    inputs = random_qkv(B, H, S, 16, Hkv=1, dtype=dtype, seed=3)
    judged = run_both(attention, inputs, [c(dtype) for c in captured], lambda *c: (make(*c), MASKS[mask]))
    assert_within_budget(judged)


@pytest.mark.parametrize("scale", [0.0, 0.02, 1, -0.5, 3.0])
def test_scale_is_applied_before_the_score_mod(scale):
    inputs = random_qkv(B, H, S, 16, seed=4)
    assert_within_budget(run_both(attention, inputs, (), lambda: (mods.softcap(2.0), mods.causal), scale=scale))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_logits_keep_their_precision(dtype):
    q, k, v = random_qkv(1, 2, 50, 16, dtype=dtype, seed=5)
    assert_within_budget(run_both(attention, (q * 20, k, v), (), lambda: (None, mods.causal)))


@pytest.mark.parametrize("shift", [-3000.0, 3000.0])
def test_a_shift_of_all_scores_changes_the_lse_alone(shift):
    q, k, v = random_qkv(1, 2, 20, 16, dtype=torch.float64, seed=6)
    out, lse = attention(q, k, v, return_lse=True)
    shifted, shifted_lse = attention(q, k, v, score_mod=lambda s, b, h, i, j: s + shift, return_lse=True)
    torch.testing.assert_close(shifted, out, rtol=0, atol=1e-12)
    torch.testing.assert_close(shifted_lse, lse + shift, rtol=0, atol=1e-11)
