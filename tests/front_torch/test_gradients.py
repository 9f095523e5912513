"""Gradients: of whatever asks for one, of nothing else, and of every captured tensor."""

import pytest
import torch

import flexsdpa
from flexsdpa import mods
from flexsdpa.testing.budgets import assert_within_budget
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.testing.oracles import dense_attention, run_both
from flexsdpa.torch import attention

S = 23


def dense(q, k, v, *args):
    return dense_attention(q, k, v, *args)[0]


@pytest.mark.parametrize(
    "needs", [(n & 1, n & 2, n & 4, n & 8) for n in range(1, 16)], ids=lambda n: "".join("qkvt"[i] for i in range(4) if n[i])
)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_only_what_asks_for_a_gradient_gets_one(needs, backend):
    inputs = [*random_qkv(2, 4, S, 8, Hkv=2), random_tensor(4, 2 * S - 1)]
    full = [x.detach().clone().requires_grad_() for x in inputs]
    some = [x.detach().clone().requires_grad_(bool(need)) for x, need in zip(inputs, needs, strict=True)]
    for leaves in (full, some):
        score_mod = mods.relative_bias(leaves[3]) if needs[3] else None
        attention(*leaves[:3], score_mod=score_mod, mask_mod=mods.causal, backend=backend).square().sum().backward()
    for whole, part, need in zip(full, some, needs, strict=True):
        assert (part.grad is None) == (not need)
        if need:
            torch.testing.assert_close(part.grad, whole.grad, rtol=1e-5, atol=1e-6)


def test_nothing_is_kept_for_backward_where_nothing_needs_it():
    q, k, v = random_qkv()
    assert attention(q, k, v).grad_fn is None
    with torch.no_grad():
        assert not attention(q.requires_grad_(), k, v).requires_grad


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("mod", [None, mods.softcap(1.5)], ids=["plain", "mod"])
def test_one_tensor_as_q_k_and_v_adds_its_gradients(mod, backend):
    x = random_tensor(2, 3, S, 8).requires_grad_()
    y = x.detach().double().requires_grad_()
    (grad,) = torch.autograd.grad(attention(x, x, x, score_mod=mod, backend=backend).square().sum(), x)
    (expected,) = torch.autograd.grad(dense(y, y, y, mod).square().sum(), y)
    torch.testing.assert_close(grad.double(), expected, rtol=1e-4, atol=1e-5)


def test_one_tensor_as_k_and_as_captured_table_adds_its_gradients():
    q, k, v = random_qkv(1, 1, S, 8)
    leaf = k.clone().requires_grad_()
    ref = k.double().requires_grad_()
    make = lambda table: lambda s, b, h, i, j: s + table[b, h, i, 0] * table[b, h, j, 1]
    (grad,) = torch.autograd.grad(attention(q, leaf, v, score_mod=make(leaf)).square().sum(), leaf)
    (expected,) = torch.autograd.grad(dense(q.double(), ref, v.double(), make(ref)).square().sum(), ref)
    torch.testing.assert_close(grad.double(), expected, rtol=1e-4, atol=1e-5)


# name: (shapes of captured tensors, what makes score_mod of them)
CAPTURED = {
    "pair bias": ([(2, 4, S, S)], lambda t: lambda s, b, h, i, j: s + t[b, h, i, j]),
    "pair bias, axes swapped": ([(S, S, 4)], lambda t: lambda s, b, h, i, j: s + t[j, i, h]),
    "mod ignores the score": ([(S, S)], lambda t: lambda s, b, h, i, j: t[i, j]),
    "mod ignores score and positions": ([(4,)], lambda t: lambda s, b, h, i, j: t[h]),
    "learned temperature": ([()], lambda t: lambda s, b, h, i, j: s * t),
    "learned exponent": ([()], lambda t: lambda s, b, h, i, j: torch.tanh(s) * torch.exp(t) + t * t),
    "gate per head": (
        [(4,), (4,)],
        lambda t, u: lambda s, b, h, i, j: torch.sigmoid(t[h]) * s + (1 - torch.sigmoid(t[h])) * u[h],
    ),
    "buckets hit many times": ([(3,)], lambda t: lambda s, b, h, i, j: s * t[(i - j).abs() % 3]),
    "one element hit by all": ([(1,)], lambda t: lambda s, b, h, i, j: s + t[0] * torch.tanh(s)),
    "read twice": ([(S,)], lambda t: lambda s, b, h, i, j: s + t[i] * t[j]),
    "read twice at one place": ([(S,)], lambda t: lambda s, b, h, i, j: s + t[j] * t[j]),
    "product of tables": ([(2 * S - 1,), (4,)], lambda t, u: lambda s, b, h, i, j: s + t[i - j + S - 1] * u[h]),
    "constant indices": ([(3, 4)], lambda t: lambda s, b, h, i, j: s * t[1, h] + t[2, -1]),
    "indices from the end": ([(S,)], lambda t: lambda s, b, h, i, j: s + t[-1 - j]),
    "index of every position": ([(2, S)], lambda t: lambda s, b, h, i, j: s + t[b, j] - t[b, i]),
    "query bias changes nothing but lse": ([(S,)], lambda t: lambda s, b, h, i, j: s + t[i]),
    "table shorter than the length": ([(5,)], lambda t: lambda s, b, h, i, j: s + t[j.clamp(max=4)]),
    "table longer than the length": ([(4, S + 40)], lambda t: lambda s, b, h, i, j: s + t[h, j]),
    "where on both sides": ([(S,), (S,)], lambda t, u: lambda s, b, h, i, j: torch.where(i >= j, s + t[j], s * u[i])),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tiles", [{}, {"tile_q": 5, "tile_kv": 9, "tile_elements": 100}], ids=["one tile", "many tiles"])
@pytest.mark.parametrize("name", CAPTURED)
def test_captured_tensors_receive_exact_gradients(name, tiles, dtype):
    shapes, make = CAPTURED[name]
    captured = [random_tensor(*shape, dtype=dtype, seed=20 + n) for n, shape in enumerate(shapes)]
    with flexsdpa.options(**tiles):
        judged = run_both(attention, random_qkv(2, 4, S, 8, Hkv=2, dtype=dtype), captured, lambda *c: (make(*c), mods.causal))
    assert_within_budget(judged)


def test_a_mod_may_return_a_learned_number():
    number = torch.tensor(0.3, requires_grad=True)
    q, k, v = random_qkv(1, 1, 4, 8)
    out, lse = attention(q, k, v, score_mod=lambda s, b, h, i, j: number, return_lse=True)
    torch.testing.assert_close(out, v.mean(2, keepdim=True).expand_as(out))
    torch.testing.assert_close(torch.autograd.grad(lse.sum(), number)[0], torch.tensor(4.0))


def test_a_captured_tensor_that_is_read_and_not_used_gets_zeros_or_none():
    weight = torch.ones(4, requires_grad=True)
    q, k, v = random_qkv(2, 4, S, 8)

    def mod(score, b, h, q_idx, kv_idx):
        _ = weight[h]
        return score * 2

    q.requires_grad_()
    grads = torch.autograd.grad(attention(q, k, v, score_mod=mod).sum(), [q, weight], allow_unused=True)
    assert grads[1] is None or torch.equal(grads[1], torch.zeros(4))
    assert grads[0].any()


def test_a_bias_of_frozen_inputs_can_be_trained():
    q, k, v = random_qkv(2, 4, S, 8)
    target = random_tensor(2, 4, S, 8, seed=9) * 0.1
    bias = torch.zeros(4, S, S, requires_grad=True)
    losses = []
    for _ in range(5):
        loss = (attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i, j]) - target).square().mean()
        (grad,) = torch.autograd.grad(loss, bias)
        with torch.no_grad():
            bias -= 100 * grad
        losses.append(float(loss.detach()))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("input_dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_captured_gradient_has_the_dtype_of_its_tensor(dtype, input_dtype):
    table = random_tensor(4, dtype=dtype).requires_grad_()
    q, k, v = random_qkv(2, 4, S, 8, dtype=input_dtype)
    attention(q, k, v, score_mod=lambda s, b, h, i, j: s * table[h]).sum().backward()
    assert table.grad.dtype == dtype
    assert table.grad.any()


def test_gradient_of_the_lse_alone():
    leaves = [x.double().requires_grad_() for x in random_qkv(2, 4, S, 8)]
    _, lse = attention(*leaves, score_mod=mods.softcap(2.0), return_lse=True)
    grads = torch.autograd.grad(lse.square().mean(), leaves, allow_unused=True)
    _, expected = dense_attention(*leaves, mods.softcap(2.0))
    wanted = torch.autograd.grad(expected.square().mean(), leaves[:2])
    torch.testing.assert_close(grads[:2], wanted, rtol=1e-9, atol=1e-12)
    assert grads[2] is None or not grads[2].any()


def test_gradcheck_agrees_with_finite_differences():
    q, k, v = (x.requires_grad_() for x in random_qkv(1, 2, 5, 3, Hkv=1, dtype=torch.float64))
    bias = random_tensor(2, 9, dtype=torch.float64).requires_grad_()
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def call(q, k, v, bias, temperature):
        mod = lambda s, b, h, i, j: torch.tanh(s * temperature) + bias[h, i - j + 4]
        return attention(q, k, v, score_mod=mod, mask_mod=mods.causal, return_lse=True)

    assert torch.autograd.gradcheck(call, (q, k, v, bias, temperature))


def test_backward_twice_over_a_retained_graph_gives_the_same():
    q, k, v = (x.requires_grad_() for x in random_qkv())
    out = attention(q, k, v, score_mod=mods.softcap(2.0))
    first = torch.autograd.grad(out.sum(), q, retain_graph=True)[0].clone()
    attention(q, k, v, score_mod=mods.softcap(9.0)).sum().backward()
    assert torch.equal(torch.autograd.grad(out.sum(), q)[0], first)


def test_changing_a_captured_tensor_before_backward_is_an_error():
    q, k, v = (x.requires_grad_() for x in random_qkv())
    table = torch.ones(4)
    out = attention(q, k, v, score_mod=lambda s, b, h, i, j: s * table[h])
    table.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_gradient_that_is_expanded_or_strided_is_read_right():
    q, k, v = (x.requires_grad_() for x in random_qkv(2, 4, S, 8))
    out = attention(q, k, v)
    weights = random_tensor(2, S, 8, 4).permute(0, 3, 1, 2)
    for given in (torch.ones(()).expand(out.shape), weights, weights[:1].expand(2, -1, -1, -1)):
        seen = torch.autograd.grad(out, (q, k, v), given, retain_graph=True)
        expected = torch.autograd.grad(out, (q, k, v), given.contiguous(), retain_graph=True)
        torch.testing.assert_close(seen, expected)
