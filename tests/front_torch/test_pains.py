"""What users of attention libraries ran into and no other file shows; docs/pains.md has the whole list."""

import logging
import sys
import time

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import flexsdpa
from flexsdpa import mods
from flexsdpa.backends.reference import torch_call
from flexsdpa.testing.budgets import assert_within_budget
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.testing.oracles import dense_attention, run_both
from flexsdpa.torch import attention, explain, varlen_attention

BEYOND_32_BITS = 2**31 + 2**10


def test_beyond_the_recompile_limit_of_torch_the_same_plans_serve(empty_cache, fresh_compiler, caplog):
    """torch gives up compiling after some variants and calls the function as it is: that path is no other kernel."""
    limit = torch._dynamo.config.recompile_limit
    pool = [eval(f"lambda s, b, h, i, j: s * {n + 2} - {n} * (i - j) // 3") for n in range(limit + 4)]
    compiled = torch.compile(lambda mod, q, k, v: attention(q, k, v, score_mod=mod), backend="aot_eager")
    inputs = random_qkv(1, 2, 9, 8)
    with caplog.at_level(logging.WARNING, "torch._dynamo"):
        seen = [compiled(mod, *inputs) for mod in pool]
    assert "recompile_limit" in caplog.text
    assert empty_cache().builds == len(pool)
    for mod, out in zip(pool, seen, strict=True):
        assert torch.equal(out, attention(*inputs, score_mod=mod))
    info = empty_cache()
    assert (info.builds, info.fallbacks) == (len(pool), 0)


DIFFERENT = {
    "two lambdas": lambda: [lambda s, b, h, i, j: s * 3.0, lambda s, b, h, i, j: s + 0.5 * (j - i)],
    "defaults": lambda: [lambda s, b, h, i, j, c=c: s * c - c * j for c in (0.25, 2, 3.5)],
    "keyword defaults": lambda: [lambda s, b, h, i, j, *, c=c: s * c - c * j for c in (0.25, 2, 3.5)],
    "default tensors": lambda: [lambda s, b, h, i, j, t=t: s * t[h] for t in random_tensor(3, 2)],
    "objects": lambda: [mods.softcap(cap) for cap in (1.5, 0.25, 40.0)],
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_mods_that_differ_never_share_a_compiled_graph(name, fresh_compiler):
    compiled = torch.compile(lambda mod, q, k, v: attention(q, k, v, score_mod=mod), backend="aot_eager", fullgraph=True)
    inputs = random_qkv(1, 2, 9, 8)
    pool = DIFFERENT[name]()
    for mod in [*pool, *pool]:
        torch.testing.assert_close(compiled(mod, *inputs), attention(*inputs, score_mod=mod))


def test_a_table_and_a_number_sized_by_the_length_make_at_most_two_graphs(fresh_compiler):
    def call(q, k, v, table):
        length = q.shape[2]
        mod = lambda s, b, h, i, j: s + table[(i + j - length // 2).clamp(0, length - 1), h]
        return attention(q, k, v, score_mod=mod, mask_mod=lambda b, h, i, j: i - j < length // 2)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(call, backend=counter, fullgraph=True)
    for length in (100, 130, 64, 7, 260):
        inputs = (*random_qkv(2, 2, length, 8), random_tensor(length, 2))
        torch.testing.assert_close(compiled(*inputs), call(*inputs))
    assert counter.frame_count <= 2


DILATED = """
import torch
from flexsdpa.torch import attention
def resident(field):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field))
def run(Sq, Skv):
    q, k = torch.zeros(1, 1, Sq, 1), torch.zeros(1, 1, Skv, 1)
    attention(q, k, k, mask_mod=lambda b, h, i, j: (i - j) % 3 == 0)
run(200, 2000)
before = resident("VmHWM")
run(2000, 100_000)
print(resident("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_mask_without_empty_blocks_is_evaluated_tile_by_tile(fresh_process):
    assert int(fresh_process(DILATED)) < 60e6  # the mask is 200 MB, the scores are 800 MB


def test_a_mask_that_reads_no_data_is_analysed_once(empty_cache, monkeypatch):
    """Blocks of a mask of positions are found once a direction; those of a mask that reads tensors at every call."""
    analysed = []
    analyse = torch_call.block_rows
    monkeypatch.setattr(torch_call, "block_rows", lambda *args: analysed.append(1) or analyse(*args))

    def steps(mask, n):
        for _ in range(n):
            q, k, v = (x.requires_grad_() for x in random_qkv(1, 2, 700, 8))
            attention(q, k, v, mask_mod=mask).sum().backward()
        return len(analysed)

    assert steps(mods.sliding_window(50), 4) == 2
    assert steps(mods.document(torch.arange(700) // 90), 4) == 2 + 8


@pytest.mark.slow
def test_finding_the_blocks_of_packed_documents_costs_less_than_their_attention(monkeypatch):
    """128 documents of 512 tokens in one row. Measured: a twentieth of the forward."""
    spent = []
    analyse = torch_call.block_rows

    def timed(*args):
        start = time.perf_counter()
        rows = analyse(*args)
        spent.append(time.perf_counter() - start)
        return rows

    monkeypatch.setattr(torch_call, "block_rows", timed)
    q, k, v = random_qkv(1, 1, 128 * 512, 64)
    shares = []
    for step in range(4):
        ids = (torch.arange(128 * 512) + 31 * step) // 512
        spent.clear()
        start = time.perf_counter()
        attention(q, k, v, mask_mod=mods.and_masks(mods.causal, mods.document(ids)))
        shares.append(sum(spent) / (time.perf_counter() - start))
    assert 0 < min(shares) < 0.5


@pytest.fixture
def sparse_tensor(tmp_path):
    """Makes tensors of any size that occupy what is written to them: they lie in a file with holes."""

    def make(elements, dtype):
        path = tmp_path / f"{elements}-{dtype}"
        with path.open("wb") as file:
            file.truncate(elements * dtype.itemsize)
        return torch.from_file(str(path), shared=True, size=elements, dtype=dtype)

    return make


@pytest.mark.skipif(sys.platform != "linux", reason="needs files with holes")
def test_a_captured_table_of_more_than_2_to_the_31_elements_is_read_where_it_should_be(sparse_tensor):
    side = 46341
    table = sparse_tensor(side * side, torch.bool).view(side, side)
    assert table.numel() > 2**31
    table[-1, :7] = table[-2, 3:5] = True
    for keys in (64, 600):
        q, k, v = random_qkv(1, 2, 2, 8, Skv=keys)
        out = attention(q, k, v, mask_mod=lambda b, h, i, j: table[side - 1 - i, j])
        expected, _ = dense_attention(q, k, v, None, lambda b, h, i, j: torch.where(i == 0, j < 7, (j >= 3) & (j < 5)))
        torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(sys.platform != "linux", reason="needs files with holes")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mod", [None, mods.softcap(2.0)], ids=["plain", "mod"])
def test_strides_beyond_32_bits_are_followed(mod, dtype, sparse_tensor):
    q, k, v = random_qkv(2, 2, 40, 8, dtype=dtype)
    far = sparse_tensor(BEYOND_32_BITS + k[0].numel(), dtype).as_strided(k.shape, (BEYOND_32_BITS, *k.stride()[1:]))
    far.copy_(k)
    results = []
    for keys in (far, k):
        leaves = [x.detach().requires_grad_() for x in (q, keys, v)]
        assert leaves[1].stride() == keys.stride()
        out = attention(*leaves, score_mod=mod, mask_mod=mods.causal)
        results.append([out, *torch.autograd.grad(out.float().square().sum(), leaves)])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(("D", "Dv"), [(72, 72), (80, 80), (96, 96), (192, 128)])
def test_a_head_dim_that_trains_also_decodes(D, Dv):
    for Sq in (64, 1):
        inputs = random_qkv(1, 4, Sq, D, Hkv=2, Skv=64, Dv=Dv)
        assert_within_budget(run_both(attention, inputs, (), lambda: (None, mods.causal(offset=64 - inputs[0].shape[2]))))


def test_a_mask_or_a_sink_on_another_device_is_an_error_that_names_it():
    lengths = torch.ones(2, dtype=torch.int64, device="meta")
    with pytest.raises(
        flexsdpa.RequestError, match=r"captured tensor lengths of shape \(2,\) is on meta, but q is on cpu: move it"
    ):
        attention(*random_qkv(2, 2, 9, 8), mask_mod=lambda b, h, i, j: j < lengths[b])
    with pytest.raises(flexsdpa.RequestError, match="sink is on meta, but q is on cpu"):
        attention(*random_qkv(2, 2, 9, 8), sink=torch.zeros(2, device="meta"))


def test_a_table_made_for_shorter_rows_or_a_smaller_batch_is_an_error():
    ids = torch.arange(128).view(1, 128) // 10
    attention(*random_qkv(1, 2, 128, 4), mask_mod=lambda b, h, i, j: ids[b, i] == ids[b, j])
    with pytest.raises(flexsdpa.ReadError, match="'ids' was read out of range: index 128 in dimension 1 of size 128"):
        attention(*random_qkv(1, 2, 256, 4), mask_mod=lambda b, h, i, j: ids[b, i] == ids[b, j])
    with pytest.raises(flexsdpa.ReadError, match="'ids' was read out of range: index 1 in dimension 0 of size 1"):
        attention(*random_qkv(2, 2, 128, 4), mask_mod=lambda b, h, i, j: ids[b, i] == ids[b, j])


def test_explain_gives_every_backends_reasons_for_both_directions_and_builds_nothing(empty_cache):
    q, k, v = random_qkv(1, 2, 8, 16)
    table = random_tensor(2)
    why = explain(q, k, v, score_mod=lambda s, b, h, i, j: s * table[h], mask_mod=mods.sliding_window(3))
    for direction in (why.forward, why.backward):
        verdicts = {verdict.backend: [refusal.rule for refusal in verdict.refusals] for verdict in direction.decision.verdicts}
        assert verdicts["sdpa"] == ["sdpa.score-mod", "sdpa.mask"]
        assert verdicts["reference"] == []
        assert direction.decision.backend == "reference"
        assert direction.structure == ("window: -2 <= kv_idx - q_idx <= 0",)
    assert "score * table[h]" in str(why)
    assert explain(q, k, v, return_lse=True).backward.decision.backend == "reference"
    assert explain(q, k, v).backward.decision.backend == "sdpa"
    assert empty_cache().builds == 0


def test_explain_notes_a_plain_causal_mask_over_more_keys_than_queries():
    causal = lambda b, h, i, j: i >= j
    q, k, v = random_qkv(1, 2, 1, 8, Skv=100)
    (note,) = explain(q, k, v, mask_mod=causal).forward.notes
    assert "query 0 of 1 sees key 0 of 100 and no later one" in note
    assert "q_offset (here 99)" in note
    assert explain(q, k, v, mask_mod=causal, q_offset=99).forward.notes == ()
    assert explain(*random_qkv(1, 2, 9, 8), mask_mod=causal).forward.notes == ()


def test_packed_and_nested_sequences_run_under_compile_outside_the_graph(fresh_compiler):
    """Their offsets are read on the host, so a graph breaks there; fullgraph=True is torch's error, not a wrong answer."""
    offsets = torch.tensor([0, 11, 24, 39])
    rows = random_tensor(39, 4, 8)
    packed = lambda x, offsets: varlen_attention(x, x, x, offsets, mask_mod=mods.causal)
    parts = torch.nested.nested_tensor([rows[:11], rows[11:24], rows[24:]], layout=torch.jagged).transpose(1, 2)
    nested = lambda x: attention(x, x, x, mask_mod=mods.causal)
    expected = packed(rows, offsets)
    for call, inputs in ((packed, (rows, offsets)), (nested, (parts,))):
        with pytest.raises(torch._dynamo.exc.TorchDynamoException):
            torch.compile(call, backend="aot_eager", fullgraph=True)(*inputs)
    torch._dynamo.reset()  # or the second compilation would be served by the first
    torch.testing.assert_close(torch.compile(packed, backend="aot_eager")(rows, offsets), expected)
    torch.testing.assert_close(torch.compile(nested, backend="aot_eager")(parts).transpose(1, 2).values(), expected)


def test_packed_sequences_decode_with_an_offset_each():
    rows, cache = random_tensor(10, 4, 8, seed=1), random_tensor(40, 4, 8, seed=2)
    offsets, kv_offsets, shift = torch.tensor([0, 4, 10]), torch.tensor([0, 20, 40]), torch.tensor([16, 14])
    out = varlen_attention(rows, cache, cache, offsets, kv_offsets=kv_offsets, mask_mod=mods.causal(offset=shift))
    for n in range(2):
        q = rows[offsets[n] : offsets[n + 1]].transpose(0, 1)[None]
        k = cache[kv_offsets[n] : kv_offsets[n + 1]].transpose(0, 1)[None]
        alone = attention(q, k, k, mask_mod=mods.causal, q_offset=int(shift[n]))[0].transpose(0, 1)
        torch.testing.assert_close(out[offsets[n] : offsets[n + 1]], alone)


def test_a_bias_of_any_broadcast_shape_and_dtype_is_learned():
    """Sizes of one are read at index 0; the gradient has the shape and the dtype of the bias, whatever q is."""
    q, k, v = random_qkv(3, 4, 20, 8, dtype=torch.bfloat16)
    for shape in [(1, 1, 1, 20), (3, 1, 1, 20), (1, 4, 20, 20), (3, 4, 1, 1), (1, 1, 20, 1), (3, 4, 20, 20)]:
        bias = random_tensor(*shape, seed=3).requires_grad_()
        at = lambda n, size: n if size > 1 else 0

        def mod(s, b, h, i, j):
            return s + bias[at(b, bias.shape[0]), at(h, bias.shape[1]), at(i, bias.shape[2]), at(j, bias.shape[3])]

        out, lse = attention(q, k, v, score_mod=mod, return_lse=True)
        (grad,) = torch.autograd.grad(out.float().square().sum() + lse.sum(), bias)
        exact = bias.detach().double().requires_grad_()
        scores = q.double() @ k.double().mT / 8**0.5 + exact
        dense = scores.softmax(-1) @ v.double()
        (expected,) = torch.autograd.grad(dense.square().sum() + scores.logsumexp(-1).sum(), exact)
        assert (grad.shape, grad.dtype) == (shape, torch.float32)
        torch.testing.assert_close(grad.double(), expected, rtol=3e-2, atol=3e-2)
