"""The registered operators: opcheck, fake tensors, meta, export, flop counts, serialisation."""

import copy
import pickle

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

import flexsdpa.torch
from flexsdpa import mods
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.torch import MaskMod, ScoreMod, attention

FORWARD, BACKWARD = torch.ops.flexsdpa.forward.default, torch.ops.flexsdpa.backward.default


def program_of(score_mod, mask_mod=None):
    """Text, arrays and scalars of mods, as attention gives them to the operator."""
    seen = {}

    class Spy(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is FORWARD:
                seen["args"] = args
            return func(*args, **(kwargs or {}))

    with Spy():
        attention(*random_qkv(2, 4, 9, 8, Hkv=2), score_mod=score_mod, mask_mod=mask_mod)
    return seen["args"][3:6]


MODS = {
    "plain": (None, None),
    "captured": (mods.alibi(random_tensor(4)), mods.causal),
    "numbers and tables": (
        mods.chain(mods.softcap(2.5), mods.relative_bias(random_tensor(4, 17))),
        mods.document(torch.arange(9) // 4),
    ),
}


def operator_arguments(name, layout="bhsd", dtype=torch.float32):
    arrays, scalars, program = program_of(*MODS[name])
    q, k, v = random_qkv(2, 4, 9, 8, Hkv=2, Dv=6, dtype=dtype)
    if layout == "bshd":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    return q, k, v, list(arrays), scalars, program, ""


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("name", MODS)
def test_opcheck_passes_for_the_forward(name, layout):
    q, k, v, arrays, *rest = operator_arguments(name, layout)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    arrays = [a.detach().clone().requires_grad_(a.is_floating_point()) for a in arrays]
    torch.library.opcheck(FORWARD, (*leaves, arrays, *rest))


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("name", MODS)
@pytest.mark.parametrize("lse_gradient", [False, True])
def test_opcheck_passes_for_the_backward(name, layout, lse_gradient):
    q, k, v, arrays, *rest = operator_arguments(name, layout)
    out, lse = FORWARD(q, k, v, arrays, *rest)
    needs = [True, True, True, *[a.is_floating_point() for a in arrays]]
    grad_lse = torch.ones_like(lse) if lse_gradient else None
    arguments = (torch.ones_like(out), grad_lse, q, k, v, out, lse, arrays, *rest, needs)
    torch.library.opcheck(BACKWARD, arguments, test_utils=("test_schema", "test_faketensor"))


SIZES = [
    (2, 4, 2, 9, 9, 8, 8),
    (1, 6, 2, 1, 40, 3, 5),
    (0, 4, 4, 5, 5, 8, 8),
    (2, 2, 1, 0, 3, 8, 2),
    (2, 2, 2, 3, 0, 8, 8),
    (2, 8, 1, 130, 7, 72, 80),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dims", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3), (0, 1, 3, 2)], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_fake_kernels_promise_what_real_kernels_give(sizes, dims, dtype):
    B, Hq, Hkv, Sq, Skv, D, Dv = sizes
    back = [dims.index(d) for d in range(4)]
    q, k, v = (x.permute(dims).contiguous().permute(back) for x in random_qkv(B, Hq, Sq, D, Hkv=Hkv, Skv=Skv, Dv=Dv, dtype=dtype))
    table = random_tensor(Hq, dtype=torch.bfloat16)

    def run(q, k, v, table):
        leaves = [x.detach().requires_grad_() for x in (q, k, v, table)]
        out, lse = attention(*leaves[:3], score_mod=lambda s, b, h, i, j: s * leaves[3][h], return_lse=True)
        return [out, lse, *torch.autograd.grad((out.sum() + lse.sum()), leaves)]

    with FakeTensorMode() as mode:
        promised = run(*(mode.from_tensor(x) for x in (q, k, v, table)))
    for real, fake in zip(run(q, k, v, table), promised, strict=True):
        assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
        assert fake.stride() == real.stride()


def test_meta_tensors_give_shapes_and_cost_nothing():
    q, k, v = (torch.empty(1, 8, 1 << 20, 64, device="meta", requires_grad=True) for _ in range(3))
    table = torch.empty(8, device="meta", requires_grad=True)
    out, lse = attention(q, k, v, score_mod=mods.alibi(table), mask_mod=mods.causal, return_lse=True)
    assert (out.shape, lse.shape, out.device.type) == ((1, 8, 1 << 20, 64), (1, 8, 1 << 20), "meta")
    out.sum().backward()
    assert (q.grad.shape, table.grad.shape) == (q.shape, table.shape)


@pytest.mark.parametrize("name", MODS)
def test_the_flop_counter_counts_both_products_and_their_five_of_backward(name):
    score_mod, mask_mod = MODS[name]
    q, k, v = (x.requires_grad_() for x in random_qkv(2, 4, 9, 8, Hkv=2, Dv=6))
    with FlopCounterMode(display=False) as forward:
        out = attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    scores = 2 * 4 * 9 * 9
    assert forward.get_total_flops() == 2 * scores * (8 + 6)
    assert backward.get_total_flops() == 2 * scores * (3 * 8 + 2 * 6)


def test_flops_are_those_that_torch_counts_for_its_own_attention():
    q, k, v = random_qkv(2, 4, 16, 8)
    with FlopCounterMode(display=False) as counter:
        out = attention(*(x.requires_grad_() for x in (q, k, v)))
        out.sum().backward()
    shapes = q.shape, k.shape, v.shape
    assert counter.get_total_flops() == sdpa_flop_count(*shapes) + sdpa_backward_flop_count(out.shape, *shapes)


class Block(torch.nn.Module):
    """Attention with everything a model captures: a parameter, a buffer, a float, an int."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48)
        self.bias = torch.nn.Parameter(random_tensor(2, 64) * 0.1)
        self.register_buffer("slopes", torch.tensor([0.5, 0.25]))
        self.cap, self.window = 12.5, 5

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))

        def score_mod(score, b, h, q_idx, kv_idx):
            score = score - self.slopes[h] * (q_idx - kv_idx).abs() + self.bias[h, (q_idx - kv_idx) % 64]
            return self.cap * torch.tanh(score / self.cap)

        out = attention(q, k, v, score_mod=score_mod, mask_mod=mods.sliding_window(self.window))
        return out.transpose(1, 2).flatten(2)


@pytest.mark.slow
def test_a_block_exports_and_runs_at_another_length():
    torch.manual_seed(0)
    block, x = Block(), torch.randn(2, 12, 16)
    length = torch.export.Dim("length", min=2, max=512)
    exported = torch.export.export(block, (x,), dynamic_shapes=({1: length},))
    calls = [n for n in exported.graph.nodes if n.target is FORWARD]
    assert len(calls) == 1
    for other in (x, torch.randn(2, 31, 16)):
        torch.testing.assert_close(exported.module()(other), block(other))


@pytest.mark.slow
def test_an_exported_block_is_saved_loaded_and_run_without_the_mod(tmp_path, fresh_process):
    torch.manual_seed(0)
    block, x = Block(), torch.randn(2, 12, 16)
    torch.export.save(torch.export.export(block, (x,)), tmp_path / "block.pt2")
    torch.save((x, block(x).detach()), tmp_path / "values.pt")
    printed = fresh_process(f"""
        import torch, flexsdpa.torch
        x, expected = torch.load("{tmp_path}/values.pt")
        module = torch.export.load("{tmp_path}/block.pt2").module()
        torch.testing.assert_close(module(x), expected)
        print("same")
    """)
    assert printed.endswith("same")


SNAPSHOTS = {
    "score": lambda: ScoreMod(mods.chain(mods.softcap(3.0), mods.alibi(torch.tensor([0.5, 0.1])))),
    "mask": lambda: MaskMod(mods.and_masks(mods.causal, mods.document(torch.arange(9) // 4))),
    "mod of the package": lambda: mods.relative_bias(random_tensor(2, 17)),
    "mask of the package": lambda: mods.and_masks(mods.sliding_window(3), mods.not_mask(mods.padding(torch.tensor([9, 2])))),
    "causal": lambda: mods.causal,
    "causal with an offset": lambda: mods.causal(offset=torch.tensor([1, 2])),
    "t5": lambda: mods.t5_bias(random_tensor(8, 2)),
}


@pytest.mark.parametrize(
    "copier", [copy.deepcopy, copy.copy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "copy", "pickle"]
)
@pytest.mark.parametrize("name", SNAPSHOTS)
def test_mods_can_be_copied_and_pickled(name, copier):
    mod = SNAPSHOTS[name]()
    role = "mask_mod" if isinstance(mod, MaskMod) or "mask" in name or "causal" in name else "score_mod"
    q, k, v = random_qkv(2, 2, 9, 8)
    assert torch.equal(attention(q, k, v, **{role: copier(mod)}), attention(q, k, v, **{role: mod}))


def test_a_pickled_snapshot_holds_no_code(tmp_path, fresh_process):
    strength = 2.5
    table = random_tensor(2, 9)
    mod = ScoreMod(lambda s, b, h, i, j: s * strength + table[h, j])
    assert b"lambda" not in pickle.dumps(mod)
    torch.save((mod, *random_qkv(2, 2, 9, 8)), tmp_path / "mod.pt")
    expected = attention(*random_qkv(2, 2, 9, 8), score_mod=mod)
    torch.save(expected, tmp_path / "expected.pt")
    assert fresh_process(f"""
        import torch
        from flexsdpa.torch import attention
        mod, q, k, v = torch.load("{tmp_path}/mod.pt", weights_only=False)
        print(torch.equal(attention(q, k, v, score_mod=mod), torch.load("{tmp_path}/expected.pt")))
    """) == "True"  # fmt: skip


def test_a_snapshot_freezes_numbers_and_follows_tensors():
    gain, table = 2.0, torch.ones(2)
    mod = ScoreMod(lambda s, b, h, i, j: s * gain * table[h])
    q, k, v = random_qkv(2, 2, 9, 8)
    before = attention(q, k, v, score_mod=mod)
    gain = 5.0
    assert torch.equal(attention(q, k, v, score_mod=mod), before)
    table.mul_(2.5)
    torch.testing.assert_close(attention(q, k, v, score_mod=mod), attention(q, k, v, score_mod=lambda s, b, h, i, j: s * 5.0))


def test_a_snapshot_gives_gradients_and_takes_part_in_other_mods():
    table = random_tensor(2, 17).requires_grad_()
    bias = ScoreMod(mods.relative_bias(table))
    q, k, v = random_qkv(2, 2, 9, 8)
    mixed = lambda s, b, h, i, j: bias(s * 0.5, b, h, i, j) * 2.0
    plain = lambda s, b, h, i, j: (s * 0.5 + table[h, i - j + 8]) * 2.0
    results = [attention(q, k, v, score_mod=mod) for mod in (mixed, plain)]
    assert torch.equal(*results)
    grads = [torch.autograd.grad(out.square().sum(), table)[0] for out in results]
    assert torch.equal(*grads)
    assert grads[0].any()


def test_a_copied_module_and_its_snapshot_share_the_copied_parameter():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.slopes = torch.nn.Parameter(torch.ones(2))
            self.mod = ScoreMod(mods.alibi(self.slopes))

    layer = Layer()
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        copied.slopes.mul_(0.25)
    q, k, v = random_qkv(2, 2, 9, 8)
    out = attention(q, k, v, score_mod=copied.mod)
    torch.testing.assert_close(out, attention(q, k, v, score_mod=mods.alibi(torch.full((2,), 0.25))))
    assert torch.autograd.grad(out.square().sum(), copied.slopes)[0].any()
    torch.testing.assert_close(attention(q, k, v, score_mod=layer.mod), attention(q, k, v, score_mod=mods.alibi(torch.ones(2))))


def test_a_snapshot_of_the_wrong_kind_is_an_error():
    with pytest.raises(flexsdpa.TraceError, match="a MaskMod was given as score_mod: it is a mask_mod"):
        attention(*random_qkv(), score_mod=MaskMod(mods.causal))
    with pytest.raises(flexsdpa.TraceError, match="a ScoreMod was given as mask_mod: it is a score_mod"):
        attention(*random_qkv(), mask_mod=ScoreMod(mods.softcap(2.0)))
    with pytest.raises(flexsdpa.TraceError, match="MaskMod can only be called inside a mod or given to attention"):
        MaskMod(mods.causal)(0, 0, 1, 2)


def test_a_snapshot_prints_its_program():
    assert repr(MaskMod(mods.causal)) == "MaskMod(score = score; keep = kv_idx <= q_idx)"
