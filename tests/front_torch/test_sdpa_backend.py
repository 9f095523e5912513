"""The sdpa backend: when it is chosen, that it is exact, and what it declines."""

import pytest
import torch

import flexsdpa
from flexsdpa import mods
from flexsdpa.engine import ENGINE
from flexsdpa.testing.budgets import assert_within_budget
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.testing.oracles import run_both
from flexsdpa.torch import attention
from flexsdpa.torch.contracts import request_of, signature_of
from flexsdpa.torch.functions import ReadMode, TorchFrontend
from flexsdpa.trace.run import trace

S = 33


def decision(q, k, v, score_mod=None, mask_mod=None, backward=False, lse_gradient=False, backend="auto"):
    """What the engine decides for a call: no tensor is computed."""
    with ReadMode():
        traced = trace(score_mod, mask_mod, TorchFrontend(torch.float32, q.device, False))
    more = [(True, True, True, *[False] * len(traced.arrays)), lse_gradient] if backward else []
    signature = signature_of("backward" if backward else "forward", q, k, v, traced.arrays, traced.text, backend, *more)
    return ENGINE.decide(request_of(signature, len(traced.scalars)))


def refusals(*args, **options):
    """The rules by which sdpa refuses."""
    verdicts = {v.backend: v for v in decision(*args, **options).verdicts}
    return [r.rule for r in verdicts["sdpa"].refusals]


PLAIN = {"plain": (None, None), "causal": (None, mods.causal), "causal by hand": (None, lambda b, h, i, j: i >= j),
         "causal by score": (lambda s, b, h, i, j: torch.where(j > i, -torch.inf, s), None)}  # fmt: skip


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("Hkv", [4, 2, 1])
@pytest.mark.parametrize("name", PLAIN)
def test_sdpa_is_chosen_for_plain_and_causal(name, Hkv, dtype, backward):
    inputs = random_qkv(2, 4, S, 8, Hkv=Hkv, dtype=dtype)
    chosen = decision(*inputs, *PLAIN[name], backward=backward)
    assert chosen.backend == "sdpa"
    assert not chosen.fallback


REFUSED = {
    "sdpa.half": (random_qkv(dtype=torch.bfloat16), {}),
    "sdpa.score-mod": (random_qkv(), {"score_mod": mods.softcap(2.0)}),
    "sdpa.mask": (random_qkv(), {"mask_mod": mods.sliding_window(3)}),
    "sdpa.causal-lengths": (random_qkv(Sq=3, Skv=5), {"mask_mod": mods.causal}),
    "sdpa.empty": (random_qkv(B=0), {}),
    "sdpa.head-dims": (random_qkv(D=8, Dv=4), {}),
    "sdpa.last-stride": ([x.mT for x in random_qkv(Sq=8)], {}),
    "sdpa.lse-gradient": (random_qkv(), {"backward": True, "lse_gradient": True}),
}


@pytest.mark.parametrize("rule", REFUSED)
def test_each_limit_is_a_rule_and_the_reference_serves(rule):
    inputs, options = REFUSED[rule]
    assert refusals(*inputs, **options) == [rule]
    assert decision(*inputs, **options).backend == "reference"


@pytest.mark.parametrize("mask", [mods.causal(offset=1), mods.causal(offset=-1), lambda b, h, i, j: i > j, mods.prefix_lm(2),
                                  lambda b, h, i, j: (i >= j) & (j > 0), lambda b, h, i, j: (i >= j) | (h == 1)])  # fmt: skip
def test_what_is_nearly_causal_is_not_causal(mask):
    assert refusals(*random_qkv(), mask_mod=mask) == ["sdpa.mask"]
    assert_within_budget(run_both(attention, random_qkv(2, 4, S, 8), (), lambda: (None, mask)))


def test_fp16_and_bf16_go_to_the_reference():
    for dtype in (torch.float16, torch.bfloat16):
        assert decision(*random_qkv(dtype=dtype)).backend == "reference"


def test_refusals_of_several_kinds_are_all_listed():
    q, k, v = random_qkv(2, 4, 8, 8, Skv=9, Dv=3, dtype=torch.float16)
    assert refusals(q, k, v, mods.softcap(2.0), mods.prefix_lm(2)) == [
        "sdpa.half",
        "sdpa.score-mod",
        "sdpa.mask",
        "sdpa.head-dims",
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("Hkv", [4, 2, 1])
@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("length", [1, 2, 33, 130, 600])
def test_sdpa_is_exact_forward_and_backward(length, name, Hkv, dtype):
    inputs = random_qkv(2, 4, length, 8, Hkv=Hkv, dtype=dtype)
    judged = run_both(attention, inputs, (), lambda: PLAIN[name], lse_gradient=False, backend="sdpa")
    assert_within_budget(judged)


@pytest.mark.parametrize(("Sq", "Skv"), [(1, 40), (40, 2), (5, 130), (130, 5)])
def test_sdpa_is_exact_where_lengths_differ(Sq, Skv):
    judged = run_both(attention, random_qkv(2, 4, Sq, 8, Hkv=2, Skv=Skv), (), lse_gradient=False, backend="sdpa")
    assert_within_budget(judged)


def test_the_scale_is_honoured_and_costs_nothing(empty_cache):
    for scale in (0.1, 1.0, 0.0, -2.0):
        assert_within_budget(run_both(attention, random_qkv(1, 2, S, 8), (), lse_gradient=False, scale=scale, backend="sdpa"))
    assert empty_cache().builds == 2


def used(call):
    """Names of the backends whose plans a call built, in the order of directions."""
    flexsdpa.cache_clear()
    call()
    return [(key.direction, key.backend) for key in ENGINE.cache._plans]


def train(lse_gradient, backend=None, mask_mod=mods.causal):
    leaves = [x.requires_grad_() for x in random_qkv(2, 4, S, 8)]
    out, lse = attention(*leaves, mask_mod=mask_mod, return_lse=True, backend=backend)
    return torch.autograd.grad(out.square().sum() + (lse.sum() if lse_gradient else 0), leaves)


def test_the_backend_is_decided_per_direction():
    assert used(lambda: train(False)) == [("forward", "sdpa"), ("backward", "sdpa")]
    assert used(lambda: train(True)) == [("forward", "sdpa"), ("backward", "reference")]
    assert used(lambda: train(False, mask_mod=mods.sliding_window(3))) == [("forward", "reference"), ("backward", "reference")]


def test_a_gradient_of_the_lse_is_exact_through_both_backends():
    assert_within_budget(run_both(attention, random_qkv(2, 4, S, 8, Hkv=2), (), lambda: (None, mods.causal), lse_gradient=True))


def test_a_named_sdpa_refuses_a_gradient_of_the_lse():
    with pytest.raises(
        flexsdpa.UnsupportedError, match="return_lse: with it asked, backward without a gradient of the LSE served"
    ):
        train(True, backend="sdpa")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("which", [1, 2], ids=["k", "v"])
def test_values_that_are_not_finite_under_causal_are_declined_and_the_answer_is_exact(which, value, empty_cache):
    inputs = [x.clone() for x in random_qkv(2, 4, S, 8)]
    inputs[which][1, 2, -1] = value
    out, lse = attention(*inputs, mask_mod=mods.causal, return_lse=True)
    expected = attention(*inputs, mask_mod=mods.causal, return_lse=True, backend="reference")
    torch.testing.assert_close((out, lse), expected, equal_nan=True)
    assert torch.isfinite(out[:, :, :-1]).all()
    assert empty_cache().fallbacks == 1


def test_a_named_sdpa_declines_values_with_an_error():
    q, k, v = random_qkv(2, 4, S, 8)
    v[0, 0, -1, 0] = float("nan")
    with pytest.raises(flexsdpa.UnsupportedError) as caught:
        attention(q, k, v, mask_mod=mods.causal, backend="sdpa")
    assert "values: nan or inf under a causal mask asked, finite values under a causal mask served" in str(caught.value)


def test_gradients_that_are_not_finite_are_declined_and_stay_where_they_belong():
    q, k, v = (x.requires_grad_() for x in random_qkv(2, 4, S, 8))
    grad = torch.ones(2, 4, S, 8)
    grad[0, 1, 5] = float("nan")
    results = []
    for backend in ("auto", "reference"):
        out = attention(q, k, v, mask_mod=mods.causal, backend=backend)
        results.append(torch.autograd.grad(out, (q, k, v), grad))
    torch.testing.assert_close(*results, equal_nan=True)
    dq, dk, _ = results[0]
    assert torch.isfinite(dq[0, 1, :5]).all()
    assert torch.isfinite(dk[0, 1, 6:]).all()
    assert torch.isnan(dk[0, 1, :6]).all()


def test_large_finite_values_are_not_mistaken_for_infinite_ones():
    q, k, v = random_qkv(1, 2, 300, 8)
    out = attention(q, k, v * 1e35, mask_mod=mods.causal, backend="sdpa")
    torch.testing.assert_close(out / 1e35, attention(q, k, v, mask_mod=mods.causal, backend="reference"), rtol=1e-4, atol=1e-5)


def test_the_decision_prints_its_request():
    chosen = decision(*random_qkv(2, 4, S, 8, Hkv=2), mask_mod=mods.causal)
    assert chosen.request.summary() == "q f32 (2, 4, 33, 8)  k (2, 2, 33, 8)  v (2, 2, 33, 8)  kv heads 2  forward  device cpu"


def test_rows_of_one_key_and_dead_storage_are_fine():
    buffer = random_tensor(2, 4, 100, 8)
    buffer[:, :, 50:] = float("nan")
    view = buffer[:, :, :50]
    out = attention(view, view, view, mask_mod=mods.causal)
    torch.testing.assert_close(out[:, :, 0], view[:, :, 0])
    assert torch.isfinite(out).all()
