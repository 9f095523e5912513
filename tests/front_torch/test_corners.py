"""Corners in which a plausible implementation is quietly wrong: large logits, infinite slopes, options of torch functions."""

import math

import pytest
import torch
import torch.nn.functional as F

import flexsdpa
from flexsdpa import mods
from flexsdpa.testing.budgets import assert_within_budget
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.testing.oracles import dense_attention, run_both
from flexsdpa.torch import ScoreMod, attention, varlen_attention

LOW = torch.finfo(torch.float32).min


def gradients(call, *leaves):
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    return torch.autograd.grad(call(*leaves).square().sum(), leaves, allow_unused=True)


# Large logits: an fp32 LSE of size 1e9 holds no logarithm of a sum.


@pytest.mark.parametrize("fill", [LOW, -1e30, -1e9, -1e4])
def test_a_row_of_equal_large_negative_scores_has_the_gradient_of_its_mean(fill):
    q, k, v = random_qkv(1, 2, 16, 8)
    bias = torch.zeros(16, 16)
    bias[2] = fill
    v.requires_grad_()
    out = attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[i, j])
    (grad,) = torch.autograd.grad(out[0, 0, 2].sum(), v)
    expected = torch.softmax((q[0, 0] @ k[0, 0].T / math.sqrt(8) + bias)[2], -1)
    torch.testing.assert_close(grad[0, 0, :, 0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [30.0, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("mask", [mods.causal, mods.sliding_window(3)], ids=["causal", "window"])
def test_value_gradients_of_large_logits_are_exact(scale, backend, mask):
    q, k, v = random_qkv(1, 2, 16, 8)
    dv = gradients(lambda v: attention(q, k, v, mask_mod=mask, scale=scale, backend=backend)[..., :1], v)[0]
    expected = gradients(lambda v: dense_attention(q, k, v, None, mask, work=torch.float64, scale=scale)[0][..., :1], v.double())[
        0
    ]
    torch.testing.assert_close(dv.double(), expected, rtol=1e-3, atol=1e-3)


def test_a_score_of_infinity_gives_an_infinite_lse():
    q, k, v = random_qkv(1, 1, 4, 8)
    bias = torch.zeros(4)
    bias[2] = math.inf
    _, lse = attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[j], return_lse=True)
    assert torch.equal(lse, torch.full_like(lse, math.inf))


# Selections and infinite slopes: torch's backward selects, so must ours.

ROOTS = {
    "relu": lambda s: torch.sqrt(torch.relu(s)),
    "where": lambda s: torch.sqrt(torch.where(s > 0, s, 0.0)),
    "clamp": lambda s: torch.sqrt(s.clamp(min=0)),
    "sum of two": lambda s: torch.sqrt(torch.relu(s) + torch.relu(2 * s)),
    "of a difference": lambda s: torch.sqrt(-torch.where(s > 0, -s, 0.0)),
    "log": lambda s: torch.log1p(torch.sqrt(torch.where(s > 0.5, s - 0.5, 0.0))),
}


@pytest.mark.parametrize("name", ROOTS)
def test_a_root_of_a_selection_has_no_nan(name):
    inputs = random_qkv(2, 2, 12, 4, dtype=torch.float64)
    assert_within_budget(run_both(attention, inputs, (), lambda: (lambda s, b, h, i, j: ROOTS[name](s), None)))


def test_a_root_of_a_selected_parameter_has_no_nan():
    def mod(w):
        return lambda s, b, h, i, j: s + torch.sqrt(torch.where(i == j, 0.0, w[h] * w[h])), None

    assert_within_budget(run_both(attention, random_qkv(2, 2, 6, 4), [random_tensor(2)], mod))


# Options of torch functions count.

OPTIONS = {
    "full_like": (lambda s, i, j: s * torch.full_like(i, 0.5, dtype=torch.float32), lambda s, i, j: s * 0.5),
    "full_like minus infinity": (
        lambda s, i, j: torch.where(j <= i, s, torch.full_like(j, -math.inf, dtype=torch.float32)),
        lambda s, i, j: torch.where(j <= i, s, -math.inf),
    ),
    "full_like to integers": (lambda s, i, j: s + torch.full_like(s, 2.7, dtype=torch.long), lambda s, i, j: s + 2),
    "ones_like": (lambda s, i, j: s / (torch.ones_like(i, dtype=torch.float32) / 4), lambda s, i, j: s * 4),
    "erfc": (lambda s, i, j: torch.log(torch.erfc(s * 3 + 4)), lambda s, i, j: torch.log(torch.erfc(s * 3 + 4))),
    "power of a bool": (lambda s, i, j: s + (i == j) ** 2, lambda s, i, j: s + (i == j).long()),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_functions_count(name):
    ours, plain = OPTIONS[name]
    q, k, v = random_qkv(1, 2, 16, 8)
    out = attention(q, k, v, score_mod=lambda s, b, h, i, j: ours(s, i, j))
    expected, _ = dense_attention(q, k, v, lambda s, b, h, i, j: plain(s, i, j), None, work=torch.float64)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options", [{"padding_idx": 0}, {"max_norm": 1.0}, {"scale_grad_by_freq": True}], ids=lambda o: next(iter(o))
)
def test_embedding_options_that_cannot_be_honoured_are_refused(options):
    q, k, v = random_qkv(1, 2, 4, 8)
    weight = random_tensor(4, 2)
    with pytest.raises(flexsdpa.TraceError, match=f"embedding\\(\\) with {next(iter(options))}="):
        attention(q, k, v, score_mod=lambda s, b, h, i, j: s + F.embedding((i - j).abs(), weight, **options)[h])


def test_an_unknown_rounding_mode_is_refused():
    q, k, v = random_qkv(1, 1, 4, 8)
    with pytest.raises(flexsdpa.TraceError, match="rounding_mode='up'"):
        attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.div(s, 2.0, rounding_mode="up"))


def test_fmod_has_slope_one_at_zero():
    inputs, table = random_qkv(1, 2, 16, 8), torch.zeros(2)
    mod = lambda t: (lambda s, b, h, i, j: s + torch.fmod(t[h], 2.5) * (i - j) + torch.fmod(s, 0.7), None)
    assert_within_budget(run_both(attention, inputs, [table], mod))


QUOTIENTS = {
    "//": lambda x, y: x // y,
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "%": lambda x, y: x % y,
    "fmod": torch.fmod,
}


@pytest.mark.parametrize("name", QUOTIENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_quotients_are_torchs_at_multiples_and_at_the_ends(name, dtype):
    if dtype == torch.int64:
        x = torch.tensor([-(2**63), 2**63 - 1, -7, 7, -6, 6, 0, 5])
        y = torch.tensor([3, 7, 2, -2, 3, -3, 5, 9])
    else:
        x = torch.tensor([1.5, -1.5, 1.5, 0.9, -0.9, 0.6, 2.0, -0.0], dtype=dtype)
        y = torch.tensor([0.3, 0.3, -0.3, 0.3, -0.3, 0.2, 0.5, 0.5], dtype=dtype)
    operation = QUOTIENTS[name]
    q = k = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    v = torch.eye(8, dtype=torch.float64).view(1, 1, 8, 8)
    work = dtype if dtype.is_floating_point else torch.float64
    expected = operation(x, y)
    seen = []
    for value in expected.tolist():
        mask = lambda b, h, i, j, value=value: operation(x[j], y[j]).to(dtype) == torch.tensor(value, dtype=dtype)
        seen.append((attention(q.to(work), k.to(work), v.to(work), mask_mod=mask)[0, 0, 0] > 0).tolist())
    assert seen == [(expected == value).tolist() for value in expected.tolist()]


# Calls around the kernel.


def test_a_snapshot_asks_for_the_dtype_of_the_call():
    q, k, v = random_qkv(1, 2, 16, 8, dtype=torch.float64)
    weight = random_tensor(2, dtype=torch.float64)
    mod = lambda s, b, h, i, j: s + weight[h].to(s.dtype) * 0.1 * (i - j)
    assert torch.equal(attention(q, k, v, score_mod=ScoreMod(mod)), attention(q, k, v, score_mod=mod))


def test_packed_sequences_take_no_offset_and_no_layout():
    q = random_tensor(16, 2, 8)
    for name, value in (("q_offset", 2), ("layout", "bshd")):
        with pytest.raises(TypeError, match=name):
            varlen_attention(q, q, q, torch.tensor([0, 5, 16]), **{name: value})


def test_calls_after_inference_mode_work(fresh_process):
    script = """
        import torch
        from flexsdpa.torch import attention
        q = torch.randn(1, 2, 300, 8)
        mod = lambda s, b, h, i, j: 2.5 * torch.tanh(s / 2.5)
        with torch.inference_mode():
            first = attention(q, q, q, score_mod=mod)
        print(torch.equal(first, attention(q, q, q, score_mod=mod)))
    """
    assert fresh_process(script).strip() == "True"


@pytest.mark.parametrize("what", ["never matters", "never used", "offset without a mask"])
def test_a_captured_tensor_that_drops_out_is_no_trouble(what):
    q, k, v = random_qkv(1, 2, 4, 8)
    t, w = torch.zeros(4, dtype=torch.long), torch.ones(4, requires_grad=True)
    options = {
        "never matters": {"mask_mod": lambda b, h, i, j: (i >= j) & (t[i] == t[i])},
        "never used": {"score_mod": lambda s, b, h, i, j: (w[i], s)[1], "mask_mod": mods.causal},
        "offset without a mask": {"score_mod": lambda s, b, h, i, j: s, "q_offset": 3},
    }[what]
    found = gradients(lambda q: attention(q, k, v, **options), q)
    plain = gradients(lambda q: attention(q, k, v, mask_mod=options.get("mask_mod") and mods.causal), q)
    torch.testing.assert_close(found, plain)
    grads = torch.autograd.grad(attention(q, k, v, **options).sum() + w.sum() * 0, w)
    assert not grads[0].any()


BAD = {
    "huge scale": ({"scale": 10**400}, "scale must be finite, got 1000"),
    "huge offset": ({"q_offset": 2**70}, "q_offset must lie within 62 bits"),
    "backend": ({"backend": 3}, "backend must be a backend's name, got int"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_have_one_clear_error(name):
    options, text = BAD[name]
    q = random_tensor(1, 1, 4, 8)
    with pytest.raises(flexsdpa.RequestError) as caught:
        attention(q, q, q, mask_mod=mods.causal, **options)
    assert str(caught.value).startswith(text)


def test_numpy_numbers_are_numbers():
    np = pytest.importorskip("numpy")
    q, k, v = random_qkv(1, 1, 4, 8)
    seen = attention(q, k, v, mask_mod=mods.causal, scale=np.float32(0.5), q_offset=np.int64(2))
    assert torch.equal(seen, attention(q, k, v, mask_mod=mods.causal, scale=0.5, q_offset=2))
    kept = attention(q, k, v, mask_mod=lambda b, h, i, j: np.bool_(True))
    assert torch.equal(kept, attention(q, k, v))
    with pytest.raises(flexsdpa.TraceError, match="a read of a ndarray"):
        attention(q, k, v, score_mod=lambda s, b, h, i, j: s + flexsdpa.ops.read(np.zeros(4, np.float32), i))


def test_nested_keys_with_dense_queries_are_refused():
    q = random_tensor(1, 2, 4, 8)
    nested = torch.nested.nested_tensor([random_tensor(4, 2, 8)], layout=torch.jagged).transpose(1, 2)
    with pytest.raises(flexsdpa.RequestError, match="nested attention needs q, k and v"):
        attention(q, nested, nested)
    table = torch.eye(4).to_sparse()
    with pytest.raises(flexsdpa.RequestError, match="is sparse_coo: make it dense"):
        attention(q, q, q, score_mod=lambda s, b, h, i, j: s + table[i, j])


# First attempts.


def test_where_as_a_method_has_torchs_order():
    q, k, v = random_qkv(1, 2, 8, 8)
    i, j = torch.arange(8)[:, None], torch.arange(8)
    for rule in (
        lambda i, j: (i >= j).where(j < 4, i == j),
        lambda i, j: torch.where(i >= j, j < 4, i == j),
        lambda i, j: (i * 2).where(i > j, j) > 3,
    ):
        seen = attention(q, k, v, mask_mod=lambda b, h, i, j, rule=rule: rule(i, j))
        expected = dense_attention(q, k, v, None, lambda b, h, i_, j_, rule=rule: rule(i, j), work=torch.float64)[0]
        torch.testing.assert_close(seen.double(), expected, rtol=1e-5, atol=1e-5)
    seen = attention(q, k, v, mask_mod=lambda b, h, i, j: (i >= j).where(j < 4, True))
    torch.testing.assert_close(seen, F.scaled_dot_product_attention(q, k, v, attn_mask=(i >= j) | (j >= 4)))


def test_a_captured_tensors_where_takes_a_traced_condition():
    q, k, v = random_qkv(1, 2, 8, 8)
    number = torch.tensor(2.0)
    seen = attention(q, k, v, score_mod=lambda s, b, h, i, j: s * number.where(i > j, 1.0))
    expected = attention(q, k, v, score_mod=lambda s, b, h, i, j: s * torch.where(i > j, number, 1.0))
    assert torch.equal(seen, expected)


@pytest.mark.parametrize("how", ["closure", "attribute"])
def test_a_learned_cap_compiles_to_one_graph(how):
    class Capped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cap = torch.nn.Parameter(torch.tensor(5.0))

        def forward(self, q):
            return attention(q, q, q, score_mod=mods.softcap(self.cap))

    model, q = Capped(), random_tensor(1, 2, 8, 8)
    call = model if how == "attribute" else lambda q: attention(q, q, q, score_mod=mods.softcap(model.cap))
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    grads = [torch.autograd.grad(f(q).square().sum(), model.cap)[0] for f in (compiled, call)]
    torch.testing.assert_close(*grads)


MISTAKES = {
    "a branch": (lambda q: attention(q, q, q, score_mod=lambda s, b, h, i, j: s if s > 0 else -s), "a branch needs to know"),
    "a length": (lambda q: attention(q, q, q[:, :, :3]), "k and v must have the same length, got 8 and 3"),
    "no return": (lambda q: attention(q, q, q, score_mod=lambda s, b, h, i, j: None), "score_mod returned None"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_compilers_keep_the_text_of_errors(name):
    call, text = MISTAKES[name]
    with pytest.raises(torch._dynamo.exc.Unsupported, match=text):
        torch.compile(call, backend="aot_eager", fullgraph=True)(random_tensor(1, 2, 8, 8))


def test_padding_says_that_it_takes_lengths():
    for wrong in (torch.ones(2, 8, dtype=torch.bool), torch.ones(2, 8).long(), torch.ones(2, dtype=torch.bool)):
        with pytest.raises(flexsdpa.RequestError, match=r"padding takes lengths of shape \(batch,\)"):
            mods.padding(wrong)


TABLE = {0: 1.0, 1: 2.0}
ADVICE = {
    "randomness": (lambda s, b, h, i, j: s + torch.rand(()), "rand() in a mod would be drawn once"),
    "normal noise": (lambda s, b, h, i, j: s + torch.randn(1)[0], "randn() in a mod would be drawn once"),
    "a mask as a score_mod": (mods.causal, "causal is a mask_mod (b, h, q_idx, kv_idx)"),
    "a dict": (lambda s, b, h, i, j: s * TABLE[h], "looking up in a dict or set of a traced value"),
    "formatting": (lambda s, b, h, i, j: s * len(f"{s:.2f}"), "formatting of a traced value"),
    "a layer": (lambda s, b, h, i, j: torch.nn.functional.linear(s, torch.ones(1, 1)), "linear() of a traced value"),
}


@pytest.mark.parametrize("name", ADVICE)
def test_what_a_mod_cannot_do_is_said(name):
    mod, text = ADVICE[name]
    q = random_tensor(1, 2, 8, 8)
    with pytest.raises(flexsdpa.TraceError) as caught:
        attention(q, q, q, score_mod=mod)
    assert text in str(caught.value)
