"""Reads beyond a captured tensor: harmless where the mask excludes the position, an error with names where it does not."""

import functools

import pytest
import torch

import flexsdpa
from flexsdpa import mods
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.torch import attention

N = 20  # entries of the table
S = 33  # tokens
TILES = [{}, {"tile_q": 7, "tile_kv": 9}]


@pytest.fixture(params=TILES, ids=["one tile", "many tiles"])
def tiles(request):
    with flexsdpa.options(**request.param):
        yield


def long_table(table):
    """The same entries at the same indices, counted from either end, and zeros between them."""
    return torch.cat([table, table.new_zeros(4 * S), table])


# Mods that read beyond a table of N entries, but never where it matters.
GUARDED = {
    "by mask": (lambda t: (lambda s, b, h, i, j: s + t[j], lambda b, h, i, j: j < N)),
    "by mask, computed": (lambda t: (lambda s, b, h, i, j: s + t[i - j], lambda b, h, i, j: (i - j < N) & (i - j >= -N))),
    "by mask, below": (lambda t: (lambda s, b, h, i, j: s + t[-j - 1], lambda b, h, i, j: j < N)),
    "by mask of rows": (lambda t: (lambda s, b, h, i, j: s * t[i], lambda b, h, i, j: i < N)),
    "by where to -inf": (lambda t: (lambda s, b, h, i, j: torch.where(j < N, s + t[j], -torch.inf), None)),
    "by where to 0": (lambda t: (lambda s, b, h, i, j: s + torch.where(j < N, t[j], 0.0), None)),
    "by where, other side": (lambda t: (lambda s, b, h, i, j: torch.where(j >= N, s, s * t[j] + t[j]), None)),
    "by where, computed": (lambda t: (lambda s, b, h, i, j: s + torch.where((i - j).abs() < N, t[(i - j).abs()], 0.0), None)),
    "by where in where": (
        lambda t: (lambda s, b, h, i, j: torch.where(i < N, torch.where(j < N, s * t[i] * t[j], s), s + 1), None)
    ),
    "masked_fill": (lambda t: (lambda s, b, h, i, j: (s + t[j]).masked_fill(j >= N, -torch.inf), None)),
    "clamped": (lambda t: (lambda s, b, h, i, j: s + t[j.clamp(max=N - 1)], None)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", GUARDED)
def test_a_read_that_does_not_matter_is_harmless(name, dtype, tiles):
    results = []
    for table_of in (lambda t: t, long_table):
        leaves = [*random_qkv(2, 4, S, 8, Hkv=2, dtype=dtype), random_tensor(N, dtype=dtype, seed=3)]
        leaves = [x.requires_grad_() for x in leaves]
        score_mod, mask_mod = GUARDED[name](table_of(leaves[3]))
        out, lse = attention(*leaves[:3], score_mod=score_mod, mask_mod=mask_mod, return_lse=True)
        loss = (out * random_tensor(*out.shape, dtype=dtype, seed=4)).sum() + lse[lse != -torch.inf].sum()
        results.append([out, lse, *torch.autograd.grad(loss, leaves)])
    for seen, expected in zip(*results, strict=True):
        torch.testing.assert_close(seen, expected, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-5)


MASKS = {
    "and": lambda m: lambda b, h, i, j: (j < N) & m[j],
    "and, other order": lambda m: lambda b, h, i, j: m[j] & (j < N),
    "or": lambda m: lambda b, h, i, j: (j >= N) | m[j],
    "where": lambda m: lambda b, h, i, j: torch.where(j < N, m[j], i % 2 == 0),
    "nested": lambda m: lambda b, h, i, j: ((j < N) & m[j]) | ((i < N) & m[i]),
    "not": lambda m: lambda b, h, i, j: ~((j < N) & m[j]),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_may_guard_its_own_read(name, tiles):
    table = random_tensor(N, seed=4) > 0
    longer = torch.cat([table, torch.zeros(S, dtype=torch.bool)])
    results = []
    for m in (table, longer):
        leaves = [x.clone().requires_grad_() for x in random_qkv(2, 4, S, 8)]
        out, lse = attention(*leaves, mask_mod=MASKS[name](m), return_lse=True)
        results.append([out, lse, *torch.autograd.grad(out.square().sum(), leaves)])
    for seen, expected in zip(*results, strict=True):
        assert torch.equal(seen, expected)


@pytest.mark.parametrize("length", [1, 100, 127, 128, 129, 2046])
def test_a_table_of_exactly_the_length_is_enough(length):
    table = random_tensor(2, length) > -1
    q, k, v = random_qkv(2, 1, length, 4)
    out = attention(q, k, v, mask_mod=lambda b, h, i, j: table[b, i] & table[b, j])
    longer = torch.cat([table, ~table], 1)
    assert torch.equal(out, attention(q, k, v, mask_mod=lambda b, h, i, j: longer[b, i] & longer[b, j]))


def test_an_empty_table_is_harmless_where_it_is_never_wanted():
    empty = torch.zeros(0)
    q, k, v = random_qkv()
    out = attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.where(j < 0, empty[j], s))
    torch.testing.assert_close(out, attention(q, k, v, backend="reference"))
    with pytest.raises(flexsdpa.ReadError, match="'empty' was read out of range: index 0 in dimension 0 of size 0"):
        attention(q, k, v, score_mod=lambda s, b, h, i, j: s + empty[j])


TABLE = torch.zeros(N)


def reads_a_global(score, b, h, q_idx, kv_idx):
    return score + TABLE[kv_idx]


def reads_a_default(score, b, h, q_idx, kv_idx, bias_table=TABLE):
    return score + bias_table[kv_idx]


def reads_a_keyword(score, b, h, q_idx, kv_idx, *, bias_table=TABLE):
    return score + bias_table[kv_idx]


def takes_a_table(table, score, b, h, q_idx, kv_idx):
    return score + table[kv_idx]


class WithAttribute:
    def __init__(self):
        self.slopes = torch.zeros(N)

    def __call__(self, score, b, h, q_idx, kv_idx):
        return score + self.slopes[kv_idx]

    def method(self, score, b, h, q_idx, kv_idx):
        return score + self.slopes[kv_idx]


class WithBuffer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("bias", torch.zeros(N))
        self.weight = torch.nn.Parameter(torch.zeros(N))

    def forward(self, score, b, h, q_idx, kv_idx):
        return score + self.bias[kv_idx]

    def by_weight(self, score, b, h, q_idx, kv_idx):
        return score + self.weight[kv_idx]


def closure():
    my_bias = torch.zeros(N)
    return lambda score, b, h, q_idx, kv_idx: score + my_bias[kv_idx]


def wrapped():
    inner = closure()
    return lambda score, b, h, q_idx, kv_idx: inner(score, b, h, q_idx, kv_idx)


NAMED = {
    "closure variable": (closure, "'my_bias'"),
    "global": (lambda: reads_a_global, "'TABLE'"),
    "default": (lambda: reads_a_default, "'bias_table'"),
    "keyword default": (lambda: reads_a_keyword, "'bias_table'"),
    "attribute": (WithAttribute, "'slopes'"),
    "attribute of a bound method": (lambda: WithAttribute().method, "'self.slopes'"),
    "partial, positional": (lambda: functools.partial(takes_a_table, torch.zeros(N)), "'argument 0'"),
    "partial, by name": (lambda: functools.partial(reads_a_default, bias_table=TABLE), "'bias_table'"),
    "module buffer": (WithBuffer, "'bias'"),
    "module parameter": (lambda: WithBuffer().by_weight, "'self.weight'"),
    "function in a function": (wrapped, "'my_bias'"),
    "ready mod": (lambda: mods.chain(mods.softcap(2.0), mods.relative_bias(torch.zeros(N))), "captured tensor"),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_read_that_matters_names_tensor_and_index(name):
    make, called = NAMED[name]
    with pytest.raises(flexsdpa.ReadError) as caught:
        attention(*random_qkv(1, 2, S, 8), score_mod=make())
    text = str(caught.value)
    assert called in text.splitlines()[0]
    assert "was read out of range: index" in text.splitlines()[0]
    assert f"in dimension 0 of size {N}" in text.splitlines()[0]


def test_the_text_of_a_read_error():
    my_bias = torch.zeros(4, N)
    with pytest.raises(flexsdpa.ReadError) as caught:
        attention(
            *random_qkv(1, 2, S, 8), score_mod=lambda s, b, h, i, j: s + my_bias[h, j + 1], mask_mod=lambda b, h, i, j: j >= 18
        )
    assert str(caught.value).splitlines() == [
        "captured tensor 'my_bias' was read out of range: index 20 in dimension 1 of size 20",
        "  tensor   float32 of shape (4, 20)",
        "  index    1 + kv_idx = 20",
        "  at       b=0, h=0, q=0, kv=19, which the mask keeps",
        "  instead  clamp the index, make the tensor longer, or mask the position",
    ]


@pytest.mark.parametrize("mask_mod", [
    lambda b, h, i, j: TABLE[j] >= 0,
    lambda b, h, i, j: (i >= 0) & (TABLE[j] >= 0),
    lambda b, h, i, j: (j < N + 1) & (TABLE[j] >= 0),
], ids=["alone", "and", "guard too wide"])  # fmt: skip
def test_a_mask_that_reads_out_of_range_is_an_error(mask_mod, tiles):
    with pytest.raises(flexsdpa.ReadError, match="'TABLE' was read out of range: index 20 in dimension 0 of size 20"):
        attention(*random_qkv(1, 2, S, 8), mask_mod=mask_mod)


def test_one_kept_position_is_enough(tiles):
    short = torch.zeros(S - 1)
    q, k, v = random_qkv(2, 3, S, 8)
    only = lambda b, h, i, j: (j < S - 1) | ((b == 1) & (h == 2) & (i == 17))
    with pytest.raises(flexsdpa.ReadError, match=r"at +b=1, h=2, q=17, kv=32, which the mask keeps"):
        attention(q, k, v, score_mod=lambda s, b, h, i, j: s + short[j], mask_mod=only)


def test_a_value_that_is_read_and_dropped_does_not_matter():
    short = torch.zeros(3)
    q, k, v = random_qkv(2, 3, S, 8)

    def mod(score, b, h, q_idx, kv_idx):
        _ = short[kv_idx]
        return score * 2

    torch.testing.assert_close(attention(q, k, v, score_mod=mod), attention(q, k, v, scale=2 * 8**-0.5))


def test_an_index_that_depends_on_a_read_out_of_range_is_followed():
    pages = torch.zeros(N, dtype=torch.int64)
    table = torch.ones(4)
    q, k, v = random_qkv(1, 2, S, 8)
    mod = lambda s, b, h, i, j: s + table[pages[j]]
    with pytest.raises(flexsdpa.ReadError, match="'pages'"):
        attention(q, k, v, score_mod=mod)
    out = attention(q, k, v, score_mod=mod, mask_mod=lambda b, h, i, j: j < N)
    torch.testing.assert_close(out, attention(q, k[:, :, :N], v[:, :, :N]))


def test_the_error_is_an_index_error_and_leaves_the_cache_usable():
    q, k, v = random_qkv(1, 2, S, 8)
    mod = lambda s, b, h, i, j: s + table[j]
    table = torch.zeros(N)
    with pytest.raises(IndexError):
        attention(q, k, v, score_mod=mod)
    table = torch.ones(S)
    torch.testing.assert_close(attention(q, k, v, score_mod=mod), attention(q, k, v))


def test_the_lse_and_every_gradient_are_right_where_reads_are_guarded(tiles):
    table = random_tensor(2, N, seed=8)
    longer = torch.cat([table, table.new_zeros(2, S)], 1)
    results = []
    for t in (table, longer):
        leaves = [x.clone().requires_grad_() for x in (*random_qkv(2, 4, S, 8), t)]
        mod = lambda s, b, h, i, j: s * leaves[3][b, j] + leaves[3][b, i]
        mask = lambda b, h, i, j: (i < N) & (j < N) & (j <= i)
        out, lse = attention(*leaves[:3], score_mod=mod, mask_mod=mask, return_lse=True)
        grads = torch.autograd.grad(out.square().sum() + lse[:, :, :N].sum(), leaves)
        results.append([out, lse, *grads[:3], grads[3][:, :N]])
    for seen, expected in zip(*results, strict=True):
        assert torch.equal(seen, expected)
