"""torch.compile: one graph, without breaks, for any values that a mod captures."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from flexsdpa import mods
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.torch import MaskMod, ScoreMod, attention

pytestmark = pytest.mark.usefixtures("fresh_compiler")
B, H, S, D = 2, 2, 9, 8


def graphs(call, rounds, dynamic=None):
    """How many graphs torch.compile makes of ``call(n, *inputs)`` for n in rounds; every result must equal the eager one."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(call, backend=counter, fullgraph=True, dynamic=dynamic)
    for n in rounds:
        inputs = random_qkv(B, H, S, D, seed=int(n) + 1)
        torch.testing.assert_close(compiled(n, *inputs), call(n, *inputs), rtol=1e-5, atol=1e-6)
    return counter.frame_count


def test_the_first_call_of_a_process_may_be_a_compiled_one(fresh_process):
    assert fresh_process("""
        import torch
        from flexsdpa.torch import attention

        @torch.compile(backend="aot_eager", fullgraph=True)
        def block(q, k, v, table, cap):
            return attention(
                q, k, v,
                score_mod=lambda s, b, h, i, j: cap * torch.tanh(s / cap) + table[h, i - j + 8],
                mask_mod=lambda b, h, i, j: (i >= j) & (i - j < 5),
            )

        q = k = v = torch.randn(2, 2, 9, 8)
        q.requires_grad_()
        block(q, k, v, torch.randn(2, 17), 2.5).sum().backward()
        print(q.grad.shape == q.shape)
    """) == "True"  # fmt: skip


def test_tensors_of_one_shape_share_a_graph():
    tables = [random_tensor(H, 2 * S - 1, seed=n) for n in range(6)]

    def call(table, q, k, v):
        return attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[h, i - j + S - 1], mask_mod=mods.causal)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(call, backend=counter, fullgraph=True)
    for table in tables:
        inputs = random_qkv(B, H, S, D)
        torch.testing.assert_close(compiled(table, *inputs), call(table, *inputs))
    assert counter.frame_count == 1


def test_closures_over_tensors_of_one_shape_share_a_graph():
    def make(table):
        return lambda s, b, h, i, j: s * table[h]

    pool = [make(random_tensor(H, seed=n)) for n in range(6)]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda mod, q, k, v: attention(q, k, v, score_mod=mod), backend=counter, fullgraph=True)
    for mod in pool:
        inputs = random_qkv(B, H, S, D)
        torch.testing.assert_close(compiled(mod, *inputs), attention(*inputs, score_mod=mod))
    assert counter.frame_count == 1


VALUES = [0.5, 1.5, 2.25, 3.0, 17.0, 1e-3, 40.0, 0.125, 7.5, 9.25, 11.0, 6.5]


def by_closure(cap, q, k, v):
    return attention(q, k, v, score_mod=lambda s, b, h, i, j: cap * torch.tanh(s / cap) - cap * j)


def by_package_mod(cap, q, k, v):
    return attention(q, k, v, score_mod=mods.softcap(cap), mask_mod=mods.causal)


def by_scale(scale, q, k, v):
    return attention(q, k, v, scale=scale)


@pytest.mark.parametrize("call", [by_closure, by_scale, by_package_mod], ids=lambda f: f.__name__)
def test_any_number_of_floats_makes_two_graphs(call):
    """torch specialises on the first value and keeps the second symbolic."""
    assert graphs(call, VALUES) == 2


@pytest.mark.parametrize("call", [by_closure, by_scale, by_package_mod], ids=lambda f: f.__name__)
def test_any_number_of_floats_makes_one_graph_where_everything_is_dynamic(call):
    assert graphs(call, VALUES, dynamic=True) == 1


def test_any_number_of_floats_makes_one_graph_as_score_mods():
    pool = [ScoreMod(mods.softcap(value)) for value in VALUES]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda mod, q, k, v: attention(q, k, v, score_mod=mod), backend=counter, fullgraph=True)
    for mod in pool:
        inputs = random_qkv(B, H, S, D)
        torch.testing.assert_close(compiled(mod, *inputs), attention(*inputs, score_mod=mod))
    assert counter.frame_count == 1


def test_a_python_position_makes_at_most_two_graphs():
    def decode(position, q, k, v):
        return attention(q[:, :, :1], k, v, mask_mod=mods.sliding_window(4), q_offset=position)

    assert graphs(decode, range(8)) == 2


SYMBOLIC = {
    "difference": lambda n: lambda b, h, i, j: i - j - n < 0,
    "torch.lt": lambda n: lambda b, h, i, j: torch.lt(i - j, n),
    "torch.eq": lambda n: lambda b, h, i, j: torch.eq(j, n) | (j > i),
    "modulo": lambda n: lambda b, h, i, j: (i % n == 0) | (i == j),
    "quotient": lambda n: lambda b, h, i, j: i // n == j // n,
    "where": lambda n: lambda b, h, i, j: torch.where(i > 2, j, n) <= 3,
    "clamp": lambda n: lambda b, h, i, j: i.clamp(max=n) >= j,
    "bits": lambda n: lambda b, h, i, j: ((n & i) | (j & n)) >= 0,
}
COMPARED = {
    "<": lambda n: lambda b, h, i, j: i - j < n,
    "<=": lambda n: lambda b, h, i, j: j <= n,
    "> on the left": lambda n: lambda b, h, i, j: n > j,
    "==": lambda n: lambda b, h, i, j: (j == n) | (i == j),
    "!=": lambda n: lambda b, h, i, j: j != n,
}


@pytest.mark.parametrize("name", [
    *SYMBOLIC,
    *(name for name in COMPARED),
])  # fmt: skip
def test_integers_are_symbolic_from_the_second_value_on(name):
    make = {**SYMBOLIC, **COMPARED}[name]
    assert graphs(lambda n, q, k, v: attention(q, k, v, mask_mod=make(n)), [3, 5, 2, 7, 4, 6, 8]) == 2


@pytest.mark.parametrize("compare", [
    lambda s, x: s < x,
    lambda s, x: torch.lt(s, x),
    lambda s, x: s - x < 0,
], ids=["<", "torch.lt", "difference"])  # fmt: skip
def test_floats_may_be_compared_with_the_score(compare):
    def call(x, q, k, v):
        return attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.where(compare(s, x), s, -s))

    assert graphs(call, VALUES) == 2


def test_a_mask_may_be_compiled_with_a_position_tensor():
    def decode(position, q, k, v):
        return attention(q[:, :, :1], k, v, mask_mod=mods.causal, q_offset=position)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(decode, backend=counter, fullgraph=True)
    for n in range(S):
        inputs = random_qkv(B, H, S, D)
        torch.testing.assert_close(compiled(torch.tensor(n), *inputs), decode(torch.tensor(n), *inputs))
    assert counter.frame_count == 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_lengths_that_vary_make_at_most_two_graphs(dynamic):
    def call(q, k, v, table):
        length = q.shape[2]
        mod = lambda s, b, h, i, j: s + table[h, (i - j + length - 1) % 17]
        return attention(q, k, v, score_mod=mod, mask_mod=lambda b, h, i, j: j * 2 < i + length)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(call, backend=counter, fullgraph=True, dynamic=dynamic)
    for length in (33, 17, 65, 200, 5, 100, 2, 300, 129, 12):
        inputs = (*random_qkv(B, H, length, D), random_tensor(H, 17))
        torch.testing.assert_close(compiled(*inputs), call(*inputs))
    assert counter.frame_count == (1 if dynamic else 2)


@pytest.mark.parametrize("what", ["batch", "kv length", "heads"])
def test_other_sizes_that_vary_make_at_most_two_graphs(what):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(by_package_mod, backend=counter, fullgraph=True)
    for n in (2, 3, 5, 7, 4):
        sizes = {"batch": (n, H, S, D), "heads": (B, 2 * n, S, D), "kv length": (B, H, S, D)}[what]
        inputs = random_qkv(*sizes, Hkv=2 * n if what == "heads" else H, Skv=10 * n if what == "kv length" else S)
        torch.testing.assert_close(compiled(2.5, *inputs), by_package_mod(2.5, *inputs))
    assert counter.frame_count <= 2


MODS = {
    "plain": lambda t, x: (None, None),
    "causal": lambda t, x: (None, mods.causal),
    "captured": lambda t, x: (lambda s, b, h, i, j: s * x + t[h, i - j + S - 1], mods.sliding_window(4)),
    "package": lambda t, x: (mods.chain(mods.relative_bias(t), mods.softcap(x)), mods.prefix_lm(3)),
    "t5": lambda t, x: (mods.t5_bias(t.T), mods.and_masks(mods.causal, mods.padding(torch.tensor([9, 4])))),
    "rows without keys": lambda t, x: (lambda s, b, h, i, j: s + t[h, j], lambda b, h, i, j: j < i),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODS)
def test_compiled_gradients_equal_eager_ones(name, dtype):
    captured = MODS[name]

    def call(q, k, v, table, number):
        score_mod, mask_mod = captured(table, number)
        return attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod, return_lse=True)

    results = []
    for run in (torch.compile(call, backend="aot_eager", fullgraph=True), call):
        inputs = (*random_qkv(B, H, S, D, dtype=dtype), random_tensor(H, 2 * S - 1, dtype=dtype), torch.tensor(1.5))
        leaves = [x.requires_grad_() for x in inputs]
        out, lse = run(*leaves)
        grads = torch.autograd.grad(out.square().sum() + lse.nan_to_num(neginf=0.0).sum(), leaves, allow_unused=True)
        results.append([out, lse, *grads])
    for seen, expected in zip(*results, strict=True):
        assert (seen is None) == (expected is None)
        if expected is not None:
            assert seen.stride() == expected.stride()
            torch.testing.assert_close(seen, expected, rtol=0, atol=0)


class Model(torch.nn.Module):
    """Two layers with a learned bias, made by a Linear inside the compiled region, and a buffer."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 48) for _ in range(2))
        self.to_bias = torch.nn.Linear(16, 2)
        self.register_buffer("slopes", torch.tensor([0.5, 0.25]))

    def forward(self, x):
        for layer in self.layers:
            q, k, v = (t.unflatten(-1, (2, 8)) for t in layer(x).chunk(3, -1))
            bias = self.to_bias(x)

            def score_mod(score, b, h, q_idx, kv_idx):
                return score + bias[b, kv_idx, h] - self.slopes[h] * (q_idx - kv_idx)

            x = x + attention(q, k, v, score_mod=score_mod, mask_mod=mods.causal, layout="bshd").flatten(2)
        return x


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_inductor_compiles_and_trains_a_model():
    torch.manual_seed(0)
    model, x = Model(), torch.randn(2, 12, 16)
    results = []
    for run in (torch.compile(model, fullgraph=True), model):
        model.zero_grad()
        out = run(x)
        out.square().sum().backward()
        results.append([out, *(p.grad.clone() for p in model.parameters())])
    for seen, expected in zip(*results, strict=True):
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-5)


def test_reading_errors_are_raised_from_compiled_code():
    table = torch.zeros(3)
    compiled = torch.compile(
        lambda q, k, v: attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[j]), backend="aot_eager"
    )
    with pytest.raises(IndexError, match="was read out of range: index 3 in dimension 0 of size 3"):
        compiled(*random_qkv(B, H, S, D))


def test_snapshots_work_inside_compiled_code():
    score, mask = ScoreMod(mods.alibi(torch.tensor([0.5, 0.1]))), MaskMod(mods.sliding_window(3))
    call = lambda q, k, v: attention(q, k, v, score_mod=score, mask_mod=mask)
    inputs = random_qkv(B, H, S, D)
    torch.testing.assert_close(torch.compile(call, backend="aot_eager", fullgraph=True)(*inputs), call(*inputs))


@pytest.mark.parametrize("extra", ["sink", "layout", "lse", "autocast", "no_grad", "backend"])
def test_options_work_inside_compiled_code(extra):
    sink = random_tensor(H)

    def call(q, k, v):
        if extra == "sink":
            return attention(q, k, v, sink=sink, mask_mod=mods.causal)
        if extra == "layout":
            return attention(q, k, v, layout="bshd", score_mod=lambda s, b, h, i, j: s - 0.1 * j)
        if extra == "lse":
            return torch.cat([x.flatten() for x in attention(q, k, v, mask_mod=mods.causal, return_lse=True)])
        if extra == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                return attention(q, k, v, score_mod=mods.softcap(2.0))
        if extra == "no_grad":
            with torch.no_grad():
                return attention(q, k, v, score_mod=mods.softcap(2.0))
        return attention(q, k, v, backend="reference")

    inputs = [x.requires_grad_() for x in random_qkv(B, H, S, D)]
    seen, expected = torch.compile(call, backend="aot_eager", fullgraph=True)(*inputs), call(*inputs)
    assert seen.requires_grad == expected.requires_grad
    torch.testing.assert_close(seen, expected)
