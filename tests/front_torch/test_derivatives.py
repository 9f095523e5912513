"""Derivatives of the functions that a mod may call are torch's own, on both sides of a kink and exactly at it."""

import pytest
import torch
import torch.nn.functional as F

from flexsdpa.testing.budgets import assert_within_budget
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.testing.oracles import dense_attention, run_both
from flexsdpa.torch import attention

SMOOTH = {
    "tanh": torch.tanh,
    "sigmoid": lambda x: x.sigmoid(),
    "exp": lambda x: torch.exp(0.3 * x),
    "exp2": lambda x: torch.exp2(x * 0.3),
    "expm1": lambda x: torch.expm1(x * 0.1),
    "log": lambda x: (x * x + 1).log(),
    "log1p": lambda x: torch.log1p(x * x),
    "log2": lambda x: (x * x + 1).log2(),
    "log10": lambda x: (x * x + 1).log10(),
    "sqrt": lambda x: torch.sqrt(x * x + 1e-3),
    "rsqrt": lambda x: (x * x + 1).rsqrt(),
    "reciprocal": lambda x: (x * x + 1).reciprocal(),
    "square": torch.square,
    "sin and cos": lambda x: torch.sin(x) * torch.cos(x),
    "erf": torch.erf,
    "erfc": torch.erfc,
    "silu": lambda x: x * x.sigmoid(),
    "pow 3": lambda x: x**3,
    "pow 0": lambda x: x + x**0,
    "pow 2.5": lambda x: (x * x + 0.1) ** 2.5,
    "2 ** x": lambda x: 2.0**x,
    "1 - x": lambda x: 1 - x,
    "1 / x": lambda x: 1 / (2 + x * x),
    "-x": lambda x: -x,
    "lerp": lambda x: torch.lerp(x, x * x, 0.25),
    "alpha": lambda x: torch.add(x, x * x, alpha=2),
    "gelu by hand": lambda x: x * 0.5 * (1 + torch.erf(x * 0.7071)),
}
KINKED = {
    "abs": lambda x: x.abs(),
    "relu": lambda x: torch.relu(x),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp below": lambda x: torch.clamp(x, min=0.0),
    "maximum": lambda x: torch.maximum(x, x * 0.5),
    "minimum": lambda x: torch.minimum(x, x * 0.5),
    "maximum with itself": lambda x: torch.maximum(x, x),
    "times its sign": lambda x: x * torch.sign(x),
    "where": lambda x: torch.where(x > 0, x, 2 * x),
    "masked_fill": lambda x: x.masked_fill(x < 0, 0.5),
}
JUMPS = {
    "floor": lambda x: x - torch.floor(x * 0.5),
    "ceil": lambda x: x + x.ceil(),
    "round": lambda x: x + torch.round(x),
    "trunc": lambda x: x + x.trunc(),
    "remainder": lambda x: x + x % 0.7,
    "fmod": lambda x: torch.fmod(x, 0.7),
    "div trunc": lambda x: x + torch.div(x, 0.7, rounding_mode="trunc"),
    "div floor": lambda x: x + torch.div(x, 0.7, rounding_mode="floor"),
}


def special_scores():
    """q and k whose scores are 0 in half of the places, 1 or -1 in the others, exactly."""
    q, _, v = random_qkv(2, 2, 12, 4, dtype=torch.float64)
    q = torch.where(random_tensor(2, 2, 12, 4, seed=5) > 0, 0.0, torch.sign(q))
    return q, torch.eye(4, dtype=torch.float64)[torch.arange(12) % 4].expand(2, 2, 12, 4), v


@pytest.mark.parametrize("name", [*SMOOTH, *KINKED, *JUMPS])
def test_derivative_is_torchs_at_random_scores(name):
    f = {**SMOOTH, **KINKED, **JUMPS}[name]
    inputs = random_qkv(2, 2, 12, 4, dtype=torch.float64)
    assert_within_budget(run_both(attention, inputs, (), lambda: (lambda s, b, h, i, j: f(s), None)))


@pytest.mark.parametrize("name", [*SMOOTH, *KINKED])
def test_derivative_is_torchs_at_scores_of_0_and_1(name):
    f = {**SMOOTH, **KINKED}[name]
    judged = run_both(attention, special_scores(), (), lambda: (lambda s, b, h, i, j: f(s), None), scale=1.0)
    assert_within_budget(judged)


def test_derivative_of_softplus_is_torchs_at_scores_of_0():
    judged = run_both(attention, special_scores(), (), lambda: (lambda s, b, h, i, j: F.softplus(s), None), scale=1.0)
    assert_within_budget(judged)


def test_derivative_of_softplus_is_torchs_elsewhere():
    inputs = random_qkv(2, 2, 12, 4, dtype=torch.float64)
    assert_within_budget(run_both(attention, inputs, (), lambda: (lambda s, b, h, i, j: F.softplus(s * 3), None)))


@pytest.mark.parametrize("name", ["relu", "silu"])
def test_functions_of_torch_nn_functional_work(name):
    f = getattr(F, name)
    inputs = random_qkv(2, 2, 12, 4, dtype=torch.float64)
    assert_within_budget(run_both(attention, inputs, (), lambda: (lambda s, b, h, i, j: f(s), None)))


def test_floor_division_has_no_slope():
    leaves = [x.requires_grad_() for x in random_qkv(2, 2, 12, 4, dtype=torch.float64)]
    out = attention(*leaves, score_mod=lambda s, b, h, i, j: s + s // 0.7)
    expected, _ = dense_attention(*leaves, lambda s, b, h, i, j: s + s.detach() // 0.7)
    torch.testing.assert_close(out, expected)
    grads = [torch.autograd.grad(x.square().sum(), leaves) for x in (out, expected)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("f", [torch.log, torch.sqrt, torch.rsqrt, torch.reciprocal], ids=lambda f: f.__name__)
def test_a_function_beyond_its_domain_does_not_reach_the_side_that_where_takes(f):
    mod = lambda s, b, h, i, j: torch.where(s > 0.1, f(torch.where(s > 0.1, s, 1.0)), s)
    spoiled = lambda s, b, h, i, j: torch.where(s > 0.1, f(s), s)
    inputs = random_qkv(2, 2, 12, 4, dtype=torch.float64)
    leaves, others = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    out, expected = attention(*leaves, score_mod=spoiled), attention(*others, score_mod=mod)
    torch.testing.assert_close(out, expected)
    grads = torch.autograd.grad(out.sum(), leaves), torch.autograd.grad(expected.sum(), others)
    torch.testing.assert_close(*grads)
