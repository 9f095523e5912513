"""The contract of the reference backend on CUDA devices. Run by hand on a machine with a card."""

import pytest
import torch

import flexsdpa
from flexsdpa import mods
from flexsdpa.engine import ENGINE
from flexsdpa.testing.budgets import assert_within_budget
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.testing.oracles import dense_attention, run_both
from flexsdpa.torch import attention, varlen_attention

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]
CARD = "cuda"
B, H, S, D = 2, 4, 70, 16
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
REFERENCE = {"backend": "reference"}


def qkv(*sizes, **options):
    return random_qkv(*(sizes or (B, H, S, D)), device=CARD, **options)


def tensor(*shape, **options):
    return random_tensor(*shape, device=CARD, **options)


def documents():
    return (torch.arange(B * S, device=CARD).view(B, S) // 23) % 5


SCORES = {
    "plain": ((), lambda: None),
    "softcap": ((), lambda: mods.softcap(2.0)),
    "alibi": ((H,), mods.alibi),
    "relative bias": ((H, 2 * S - 1), mods.relative_bias),
    "t5": ((8, H), mods.t5_bias),
    "buckets hit many times": ((3,), lambda t: lambda s, b, h, i, j: s * t[(i * j) % 3]),
    "pair bias": ((B, H, S, S), lambda t: lambda s, b, h, i, j: s + t[b, h, i, j]),
}
MASKS = {
    "none": lambda: None,
    "causal": lambda: mods.causal,
    "window": lambda: mods.sliding_window(9),
    "documents": lambda: mods.and_masks(mods.causal, mods.document(documents())),
    "rows without keys": lambda: mods.padding(torch.tensor([S, 11], device=CARD), torch.tensor([S, 0], device=CARD)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_forward_lse_and_gradients_are_exact(score, mask, dtype):
    shape, make = SCORES[score]
    captured = [tensor(*shape, dtype=dtype, seed=5)] if shape else []
    inputs = qkv(B, H, S, D, Hkv=2, dtype=dtype)
    judged = run_both(attention, inputs, captured, lambda *c: (make(*c), MASKS[mask]()), **REFERENCE)
    assert_within_budget(judged, factor=4.0)  # twice the CPU's: the order of sums is the card's own


@pytest.mark.parametrize(
    ("Sq", "Skv", "D", "Dv"), [(1, 300, 16, 16), (300, 1, 16, 8), (130, 257, 72, 40), (5, 129, 3, 1), (257, 130, 192, 128)]
)
def test_any_length_and_head_dim(Sq, Skv, D, Dv):
    inputs = qkv(2, 6, Sq, D, Hkv=2, Skv=Skv, Dv=Dv)
    assert_within_budget(run_both(attention, inputs, (), lambda: (mods.softcap(2.0), mods.causal(offset=Skv - Sq)), **REFERENCE))


@pytest.mark.parametrize("tiles", [{"tile_q": 7, "tile_kv": 9}, {"tile_elements": 4000}], ids=str)
def test_small_tiles_give_the_same(tiles):
    with flexsdpa.options(**tiles):
        captured = [tensor(H, 2 * S - 1)]
        assert_within_budget(run_both(attention, qkv(), captured, lambda t: (mods.relative_bias(t), mods.causal), **REFERENCE))


def test_empty_calls_launch_nothing_that_fails():
    for sizes in ({"B": 0}, {"Sq": 0}, {"Skv": 0}):
        leaves = [x.requires_grad_() for x in random_qkv(**{"B": 2, "Sq": 4, **sizes}, device=CARD)]
        out, lse = attention(*leaves, score_mod=mods.softcap(2.0), return_lse=True, **REFERENCE)
        torch.autograd.grad(out.sum(), leaves)
        assert not out.any()
        assert torch.equal(lse, torch.full_like(lse, -torch.inf)) or not lse.numel()


def test_views_are_read_where_they_are_and_the_result_follows_q():
    packed = tensor(B, S, 3, H, D)
    views = packed.permute(2, 0, 3, 1, 4).unbind(0)
    out = attention(*views, mask_mod=mods.causal, **REFERENCE)
    torch.testing.assert_close(out, attention(*(x.contiguous() for x in views), mask_mod=mods.causal, **REFERENCE))
    assert out.transpose(1, 2).is_contiguous()


# Reads out of range. On a card they would be an assert that kills the context, so they are all clamped.


def test_reads_out_of_range_at_masked_positions_are_harmless():
    table, longer = tensor(20), torch.cat([tensor(20), tensor(2 * S)])
    results = []
    for t in (table, longer):
        leaves = [x.requires_grad_() for x in (*qkv(), t.clone())]
        mod = lambda s, b, h, i, j: torch.where(i < 20, s + leaves[3][i], s) * leaves[3][j]
        out, lse = attention(*leaves[:3], score_mod=mod, mask_mod=lambda b, h, i, j: j < 20, return_lse=True, **REFERENCE)
        grads = torch.autograd.grad(out.square().sum() + lse.sum(), leaves)
        results.append([out, lse, *grads[:3], grads[3][:20]])
    torch.testing.assert_close(*results)


def test_a_mask_may_guard_its_own_read():
    table = tensor(20) > 0
    longer = torch.cat([table, torch.ones(S, dtype=torch.bool, device=CARD)])
    masks = [lambda b, h, i, j, t=t: (j < 20) & t[j] for t in (table, longer)]
    torch.testing.assert_close(*(attention(*qkv(), mask_mod=mask, **REFERENCE) for mask in masks))


def test_reads_out_of_range_at_kept_positions_are_an_error_and_the_card_lives_on():
    my_bias = tensor(20)
    with pytest.raises(
        flexsdpa.ReadError, match="captured tensor 'my_bias' was read out of range: index 20 in dimension 0 of size 20"
    ):
        attention(*qkv(), score_mod=lambda s, b, h, i, j: s + my_bias[j], **REFERENCE)
    with pytest.raises(flexsdpa.ReadError, match="'my_bias'"):
        attention(*qkv(), mask_mod=lambda b, h, i, j: my_bias[i] > 0, **REFERENCE)
    torch.cuda.synchronize()
    assert torch.isfinite(attention(*qkv(), **REFERENCE)).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_padding_is_not_read(value):
    lengths = torch.tensor([33, 7], device=CARD)
    inside = (torch.arange(S, device=CARD) < lengths[:, None])[:, None, :, None]
    results = []
    for filler in (0.0, value):
        leaves = [torch.where(inside, x, filler).requires_grad_() for x in qkv()]
        out = attention(*leaves, score_mod=mods.softcap(2.0), mask_mod=mods.padding(lengths, lengths), **REFERENCE)
        results.append([out, *torch.autograd.grad(out, leaves, torch.where(inside, torch.ones_like(out), filler))])
    torch.testing.assert_close(*results)


def test_nan_at_kept_positions_shows():
    q, k, v = qkv()
    v[0, 0, 17, 2] = float("nan")
    out = attention(q, k, v, mask_mod=mods.sliding_window(5), **REFERENCE)
    expected = torch.zeros(B, H, S, D, dtype=torch.bool, device=CARD)
    expected[0, 0, 17:22, 2] = True
    assert torch.equal(torch.isnan(out), expected)


# Devices.


def test_captured_tensors_on_another_device_are_named_and_numbers_go_along():
    bias, gain = torch.zeros(H), torch.tensor(2.0, requires_grad=True)
    with pytest.raises(flexsdpa.RequestError, match=r"captured tensor bias of shape \(4,\) is on cpu, but q is on cuda:0"):
        attention(*qkv(), score_mod=lambda s, b, h, i, j: s + bias[h], **REFERENCE)
    out = attention(*qkv(), score_mod=lambda s, b, h, i, j: s * gain, **REFERENCE)
    (grad,) = torch.autograd.grad(out.square().sum(), gain)
    assert grad.device.type == "cpu"
    assert grad.abs() > 0


def test_tensors_of_two_devices_are_refused():
    q, k, v = qkv()
    with pytest.raises(flexsdpa.RequestError, match="q, k and v must be on one device, got q on cuda:0 and v on cpu"):
        attention(q, k, v.cpu())


def test_the_default_device_does_not_matter():
    inputs = random_qkv(B, H, S, D)
    expected = attention(*inputs, score_mod=mods.softcap(2.0), **REFERENCE)
    torch.set_default_device(CARD)
    try:
        seen = attention(*inputs, score_mod=mods.softcap(2.0), **REFERENCE)
    finally:
        torch.set_default_device(None)
    assert torch.equal(seen, expected)


def test_the_key_of_a_plan_names_the_card():
    flexsdpa.cache_clear()
    attention(*qkv(), score_mod=mods.softcap(2.0), **REFERENCE)
    (key,) = ENGINE.cache._plans
    properties = torch.cuda.get_device_properties(0)
    assert (key.device_kind, key.device_index) == ("cuda", 0)
    assert key.device_capability == (properties.major, properties.minor)
    assert key.device_uuid == str(properties.uuid)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA cards")
def test_two_cards_have_plans_of_their_own():
    flexsdpa.cache_clear()
    results = [attention(*(x.to(f"cuda:{n}") for x in qkv()), mask_mod=mods.causal, **REFERENCE) for n in (0, 1, 0, 1)]
    assert flexsdpa.cache_info().builds == 2
    assert [x.device.index for x in results] == [0, 1, 0, 1]
    assert all(torch.equal(x.cpu(), results[0].cpu()) for x in results)


def test_a_request_that_only_the_reference_serves_counts_as_a_fallback():
    flexsdpa.cache_clear()
    attention(*qkv(1, 1, 5, 8, Dv=3), score_mod=lambda s, b, h, i, j: s * 1.25)
    fallback = any(key.backend == "reference" for key in ENGINE.cache._plans)
    assert flexsdpa.cache_info().fallbacks == int(fallback)


# Streams and graphs.


def test_work_runs_on_the_current_stream():
    side = torch.cuda.Stream()
    inputs = qkv()
    options = {"score_mod": mods.softcap(2.0), "mask_mod": mods.causal, **REFERENCE}
    expected = attention(*inputs, **options)
    torch.cuda.synchronize()
    torch.cuda._sleep(10**9)  # the default stream is busy for a while
    busy = torch.cuda.Event()
    busy.record()
    with torch.cuda.stream(side):
        out = attention(*inputs, **options)
    side.synchronize()
    assert not busy.query(), "attention waited for the default stream"
    torch.cuda.synchronize()
    torch.testing.assert_close(out, expected)


def test_backward_on_another_stream_is_right():
    side = torch.cuda.Stream()
    leaves = [x.requires_grad_() for x in (*qkv(), tensor(H))]
    expected = torch.autograd.grad(attention(*leaves[:3], score_mod=mods.alibi(leaves[3]), **REFERENCE).square().sum(), leaves)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        seen = torch.autograd.grad(attention(*leaves[:3], score_mod=mods.alibi(leaves[3]), **REFERENCE).square().sum(), leaves)
    torch.cuda.current_stream().wait_stream(side)
    torch.testing.assert_close(seen, expected)


GRAPHS = {
    "plain": lambda table: {},
    "causal": lambda table: {"mask_mod": mods.causal},
    "captured": lambda table: {"score_mod": mods.relative_bias(table), "mask_mod": mods.sliding_window(20)},
    "numbers": lambda table: {"score_mod": mods.chain(mods.softcap(3.5), mods.relative_bias(table)), "scale": 0.3},
    "data decides the mask": lambda table: {"mask_mod": lambda b, h, i, j: (table[h, i] < table[h, j]) | (i == j)},
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_forward_is_captured_in_a_graph_and_replayed_with_new_values(name):
    q, k, v, table = *qkv(1, H, 300, D), tensor(H, 599)
    options = {**GRAPHS[name](table), **REFERENCE}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        attention(q, k, v, **options)  # builds the plan
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = attention(q, k, v, return_lse=True, **options)
    for seed in (7, 8):
        for old, new in zip((q, k, v), qkv(1, H, 300, D, seed=seed), strict=True):
            old.copy_(new)
        table.copy_(tensor(H, 599, seed=seed))
        graph.replay()
        torch.testing.assert_close((out, lse), attention(q, k, v, return_lse=True, **options))


# Numerics and memory.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_two_runs_are_bitwise_equal(dtype):
    def run():
        leaves = [x.requires_grad_() for x in (*qkv(2, H, 300, D, dtype=dtype), tensor(3, dtype=dtype))]
        out = attention(
            *leaves[:3], score_mod=lambda s, b, h, i, j: s * leaves[3][(i * j) % 3], mask_mod=mods.causal, **REFERENCE
        )
        return [out, *torch.autograd.grad(out.square().sum(), leaves)]

    first = run()
    for _ in range(3):
        assert all(torch.equal(x, y) for x, y in zip(run(), first, strict=True))


def test_deterministic_algorithms_are_honoured():
    torch.use_deterministic_algorithms(True)
    try:
        table = tensor(3).requires_grad_()
        out = attention(*qkv(), score_mod=lambda s, b, h, i, j: s * table[(i * j) % 3], **REFERENCE)
        torch.autograd.grad(out.sum(), table)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_casts_as_sdpa_does(autocast):
    leaves = [x.requires_grad_() for x in qkv()]
    with torch.autocast(CARD, autocast):
        out = attention(*leaves, **REFERENCE)
        expected = torch.nn.functional.scaled_dot_product_attention(*leaves)
        assert out.dtype == expected.dtype == autocast
        grads = torch.autograd.grad(out.sum(), leaves)
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
    assert [g.dtype for g in grads] == [torch.float32] * 3


def test_fp32_stays_fp32_whatever_matmul_precision_is_set():
    q, k, v = qkv()
    expected, _ = dense_attention(q, k, v, mods.softcap(2.0))
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        out = attention(q, k, v, score_mod=mods.softcap(2.0), **REFERENCE)
    finally:
        torch.set_float32_matmul_precision(precision)
    # TF32 is the user's own wish: its 10 bits of mantissa bound the error.
    torch.testing.assert_close(out.double(), expected, rtol=5e-3, atol=5e-3)


def test_a_compiled_call_gives_what_an_eager_one_gives():
    torch._dynamo.reset()
    call = lambda q, k, v, t: attention(q, k, v, score_mod=mods.relative_bias(t), mask_mod=mods.causal, **REFERENCE)
    inputs = (*qkv(), tensor(H, 2 * S - 1))
    torch.testing.assert_close(torch.compile(call, backend="aot_eager", fullgraph=True)(*inputs), call(*inputs))


def test_packed_sequences():
    q, k, v = (x[0].transpose(0, 1) for x in qkv(1, H, S, D))
    offsets = torch.tensor([0, 20, 20, 61], device=CARD)
    out = varlen_attention(q, k, v, offsets, mask_mod=mods.causal, **REFERENCE)
    for start, end in ((0, 20), (20, 61)):
        part = [x[start:end].transpose(0, 1)[None] for x in (q, k, v)]
        torch.testing.assert_close(
            out[start:end].transpose(0, 1)[None].double(), dense_attention(*part, None, mods.causal)[0], rtol=1e-4, atol=1e-5
        )
    assert not out[61:].any()


def test_long_sequences_train_in_linear_memory():
    extra = {}
    for length in (8192, 32768):
        leaves = [x.requires_grad_() for x in qkv(1, H, length, 64)]
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        attention(*leaves, mask_mod=mods.sliding_window(512), **REFERENCE).sum().backward()
        results = 4 * leaves[0].numel() * 4 + H * length * 4  # out, dq, dk, dv; LSE
        extra[length] = torch.cuda.max_memory_allocated() - before - results
    assert extra[32768] < 200e6
    assert extra[32768] < 4.5 * max(extra[8192], 16e6)
