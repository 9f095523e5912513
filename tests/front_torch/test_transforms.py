"""torch.func, checkpointing, autocast, determinism: what works, and how the rest is refused."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import flexsdpa
from flexsdpa import mods
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.torch import attention

S = 19


def loss(q, k, v, table):
    out, lse = attention(
        q, k, v, score_mod=lambda s, b, h, i, j: s * 0.5 + table[h, i - j], mask_mod=mods.causal, return_lse=True
    )
    return out.square().sum() + lse.square().sum()


def leaves():
    return [x.requires_grad_() for x in (*random_qkv(2, 2, S, 8), random_tensor(2, 2 * S - 1))]


def test_func_grad_equals_autograd():
    inputs = leaves()
    expected = torch.autograd.grad(loss(*inputs), inputs)
    seen = torch.func.grad(loss, argnums=(0, 1, 2, 3))(*(x.detach() for x in inputs))
    torch.testing.assert_close(seen, expected, rtol=0, atol=0)


def test_func_vjp_equals_autograd():
    inputs = [x.detach() for x in leaves()]
    call = lambda *x: attention(*x[:3], score_mod=mods.relative_bias(x[3]), return_lse=True)
    (out, lse), pull = torch.func.vjp(call, *inputs)
    cotangents = torch.ones_like(out), torch.ones_like(lse)
    attached = [x.requires_grad_() for x in inputs]
    expected = torch.autograd.grad(call(*attached), attached, cotangents)
    torch.testing.assert_close(pull(cotangents), expected, rtol=0, atol=0)


def test_func_grad_of_a_functional_call_of_a_module():
    layer = torch.nn.Linear(8, 8)
    q, k, v = random_qkv(2, 2, S, 8)
    call = lambda parameters: attention(torch.func.functional_call(layer, parameters, (q,)), k, v).square().sum()
    grads = torch.func.grad(call)(dict(layer.named_parameters()))
    expected = torch.autograd.grad(attention(layer(q), k, v).square().sum(), list(layer.parameters()))
    torch.testing.assert_close(list(grads.values()), list(expected))


def test_grad_and_value_and_has_aux_work():
    inputs = [x.detach() for x in leaves()]
    grads, value = torch.func.grad_and_value(loss)(*inputs)
    torch.testing.assert_close(value, loss(*inputs))
    assert grads.shape == inputs[0].shape


# What is refused says so, and says what to do.

VMAP = (
    "torch.vmap over flexsdpa attention is not supported: a mod's batch index would change its meaning. "
    "Fold the mapped dimension into the batch dimension and call attention once"
)
JVP = (
    "forward-mode differentiation (torch.func.jvp) through flexsdpa attention is not supported: use reverse mode "
    "(torch.func.grad or vjp)"
)
DOUBLE = (
    "double backward through flexsdpa attention is not supported: the second derivative of the kernel does not exist. "
    "Drop create_graph=True, or compute the penalty on a small dense attention"
)


def refused(call, *args):
    with pytest.raises(flexsdpa.UnsupportedError) as caught:
        call(*args)
    return str(caught.value)


@pytest.mark.parametrize("mod", [None, mods.softcap(2.0)], ids=["plain", "mod"])
@pytest.mark.parametrize("grad", [False, True], ids=["forward", "gradient"])
def test_vmap_is_refused(mod, grad):
    stacked = [torch.stack([x, x]) for x in random_qkv(2, 2, S, 8)]
    call = lambda q, k, v: attention(q, k, v, score_mod=mod)
    if grad:
        call = torch.func.grad(lambda q, k, v: attention(q, k, v, score_mod=mod).sum())
    assert refused(torch.vmap(call), *stacked) == VMAP


def test_vmap_over_a_captured_tensor_is_refused():
    q, k, v = random_qkv(2, 2, S, 8)
    assert refused(torch.vmap(lambda slopes: attention(q, k, v, score_mod=mods.alibi(slopes))), torch.ones(3, 2)) == VMAP


def test_vmap_over_something_else_leaves_attention_alone():
    q, k, v = random_qkv(2, 2, S, 8)
    out = torch.vmap(lambda x: attention(q, k, v) + x)(torch.arange(3.0))
    torch.testing.assert_close(out, attention(q, k, v) + torch.arange(3.0).view(3, 1, 1, 1, 1))


def test_a_jacobian_is_refused_as_vmap_is():
    q, k, v = random_qkv(1, 1, 3, 2)
    assert refused(torch.func.jacrev(lambda q: attention(q, k, v)), q) == VMAP


@pytest.mark.parametrize("mod", [None, mods.softcap(2.0)], ids=["plain", "mod"])
def test_jvp_is_refused(mod):
    q, k, v = random_qkv(2, 2, S, 8)
    assert refused(torch.func.jvp, lambda q: attention(q, k, v, score_mod=mod), (q,), (q,)) == JVP


@pytest.mark.parametrize("needs_grad", [True, False])  # fmt: skip
def test_forward_mode_of_torch_autograd_is_refused(needs_grad):
    q, k, v = random_qkv(2, 2, S, 8)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q.requires_grad_(needs_grad), torch.ones_like(q))
        assert refused(lambda: attention(dual, k, v)) == JVP


def test_forward_mode_through_a_captured_tensor_is_refused():
    q, k, v = random_qkv(2, 2, S, 8)
    table = random_tensor(2)
    call = lambda table: attention(q, k, v, score_mod=mods.alibi(table))
    assert refused(torch.func.jvp, call, (table,), (table,)) == JVP


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_double_backward_is_refused(backend):
    q, k, v, table = leaves()
    out = attention(q, k, v, score_mod=mods.relative_bias(table) if backend == "reference" else None, backend=backend)
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    assert refused(grad.sum().backward) == DOUBLE


def test_double_backward_of_a_captured_tensor_is_refused():
    q, k, v, table = leaves()
    out = attention(q.detach(), k.detach(), v.detach(), score_mod=mods.relative_bias(table))
    (grad,) = torch.autograd.grad(out.square().sum(), table, create_graph=True)
    assert refused(grad.sum().backward) == DOUBLE


def test_a_gradient_that_is_not_differentiated_again_may_keep_its_graph():
    q, k, v, table = leaves()
    grads = torch.autograd.grad(loss(q, k, v, table), [q, table], create_graph=True)
    torch.testing.assert_close(
        [g.detach() for g in grads], list(torch.autograd.grad(loss(q, k, v, table), [q, table])), rtol=0, atol=0
    )


def test_grad_of_grad_is_refused():
    q, k, v, table = (x.detach() for x in leaves())
    inner = lambda q: torch.func.grad(loss)(q, k, v, table).sum()
    assert refused(torch.func.grad(inner), q) == DOUBLE


# Checkpointing.


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients_and_builds_nothing(use_reentrant, empty_cache):
    inputs = leaves()
    expected = torch.autograd.grad(loss(*inputs), inputs)
    builds = empty_cache().builds
    checkpoint(loss, *inputs, use_reentrant=use_reentrant).backward()
    assert empty_cache().builds == builds
    for x, grad in zip(inputs, expected, strict=True):
        assert torch.equal(x.grad, grad)


def test_a_mask_may_be_an_argument_of_a_checkpointed_block():
    q, k, v, _ = leaves()
    block = lambda q, k, v, mask: attention(q, k, v, mask_mod=mask)
    mask = flexsdpa.torch.MaskMod(mods.sliding_window(4))
    seen = torch.autograd.grad(checkpoint(block, q, k, v, mask, use_reentrant=False).sum(), q)
    torch.testing.assert_close(seen, torch.autograd.grad(block(q, k, v, mask).sum(), q), rtol=0, atol=0)


def test_saved_tensor_hooks_see_q_k_v_out_and_lse():
    inputs, saved = leaves(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.shape) or x, lambda x: x):
        attention(*inputs[:3], score_mod=mods.relative_bias(inputs[3]))
    assert sorted(saved) == sorted([*[(2, 2, S, 8)] * 4, (2, 2, S), (2, 2 * S - 1), (1,)])


# Autocast: as SDPA.


def sdpa(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


MIXED = {
    "all fp32": (torch.float32, torch.float32, torch.float32),
    "v in bf16": (torch.float32, torch.float32, torch.bfloat16),
    "q in fp16": (torch.float16, torch.float32, torch.bfloat16),
    "all bf16": (torch.bfloat16, torch.bfloat16, torch.bfloat16),
    "all fp64": (torch.float64, torch.float64, torch.float64),
}


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MIXED)
def test_autocast_casts_as_sdpa_does(name, autocast):
    inputs = [x.to(dtype) for x, dtype in zip(random_qkv(2, 2, S, 8), MIXED[name], strict=True)]
    with torch.autocast("cpu", autocast):
        seen, expected = attention(*inputs), sdpa(*inputs)
    assert seen.dtype == expected.dtype
    torch.testing.assert_close(seen, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("inside", [False, True], ids=["backward outside", "backward inside"])
def test_gradients_under_autocast_have_the_dtypes_of_their_tensors(inside):
    q, k, v, table = leaves()
    v = v.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out, lse = attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[h, i - j], return_lse=True)
        assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
        if inside:
            out.float().square().sum().backward()
    if not inside:
        out.float().square().sum().backward()
    half = [x.detach().bfloat16().requires_grad_() for x in (q, k, v)]
    full = table.detach().requires_grad_()
    attention(*half, score_mod=lambda s, b, h, i, j: s + full[h, i - j]).float().square().sum().backward()
    for seen, expected in zip((q, k, v, table), (*half, full), strict=True):
        assert seen.grad.dtype == seen.dtype
        torch.testing.assert_close(seen.grad.float(), expected.grad.float(), rtol=0, atol=0)


@pytest.mark.parametrize("mod", [None, mods.softcap(2.0)], ids=["plain", "mod"])
def test_backward_of_fp32_attention_under_autocast_stays_in_fp32(mod):
    q, k, v, _ = leaves()
    out = attention(q, k, v, score_mod=mod, backend="reference")
    expected = torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        seen = torch.autograd.grad(out.sum(), (q, k, v))
    torch.testing.assert_close(seen, expected, rtol=0, atol=0)


def test_a_mod_is_computed_in_fp32_under_autocast():
    q, k, v = random_qkv(1, 1, 600, 8)
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(q, k, v, score_mod=lambda s, b, h, i, j: s - 0.3 * (i - j).abs())
    expected = attention(*(x.bfloat16() for x in (q, k, v)), score_mod=lambda s, b, h, i, j: s - 0.3 * (i - j).abs())
    assert torch.equal(out, expected)


def test_disabled_autocast_changes_nothing():
    q, k, v = random_qkv(1, 1, S, 8)
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert attention(q, k, v).dtype == torch.float32


# Determinism.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_two_runs_are_bitwise_equal(dtype):
    q, k, v = random_qkv(2, 4, 300, 16, Hkv=2, dtype=dtype)
    table, bias = random_tensor(4, 7, dtype=dtype), torch.tensor(0.5, dtype=dtype)

    def run():
        inputs = [x.clone().requires_grad_() for x in (q, k, v, table, bias)]
        mod = lambda s, b, h, i, j: s * inputs[4] + inputs[3][h, (i - j) % 7] * inputs[3][h, (i * j) % 5]
        out, lse = attention(*inputs[:3], score_mod=mod, mask_mod=mods.causal, return_lse=True)
        return [out, lse, *torch.autograd.grad(out.square().sum() + lse.sum(), inputs)]

    first = run()
    for _ in range(3):
        assert all(torch.equal(x, y) for x, y in zip(run(), first, strict=True))


def test_a_batch_of_one_gives_what_a_batch_of_many_gives():
    q, k, v = random_qkv(6, 4, 70, 16, Hkv=2)
    mod = lambda s, b, h, i, j: s - 0.1 * (i - j).abs()
    whole = attention(q, k, v, score_mod=mod, mask_mod=mods.causal)
    parts = torch.cat(
        [attention(q[n : n + 1], k[n : n + 1], v[n : n + 1], score_mod=mod, mask_mod=mods.causal) for n in range(6)]
    )
    torch.testing.assert_close(whole, parts, rtol=1e-5, atol=1e-6)


def test_deterministic_algorithms_are_honoured(empty_cache):
    inputs = leaves()
    expected = torch.autograd.grad(loss(*inputs), inputs)
    torch.use_deterministic_algorithms(True)
    try:
        seen = torch.autograd.grad(loss(*inputs), inputs)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(x, y) for x, y in zip(seen, expected, strict=True))
    assert empty_cache().builds == 4  # a deterministic plan is a plan of its own


def test_inference_mode_works_and_its_tensors_too():
    with torch.inference_mode():
        q, k, v = random_qkv(2, 2, S, 8)
        out = attention(q, k, v, score_mod=mods.softcap(2.0))
    torch.testing.assert_close(attention(q, k, v, score_mod=mods.softcap(2.0)), out)


def computed_with(setting, value, back):
    q, k, v = random_qkv(2, 2, S, 8)
    expected = attention(q, k, v, score_mod=mods.softcap(2.0), mask_mod=mods.causal)
    setting(value)
    try:
        return attention(q, k, v, score_mod=mods.softcap(2.0), mask_mod=mods.causal), expected
    finally:
        setting(back)


def test_the_default_dtype_does_not_matter():
    seen, expected = computed_with(torch.set_default_dtype, torch.float64, torch.float32)
    assert torch.equal(seen, expected)


def test_the_default_device_does_not_matter():
    seen, expected = computed_with(torch.set_default_device, "meta", None)
    assert torch.equal(seen, expected)
