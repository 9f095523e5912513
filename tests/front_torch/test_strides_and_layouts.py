"""Views of any kind are read where they are, and results come in the memory order of q."""

import pytest
import torch

from flexsdpa import mods
from flexsdpa.testing.budgets import assert_within_budget
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.testing.oracles import run_both
from flexsdpa.torch import attention

B, S, H, D = 2, 21, 4, 8
MODS = {"plain": None, "causal": (None, mods.causal), "mod": (mods.softcap(2.0), mods.sliding_window(7))}


def packed_qkv():
    return random_tensor(B, S, 3, H, D).permute(2, 0, 3, 1, 4).unbind(0)


def heads_last_from_one_projection():
    return [x.view(B, S, H, D).transpose(1, 2) for x in random_tensor(B, S, 3 * H * D).chunk(3, -1)]


def sequence_first():
    return [x.permute(1, 2, 0, 3) for x in random_tensor(3, S, B, H, D)]


def slices_of_longer_rows():
    q, k, v = random_qkv(B, H, S + 130, D)
    return q[:, :, 5 : 5 + S], k[:, :, :-130], v[:, :, 130:]


def every_second_token():
    return [x[:, :, ::2] for x in random_qkv(B, H, 2 * S, D)]


def every_second_feature():
    return [x[..., ::2] for x in random_qkv(B, H, S, 2 * D)]


def features_before_tokens():
    return [x.mT for x in random_tensor(3, B, H, D, S)]


def one_kv_for_the_batch():
    q, k, v = random_qkv(B, H, S, D)
    return q, k[:1].expand(B, -1, -1, -1), v[:1].expand(B, -1, -1, -1)


def one_kv_for_all_heads():
    q, k, v = random_qkv(B, H, S, D)
    return q, k[:, :1].expand(-1, H, -1, -1), v[:, :1].expand(-1, H, -1, -1)


def one_query_for_all():
    q, k, v = random_qkv(B, H, S, D)
    return q[:, :, :1].expand(-1, -1, S, -1), k, v


VIEWS = [
    packed_qkv, heads_last_from_one_projection, sequence_first, slices_of_longer_rows, every_second_token, every_second_feature,
    features_before_tokens, one_kv_for_the_batch, one_kv_for_all_heads, one_query_for_all,
]  # fmt: skip


def dense_copy(x):
    return torch.empty(x.shape, dtype=x.dtype).copy_(x)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("mod", MODS)
@pytest.mark.parametrize("make", VIEWS, ids=lambda f: f.__name__)
def test_a_view_gives_what_its_copy_gives(make, mod, backend):
    score_mod, mask_mod = MODS[mod] or (None, None)
    results = []
    for transform in (lambda x: x, dense_copy):
        views = [transform(x) for x in make()]
        leaves = [x.detach().requires_grad_() for x in views]
        assert [x.stride() for x in leaves] == [x.stride() for x in views]
        out, lse = attention(*leaves, score_mod=score_mod, mask_mod=mask_mod, return_lse=True, backend=backend)
        weights = random_tensor(*out.shape, seed=77)
        results.append((out, lse, *torch.autograd.grad((out * weights).sum() + lse.square().sum(), leaves)))
    for seen, expected in zip(*results, strict=True):
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", VIEWS, ids=lambda f: f.__name__)
def test_gradients_flow_through_the_view_to_its_base(make):
    base = torch.ones((), requires_grad=True)
    q, k, v = (x * base for x in make())
    out = attention(q, k, v, score_mod=mods.softcap(2.0))
    (grad,) = torch.autograd.grad(out.sum(), base)
    ref = torch.ones((), dtype=torch.float64, requires_grad=True)
    q, k, v = (x.double() * ref for x in make())
    dense = torch.softmax(2.0 * torch.tanh(q @ k.mT / D**0.5 / 2.0), -1) @ v
    torch.testing.assert_close(grad.double(), torch.autograd.grad(dense.sum(), ref)[0], rtol=1e-4, atol=1e-3)


LAYOUTS = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3), "sbhd": (2, 0, 1, 3)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mod", MODS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_give_equal_results(layout, mod, dtype):
    score_mod, mask_mod = MODS[mod] or (None, None)
    order = LAYOUTS[layout]
    inputs = random_qkv(B, H, S, D, Hkv=2, Dv=6, dtype=dtype)
    expected, expected_lse = attention(*inputs, score_mod=score_mod, mask_mod=mask_mod, return_lse=True)
    given = [x.permute(order).contiguous() for x in inputs]
    out, lse = attention(*given, score_mod=score_mod, mask_mod=mask_mod, return_lse=True, layout=layout)
    torch.testing.assert_close(out, expected.permute(order))
    torch.testing.assert_close(lse, expected_lse)
    assert out.is_contiguous()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_give_equal_gradients(layout):
    order = LAYOUTS[layout]
    inputs = random_qkv(B, H, S, D, Hkv=2, Dv=6)

    def laid_out(q, k, v, score_mod, mask_mod, return_lse):
        given = [x.permute(order) for x in (q, k, v)]
        out, lse = attention(*given, score_mod=score_mod, mask_mod=mask_mod, return_lse=return_lse, layout=layout)
        return out.permute([order.index(d) for d in range(4)]), lse

    assert_within_budget(run_both(laid_out, inputs, (), lambda: (mods.softcap(2.0), mods.causal)))


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("dims", ["bhsd", "bshd", "sbhd"])
def test_result_follows_the_memory_order_of_q(dims, backend):
    order = LAYOUTS[dims]
    back = [order.index(d) for d in range(4)]
    q, k, v = (x.permute(order).contiguous().permute(back).requires_grad_() for x in random_qkv(B, H, S, D, Dv=D))
    out = attention(q, k, v, backend=backend)
    assert out.permute(order).is_contiguous()
    out.square().sum().backward()
    assert [x.grad.permute(order).is_contiguous() for x in (q, k, v)] == [True] * 3


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("Dv", [D, 3])
def test_heads_merge_without_a_copy(layout, Dv):
    q, k, v = (x.transpose(1, 2).contiguous() for x in random_qkv(B, H, S, D, Dv=Dv))  # bshd storage
    if layout == "bhsd":
        out = attention(*(x.transpose(1, 2) for x in (q, k, v)), score_mod=mods.softcap(2.0)).transpose(1, 2)
    else:
        out = attention(q, k, v, score_mod=mods.softcap(2.0), layout=layout)
    merged = out.reshape(B, S, H * Dv)
    assert merged.data_ptr() == out.data_ptr()


CAPTURED_VIEWS = {
    "expanded over heads": lambda t: t[:1].expand(H, S, S),
    "expanded over queries": lambda t: t[:, :1].expand(H, S, S),
    "expanded from one number": lambda t: t[:1, :1, :1].expand(H, S, S),
    "transposed": lambda t: t.mT,
    "flipped dims": lambda t: random_tensor(S, S, H).permute(2, 0, 1) + 0 * t[0, 0, 0],
    "sliced": lambda t: torch.cat([t, t], 1)[:, 4 : 4 + S],
    "strided": lambda t: torch.stack([t, -t], 3)[..., 0],
}


@pytest.mark.parametrize("read", ["leaves", "computed"])
@pytest.mark.parametrize("view", CAPTURED_VIEWS)
def test_captured_views_are_read_and_get_gradients(view, read):
    inputs = random_qkv(B, H, S, D, seed=4)
    columns = (lambda j: j) if read == "leaves" else (lambda j: (j * 5 + 1) % S)

    def make(table):
        seen = CAPTURED_VIEWS[view](table)
        return (lambda s, b, h, i, j: s + seen[h, i, columns(j)], None)

    assert_within_budget(run_both(attention, inputs, [random_tensor(H, S, S, seed=5)], make))


@pytest.mark.parametrize("view", CAPTURED_VIEWS)
def test_captured_view_that_is_a_leaf_gets_a_gradient_of_its_shape(view):
    with torch.no_grad():
        leaf = CAPTURED_VIEWS[view](random_tensor(H, S, S, seed=5)).detach().requires_grad_()
    out = attention(*random_qkv(B, H, S, D, seed=4), score_mod=lambda s, b, h, i, j: s + leaf[h, i, j])
    (grad,) = torch.autograd.grad(out.square().sum(), leaf)
    copy = dense_copy(leaf).detach().requires_grad_()
    out = attention(*random_qkv(B, H, S, D, seed=4), score_mod=lambda s, b, h, i, j: s + copy[h, i, j])
    torch.testing.assert_close(grad, torch.autograd.grad(out.square().sum(), copy)[0])
