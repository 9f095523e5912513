"""The contract of the cudnn backend on a card. Run by hand where there is one, with nvidia-cudnn-frontend."""

import gc
import threading

import pytest
import torch

import flexsdpa
from flexsdpa import mods
from flexsdpa.engine import ENGINE
from flexsdpa.testing.budgets import assert_within_budget
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.testing.oracles import dense_attention, run_both
from flexsdpa.torch import attention, explain

pytest.importorskip("cudnn")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]
CARD = "cuda"
B, H, S, D = 2, 4, 320, 64
APPROXIMATE = {"lse": 1e-4}
"""The card's own tanh, exp and log are good to about 2**-11 of their result."""


def tensor(*shape, **options):
    return random_tensor(*shape, device=CARD, **options)


def cuda(make):
    return make() if torch.cuda.is_available() else None


slopes, row, col = cuda(lambda: tensor(H)), cuda(lambda: tensor(B, S)), cuda(lambda: tensor(H, S))
bias = cuda(lambda: tensor(B, H, S, S, dtype=torch.bfloat16))
docs = cuda(lambda: (torch.arange(S, device=CARD) // 70).expand(B, S).contiguous())
flags = cuda(lambda: torch.arange(S, device=CARD) % 3 > 0)
number, per_batch = cuda(lambda: torch.tensor(0.7, device=CARD)), cuda(lambda: tensor(B))
where = torch.where

SCORES = {
    "softcap": mods.softcap(2.0),
    "alibi": lambda s, b, h, i, j: s - slopes[h] * (i - j) * 0.1,
    "alibi, symmetric": lambda s, b, h, i, j: s - slopes[h] * (i - j).abs() * 0.1,
    "bias": lambda s, b, h, i, j: s + bias[b, h, i, j],
    "row": lambda s, b, h, i, j: s * torch.tanh(row[b, i]),
    "column": lambda s, b, h, i, j: s - col[h, j],
    "row and column": lambda s, b, h, i, j: s + row[b, i] * col[h, j],
    "per batch": lambda s, b, h, i, j: s * per_batch[b],
    "distance": lambda s, b, h, i, j: s + (i - j) * 0.01,
    "number on the left": lambda s, b, h, i, j: 3.0 - s,
    "quotient": lambda s, b, h, i, j: s / (1.0 + torch.abs(s)),
    "one over": lambda s, b, h, i, j: 1.0 / (2.0 + torch.sigmoid(s)),
    "exp": lambda s, b, h, i, j: torch.exp(-s * s),
    "exp2": lambda s, b, h, i, j: torch.exp2(-torch.abs(s)),
    "log": lambda s, b, h, i, j: torch.log(2.0 + torch.sin(s)),
    "log2": lambda s, b, h, i, j: torch.log2(2.0 + torch.cos(s)),
    "log1p": lambda s, b, h, i, j: torch.log1p(s * s),
    "expm1": lambda s, b, h, i, j: torch.expm1(-s * s),
    "sqrt": lambda s, b, h, i, j: torch.sqrt(1 + s * s),
    "rsqrt": lambda s, b, h, i, j: torch.rsqrt(1 + s * s),
    "erf": lambda s, b, h, i, j: torch.erf(s),
    "relu": lambda s, b, h, i, j: torch.relu(s),
    "clamp": lambda s, b, h, i, j: s.clamp(-0.5, 0.7),
    "maximum": lambda s, b, h, i, j: torch.maximum(s, col[h, j]),
    "minimum": lambda s, b, h, i, j: torch.minimum(s, -col[h, j]),
    "where": lambda s, b, h, i, j: where(s > 0.1, s, s * 0.3),
    "where by place": lambda s, b, h, i, j: where(i > j, s, s - 0.5),
    "where by flag": lambda s, b, h, i, j: where(flags[j], s, s - 0.5),
    "buckets": lambda s, b, h, i, j: s + 0.1 * ((i // 7) % 5) - 0.2 * ((j - i) // 16),
    "integers": lambda s, b, h, i, j: s + 0.01 * torch.minimum(torch.abs(i - j), j + 3),
    "0-D tensor": lambda s, b, h, i, j: s * number,
    "host arithmetic": (lambda c: lambda s, b, h, i, j: s * (c * 2 + number) - c / 3)(0.4),
    "without the score": lambda s, b, h, i, j: col[h, j] * 2,
    "powers": lambda s, b, h, i, j: (s**2) * 0.1 + s**3 * 0.01,
}
MASKS = {
    "none": None,
    "causal": mods.causal,
    "causal, offset 3": mods.causal(offset=3),
    "causal, offset -5": mods.causal(offset=-5),
    "window": mods.sliding_window(33),
    "window on both sides": mods.sliding_window(20, causal=False),
    "documents": lambda b, h, i, j: docs[b, i] == docs[b, j],
    "documents, causal": lambda b, h, i, j: (docs[b, i] == docs[b, j]) & (i >= j),
    "prefix": mods.prefix_lm(50),
    "padding": lambda b, h, i, j: j < where(b == 0, S, 11),
    "rows without keys": lambda b, h, i, j: j < where(b == 0, S, 0),
    "below the diagonal": lambda b, h, i, j: j < i - 7,
    "either": lambda b, h, i, j: (j <= i) | (j > i + 40) & (h == 1),
    "flags": lambda b, h, i, j: flags[j] ^ (i == j),
    "not": lambda b, h, i, j: ~((i - j).abs() > 30),
    "strided": lambda b, h, i, j: (i % 7 == j % 7) | (i == j),
    "window per head": lambda b, h, i, j: i - j < (h + 1) * 20,
    "ahead": lambda b, h, i, j: (j >= i + 5) & (j < i + 50),
}


def check(score_mod, mask_mod, inputs=None, **options):
    inputs = inputs or random_qkv(B, H, S, D, Hkv=2, dtype=torch.bfloat16, device=CARD)
    mods_of_call = lambda: (score_mod, mask_mod)
    judged = run_both(attention, inputs, (), mods_of_call, lse_gradient=False, backend="cudnn", **options)
    assert_within_budget(judged, factor=4.0, absolute=APPROXIMATE)


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    check(SCORES[name], None)


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    check(None, MASKS[name])


@pytest.mark.parametrize("name", [name for name in MASKS if name != "none"])
def test_masks_together_with_a_mod(name):
    check(mods.softcap(2.0), MASKS[name])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [32, 64, 72, 80, 96, 128, 192, 256])
def test_head_dims(head_dim, dtype):
    inputs = random_qkv(1, 2, 256, head_dim, dtype=dtype, device=CARD)
    check(None, mods.causal, inputs)
    check(mods.softcap(2.0), mods.causal, inputs)


@pytest.mark.parametrize("sizes", [(2, 2), (6, 2), (8, 2), (8, 1)], ids=lambda s: f"{s[0]} over {s[1]}")
def test_groups_of_heads(sizes):
    inputs = random_qkv(2, sizes[0], 256, 64, Hkv=sizes[1], dtype=torch.bfloat16, device=CARD)
    check(mods.softcap(2.0), None, inputs)
    check(None, mods.causal, inputs)


@pytest.mark.parametrize("lengths", [(101, 77), (77, 101), (130, 8), (513, 255), (1000, 1000)], ids=str)
def test_lengths(lengths):
    inputs = random_qkv(1, 2, lengths[0], 64, Skv=lengths[1], dtype=torch.bfloat16, device=CARD)
    check(None, None, inputs)
    check(mods.softcap(2.0), None, inputs)
    check(lambda s, b, h, i, j: 3.0 - s, mods.causal, inputs)


@pytest.mark.parametrize("score_mod", [None, mods.softcap(2.0)], ids=["plain", "softcap"])
def test_a_single_query(score_mod):
    """cuDNN has no backward for one query under a subgraph: without a backend named, the reference takes over."""
    inputs = [x.requires_grad_() for x in random_qkv(2, 4, 1, 64, Hkv=2, Skv=300, dtype=torch.bfloat16, device=CARD)]
    seen = attention(*inputs, score_mod=score_mod, backend="cudnn")
    exact = dense_attention(*inputs, score_mod, None, work=torch.float32)[0]
    torch.testing.assert_close(seen.float(), exact.float(), rtol=2e-2, atol=2e-2)
    grads = torch.autograd.grad(attention(*inputs, score_mod=score_mod).square().sum(), inputs)
    for found, expected in zip(grads, torch.autograd.grad(exact.square().sum(), inputs), strict=True):
        torch.testing.assert_close(found.float(), expected.float(), rtol=3e-2, atol=3e-2 * float(expected.abs().max()))


def test_another_head_dim_of_v():
    check(mods.softcap(2.0), None, random_qkv(2, 2, 256, 64, Dv=128, dtype=torch.bfloat16, device=CARD))


def test_bands_of_a_long_row():
    inputs = random_qkv(1, 2, 2100, 64, Hkv=1, dtype=torch.bfloat16, device=CARD)
    for mask in (mods.causal, mods.sliding_window(300), mods.causal(offset=-300)):
        check(lambda s, b, h, i, j: s + 0.001 * (i - j), mask, inputs)


@pytest.mark.parametrize("layout", ["bshd", "sbhd"])
def test_layouts_and_views(layout):
    order = {"bshd": (0, 2, 1, 3), "sbhd": (2, 0, 1, 3)}[layout]
    inputs = random_qkv(B, H, 256, D, dtype=torch.bfloat16, device=CARD)
    expected = attention(*inputs, score_mod=mods.softcap(2.0), backend="cudnn")
    seen = attention(
        *(x.permute(order).contiguous() for x in inputs), score_mod=mods.softcap(2.0), layout=layout, backend="cudnn"
    )
    torch.testing.assert_close(seen, expected.permute(order))


def test_views_at_odd_places_and_expanded_keys():
    q, k, v = random_qkv(B, H, 257, D, dtype=torch.bfloat16, device=CARD)
    wide = torch.zeros(B, H, 256, D + 8, dtype=torch.bfloat16, device=CARD)[..., 4 : D + 4]
    check(None, mods.causal, (q[:, :, 1:], k[:, :, :256], v[:, :, 1:]))
    wide.copy_(q[:, :, 1:])
    check(None, None, (wide, k[:, :, 1:], v[:, :, 1:]))
    one = k[:1, :1]
    seen = attention(q, one.expand_as(k), one.expand_as(v), mask_mod=mods.causal, backend="cudnn")
    expected = attention(q, one.expand_as(k).contiguous(), one.expand_as(v).contiguous(), mask_mod=mods.causal, backend="cudnn")
    torch.testing.assert_close(seen, expected)


def test_new_values_build_nothing():
    q, k, v = (x.requires_grad_() for x in random_qkv(1, 2, 256, 64, dtype=torch.bfloat16, device=CARD))

    def call(cap, slope):
        mod = lambda s, b, h, i, j: cap * torch.tanh(s / cap) + slope[h]
        out = attention(q, k, v, score_mod=mod, backend="cudnn")
        out.sum().backward()
        return out.detach(), dense_attention(q, k, v, mod, None, work=torch.float32)[0].detach()

    call(1.5, tensor(2))
    before = ENGINE.cache.info()
    for n in range(50):
        seen, expected = call(0.5 + n, tensor(2, seed=n))
        torch.testing.assert_close(seen.float(), expected.float(), rtol=2e-2, atol=2e-2)
    after = ENGINE.cache.info()
    assert (after.builds, after.traces - before.traces) == (before.builds, 50)


def test_two_mods_interleaved():
    q, k, v = random_qkv(1, 2, 256, 64, dtype=torch.bfloat16, device=CARD)
    pool = [lambda s, b, h, i, j: s * 0.5, lambda s, b, h, i, j: s * 0.5 + 1.0 * j / 100]
    expected = [dense_attention(q, k, v, mod, None, work=torch.float32)[0] for mod in pool]
    for _ in range(5):
        for mod, want in zip(pool, expected, strict=True):
            seen = attention(q, k, v, score_mod=mod, backend="cudnn")
            torch.testing.assert_close(seen.float(), want.float(), rtol=2e-2, atol=2e-2)


def test_threads_and_streams():
    q, k, v = random_qkv(1, 2, 256, 64, dtype=torch.bfloat16, device=CARD)
    caps = [1.0 + n for n in range(8)]
    expected = [attention(q, k, v, score_mod=mods.softcap(cap), backend="cudnn") for cap in caps]
    torch.cuda.synchronize()
    problems = []

    def work(n):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(20):
                    seen = attention(q, k, v, score_mod=mods.softcap(caps[n]), backend="cudnn")
            stream.synchronize()
            torch.testing.assert_close(seen, expected[n])
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_graph_capture_and_replay():
    inputs = [x.requires_grad_() for x in random_qkv(1, 2, 256, 64, dtype=torch.bfloat16, device=CARD)]
    mask = lambda b, h, i, j: docs[0, i] == docs[0, j]

    def step():
        out = attention(*inputs, score_mod=mods.softcap(2.0), mask_mod=mask, backend="cudnn")
        return out, *torch.autograd.grad(out.square().sum(), inputs)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for n, x in enumerate(inputs):
            x.copy_(random_qkv(1, 2, 256, 64, seed=7, dtype=torch.bfloat16, device=CARD)[n])
    graph.replay()
    seen = [x.clone() for x in captured]
    for found, expected in zip(seen, step(), strict=True):
        torch.testing.assert_close(found, expected)


def test_deterministic_gradients_are_the_same_from_run_to_run():
    inputs = [x.requires_grad_() for x in random_qkv(2, 4, 512, 64, Hkv=2, dtype=torch.bfloat16, device=CARD)]
    torch.use_deterministic_algorithms(True)
    try:
        runs = [
            torch.autograd.grad(attention(*inputs, score_mod=mods.softcap(2.0), backend="cudnn").square().sum(), inputs)
            for _ in range(5)
        ]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(x, y) for run in runs[1:] for x, y in zip(run, runs[0], strict=True))


REFUSED = {
    "fp32": (lambda: random_qkv(1, 2, 64, 64, device=CARD), {}, "dtype: f32 asked, f16 or bf16 served"),
    "head dim": (lambda: half(1, 2, 64, 36), {}, "head_dim: 36 and 36 asked"),
    "a table by distance": (
        lambda: half(1, 2, 64, 64), {"score_mod": lambda s, b, h, i, j: s + col[0, i - j + 64]}, "read at computed positions"),
    "a short tensor": (
        lambda: half(1, 2, 400, 64), {"mask_mod": lambda b, h, i, j: (j < 300) & (i < 300) & flags[j]}, "shorter than kv"),
    "integers beyond 32 bits": (
        lambda: half(1, 2, 64, 64), {"mask_mod": lambda b, h, i, j: i * 2**40 < j * 2**40 + 5}, "beyond 32 bits"),
}  # fmt: skip


def half(*sizes):
    return random_qkv(*sizes, dtype=torch.bfloat16, device=CARD)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_what_is_served(name):
    make, options, text = REFUSED[name]
    with pytest.raises(flexsdpa.UnsupportedError) as caught:
        attention(*make(), backend="cudnn", **options)
    assert text in str(caught.value)
    assert "a named backend never falls back" in str(caught.value)


def test_large_document_numbers_are_not_cut_off():
    q, k, v = half(1, 2, 256, 64)
    ids = torch.where(torch.arange(256, device=CARD) < 128, 0, 2**32)
    mask = lambda b, h, i, j: ids[i] == ids[j]
    with pytest.raises(flexsdpa.UnsupportedError, match="integers beyond 32 bits"):
        attention(q, k, v, mask_mod=mask, backend="cudnn")
    small = (ids > 0).long()
    expected = attention(q, k, v, mask_mod=lambda b, h, i, j: small[i] == small[j], backend="cudnn")
    torch.testing.assert_close(attention(q, k, v, mask_mod=mask), expected, rtol=2e-2, atol=2e-2)


def test_auto_chooses_cudnn_per_direction():
    q, k, v = (x.requires_grad_() for x in half(1, 2, 256, 64))
    told = explain(q, k, v, score_mod=mods.softcap(2.0))
    assert told.forward.decision.backend == "cudnn"
    weight = tensor(2).requires_grad_()
    told = explain(q, k, v, score_mod=lambda s, b, h, i, j: s * weight[h])
    assert (told.forward.decision.backend, told.backward.decision.backend) == ("cudnn", "reference")
    out = attention(q, k, v, score_mod=lambda s, b, h, i, j: s * weight[h])
    grads = torch.autograd.grad(out.square().sum(), [q, k, v, weight])
    exact = dense_attention(q, k, v, lambda s, b, h, i, j: s * weight[h], None, work=torch.float32)[0]
    for seen, expected in zip(grads, torch.autograd.grad(exact.square().sum(), [q, k, v, weight]), strict=True):
        torch.testing.assert_close(seen.float(), expected.float(), rtol=3e-2, atol=3e-2 * float(expected.abs().max()))


def test_a_plan_keeps_no_tensor_alive():
    def call():
        table = tensor(256)
        attention(*half(1, 2, 256, 64), score_mod=lambda s, b, h, i, j: s + table[j], backend="cudnn")

    call()
    gc.collect()
    before = torch.cuda.memory_allocated()
    call()
    gc.collect()
    assert torch.cuda.memory_allocated() <= before
