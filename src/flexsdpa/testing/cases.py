"""Small inputs of the kinds that break attention libraries, each with its float64 answer. Needs torch.

A case takes ``attention`` (``flexsdpa.torch.attention``, or anything with its signature) and returns (actual, expected), tensors
or tuples of them. Expected values are dense float64, written with plain index grids, and call no mod. Names begin with the class
of the problem in the project's list of what users of such libraries met.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flexsdpa.testing.inputs import random_qkv, random_tensor

Attention = Callable[..., Any]
Tensors = tuple[Tensor, ...]
Case = Callable[[Attention], tuple[Any, Any]]
NEVER = -torch.inf


def softmax_product(scores: Tensor, v: Tensor) -> Tensor:
    """softmax(scores) @ v in float64; a row of -inf gives 0. scores (B, Hq, Sq, Skv), v (B, Hkv, Skv, Dv)."""
    v = v.double().repeat_interleave(scores.shape[1] // v.shape[1], 1)
    alive = (scores != NEVER).any(-1, keepdim=True)
    return (torch.where(alive, scores, 0.0).softmax(-1) * alive) @ v


def products(q: Tensor, k: Tensor, scale: float | None = None) -> Tensor:
    """scale * q k^T in float64, kv heads repeated."""
    k = k.double().repeat_interleave(q.shape[1] // k.shape[1], 1)
    return q.double() @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)


def grid(rows: int, columns: int | None = None) -> tuple[Tensor, Tensor]:
    """Positions of queries (rows, 1) and of keys (1, columns)."""
    return torch.arange(rows)[:, None], torch.arange(rows if columns is None else columns)[None]


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [x.detach().clone().requires_grad_() for x in tensors]


def with_gradients(out: Tensor, inputs: list[Tensor]) -> Tensors:
    """(out, the gradients of a weighted sum of it); an absent gradient counts as zero."""
    weights = random_tensor(*out.shape, dtype=out.dtype, seed=99)
    return (out, *torch.autograd.grad((out * weights).sum(), inputs, materialize_grads=True))


def b01_nine_lengths_through_one_function(attention: Attention) -> tuple[Any, Any]:
    actual, expected = [], []
    for length in (17, 33, 65, 18, 34, 66, 19, 35, 67):
        q, k, v = random_qkv(1, 2, length, 8, seed=length)
        i, j = grid(length)
        actual.append(attention(q, k, v, mask_mod=lambda b, h, i, j: (i - j) * 2 < length))
        expected.append(softmax_product(products(q, k).masked_fill((i - j) * 2 >= length, NEVER), v))
    return tuple(actual), tuple(expected)


def b03_lengths_that_creep_up_by_four(attention: Attention) -> tuple[Any, Any]:
    actual, expected = [], []
    for length in range(20, 60, 4):
        q, k, v = random_qkv(2, 1, length, 4, seed=length)
        i, j = grid(length)
        actual.append(attention(q, k, v, mask_mod=lambda b, h, i, j: (i >= j) & (i - j < 9)))
        expected.append(softmax_product(products(q, k).masked_fill((i < j) | (i - j >= 9), NEVER), v))
    return tuple(actual), tuple(expected)


def b05_one_sequence_of_the_batch_is_empty(attention: Attention) -> tuple[Any, Any]:
    q, k, v = random_qkv(3, 2, 7, 4)
    lengths = torch.tensor([7, 0, 3])
    gate = random_tensor(3)
    ours, exact = leaves(q, k, v, gate), leaves(*(x.double() for x in (q, k, v, gate)))
    out = attention(
        *ours[:3],
        score_mod=lambda s, b, h, i, j: torch.where(j < lengths[b], s * torch.exp(ours[3][b]), NEVER),
        mask_mod=lambda b, h, i, j: i < lengths[b],
    )
    i, j = grid(7)
    inside = ((i < lengths[:, None, None]) & (j < lengths[:, None, None]))[:, None]
    scores = products(exact[0], exact[1]) * exact[3].exp()[:, None, None, None]
    return with_gradients(out, ours), with_gradients(softmax_product(scores.masked_fill(~inside, NEVER), exact[2]), exact)


def b06_very_negative_logits_and_an_odd_length(attention: Attention) -> tuple[Any, Any]:
    q, k, v = random_qkv(1, 1, 96 + 64, 8)
    ours, exact = leaves(q, k, v), leaves(q.double(), k.double(), v.double())
    out = attention(*ours, score_mod=lambda s, b, h, i, j: s - 120.0, mask_mod=lambda b, h, i, j: (i + j) % 3 != 0)
    i, j = grid(160)
    scores = (products(exact[0], exact[1]) - 120.0).masked_fill((i + j) % 3 == 0, NEVER)
    return with_gradients(out, ours), with_gradients(softmax_product(scores, exact[2]), exact)


def b07_a_long_window_seen_by_few_queries(attention: Attention) -> tuple[Any, Any]:
    q, k, v = random_qkv(1, 1, 3, 2, Skv=20_000)
    position = torch.tensor([4, 9_000, 19_999])
    out = attention(q, k, v, mask_mod=lambda b, h, i, j: (j <= position[i]) & (position[i] - j < 50))
    j = torch.arange(20_000)[None]
    seen = (j <= position[:, None]) & (position[:, None] - j < 50)
    return out, softmax_product(products(q, k).masked_fill(~seen, NEVER), v)


def b08_new_documents_in_every_step(attention: Attention) -> tuple[Any, Any]:
    actual, expected = [], []
    for step in range(4):
        q, k, v = random_qkv(1, 2, 300, 4, seed=step)
        document = torch.arange(300) // (23 + 40 * step)
        actual.append(attention(q, k, v, mask_mod=lambda b, h, i, j: (document[i] == document[j]) & (j <= i)))
        i, j = grid(300)
        apart = (document[:, None] != document[None]) | (j > i)
        expected.append(softmax_product(products(q, k).masked_fill(apart, NEVER), v))
    return tuple(actual), tuple(expected)


def b09_plain_causal_in_every_spelling(attention: Attention) -> tuple[Any, Any]:
    q, k, v = random_qkv(2, 3, 24, 8)
    i, j = grid(24)
    exact = softmax_product(products(q, k).masked_fill(j > i, NEVER), v)
    actual = (
        attention(q, k, v, mask_mod=lambda b, h, i, j: i >= j),
        attention(q, k, v, mask_mod=lambda b, h, i, j: ~(j > i)),
        attention(q, k, v, mask_mod=lambda b, h, i, j: i - j > -1),
        attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.where(i < j, NEVER, s)),
    )
    return actual, (exact,) * 4


def b10_a_pair_bias_and_a_bucketed_bias_are_learned(attention: Attention) -> tuple[Any, Any]:
    q, k, v = random_qkv(2, 2, 11, 4)
    pair, buckets = random_tensor(2, 2, 11, 11, seed=50), random_tensor(5, 2, seed=51)
    ours, exact = leaves(q, k, v, pair, buckets), leaves(*(x.double() for x in (q, k, v, pair, buckets)))
    out = attention(
        *ours[:3], score_mod=lambda s, b, h, i, j: s + ours[3][b, h, i, j] - ours[4][((i - j).abs() // 3).clamp(max=4), h]
    )
    i, j = grid(11)
    bias = exact[4][((i - j).abs() // 3).clamp(max=4)].permute(2, 0, 1)
    return with_gradients(out, ours), with_gradients(
        softmax_product(products(exact[0], exact[1]) + exact[3] - bias, exact[2]), exact
    )


def b11_a_table_ends_where_the_mask_does(attention: Attention) -> tuple[Any, Any]:
    q, k, v = random_qkv(1, 2, 30, 4)
    table = random_tensor(13, seed=52)
    ours, exact = leaves(q, k, v, table), leaves(*(x.double() for x in (q, k, v, table)))
    out = attention(
        *ours[:3], score_mod=lambda s, b, h, i, j: s * ours[3][j] + ours[3][12 - j], mask_mod=lambda b, h, i, j: j < 13
    )
    seen = products(exact[0], exact[1][:, :, :13]) * exact[3] + exact[3].flip(0)
    return with_gradients(out, ours), with_gradients(softmax_product(seen, exact[2][:, :, :13]), exact)


def b12_a_few_queries_over_many_keys(attention: Attention) -> tuple[Any, Any]:
    q, k, v = random_qkv(1, 1, 5, 4, Skv=4_000)
    window = 700
    out = attention(q, k, v, mask_mod=lambda b, h, i, j: (j <= i * window) & (j >= (i - 1) * window))
    i, j = grid(5, 4_000)
    return out, softmax_product(products(q, k).masked_fill((j > i * window) | (j < (i - 1) * window), NEVER), v)


def b13_positions_times_a_number_beyond_32_bits(attention: Attention) -> tuple[Any, Any]:
    q, k, v = random_qkv(1, 1, 40, 4)
    stride = 3_000_000_019
    out = attention(q, k, v, mask_mod=lambda b, h, i, j: (i * stride + j * stride) // 2**32 % 2 == 0)
    i, j = grid(40)
    return out, softmax_product(products(q, k).masked_fill((i * stride + j * stride) // 2**32 % 2 != 0, NEVER), v)


def b14_head_dims_that_are_no_power_of_two(attention: Attention) -> tuple[Any, Any]:
    actual: list[Tensor] = []
    expected: list[Tensor] = []
    for D, Dv, Sq in ((72, 72, 6), (80, 24, 1), (3, 96, 6), (1, 1, 1)):
        q, k, v = random_qkv(1, 2, Sq, D, Skv=6, Dv=Dv, seed=D)
        ours, exact = leaves(q, k, v), leaves(q.double(), k.double(), v.double())
        actual += with_gradients(attention(*ours, score_mod=lambda s, b, h, i, j: torch.sin(s)), ours)
        expected += with_gradients(softmax_product(products(exact[0], exact[1]).sin(), exact[2]), exact)
    return tuple(actual), tuple(expected)


def b15_one_mask_for_short_and_long_rows(attention: Attention) -> tuple[Any, Any]:
    mask = lambda b, h, i, j: (i // 4 == j // 4) | (j == 0)
    actual, expected = [], []
    for rows, columns in ((40, 40), (6, 40), (2, 3), (129, 127)):
        q, k, v = random_qkv(2, 1, rows, 4, Skv=columns, seed=rows)
        i, j = grid(rows, columns)
        actual.append(attention(q, k, v, mask_mod=mask))
        expected.append(softmax_product(products(q, k).masked_fill((i // 4 != j // 4) & (j != 0), NEVER), v))
    return tuple(actual), tuple(expected)


def b16_a_table_and_a_number_sized_by_the_length(attention: Attention) -> tuple[Any, Any]:
    actual, expected = [], []
    for batch, length in ((1, 100), (2, 130), (1, 1), (3, 64)):
        q, k, v = random_qkv(batch, 2, length, 4, seed=length)
        table, middle = random_tensor(length, 2, seed=length + 1), length // 2
        actual.append(attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[(i + j - middle).clamp(0, length - 1), h]))
        i, j = grid(length)
        bias = table.double()[(i + j - middle).clamp(0, length - 1)].permute(2, 0, 1)
        expected.append(softmax_product(products(q, k) + bias, v))
    return tuple(actual), tuple(expected)


def b17_training_with_the_lse_on_a_cpu(attention: Attention) -> tuple[Any, Any]:
    q, k, v = random_qkv(2, 4, 12, 8, Hkv=2)
    ours, exact = leaves(q, k, v), leaves(q.double(), k.double(), v.double())
    out, lse = attention(*ours, mask_mod=lambda b, h, i, j: (i - j).abs() < 5, return_lse=True)
    i, j = grid(12)
    scores = products(exact[0], exact[1]).masked_fill((i - j).abs() >= 5, NEVER)
    want, want_lse = softmax_product(scores, exact[2]), scores.logsumexp(-1)
    gradients = torch.autograd.grad(out.square().sum() + lse.tanh().sum(), ours)
    return (out, lse, *gradients), (want, want_lse, *torch.autograd.grad(want.square().sum() + want_lse.tanh().sum(), exact))


def b19_normalised_q_and_k_under_autocast(attention: Attention) -> tuple[Any, Any]:
    q, k, v = random_qkv(1, 2, 20, 16)
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(
            torch.nn.functional.normalize(q, dim=-1), torch.nn.functional.normalize(k, dim=-1), v.bfloat16(), scale=4.0
        )
    unit = [torch.nn.functional.normalize(x.double(), dim=-1) for x in (q, k)]
    return (out, torch.tensor(out.dtype == torch.bfloat16)), (
        softmax_product(products(unit[0], unit[1], 4.0), v),
        torch.tensor(True),
    )


def b20_conditions_are_written_with_operators(attention: Attention) -> tuple[Any, Any]:
    q, k, v = random_qkv(2, 1, 18, 4)
    kind = torch.arange(18) % 3

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        near = (q_idx - kv_idx).abs() <= 4
        return (near & (kind[q_idx] == kind[kv_idx])) | ~(q_idx > 2) | ((b == 1) ^ (kv_idx >= 9))

    i, j = grid(18)
    b = torch.arange(2).view(2, 1, 1, 1)
    keep = (((i - j).abs() <= 4) & (kind[:, None] == kind[None])) | (i <= 2) | ((b == 1) ^ (j >= 9))
    return attention(q, k, v, mask_mod=mask), softmax_product(products(q, k).masked_fill(~keep, NEVER), v)


def b21_a_table_of_three_entries_hit_by_all(attention: Attention) -> tuple[Any, Any]:
    q, k, v = random_qkv(1, 2, 150, 4)
    table = random_tensor(3, seed=53)

    def run() -> tuple[Tensor, Tensors]:
        ours = leaves(q, k, v, table)
        results = with_gradients(attention(*ours[:3], score_mod=lambda s, b, h, i, j: s * ours[3][(i * j) % 3]), ours)
        return results[0], results

    first, second = run()[1], run()[1]
    same = torch.tensor(all(torch.equal(a, b) for a, b in zip(first, second, strict=True)))
    exact = leaves(*(x.double() for x in (q, k, v, table)))
    i, j = grid(150)
    want = softmax_product(products(exact[0], exact[1]) * exact[3][(i * j) % 3], exact[2])
    return (*first, same), (*with_gradients(want, exact), torch.tensor(True))


def b22_q_k_and_v_are_slices_of_one_tensor(attention: Attention) -> tuple[Any, Any]:
    packed = random_tensor(2, 15, 3 * 4 * 6, seed=54)
    ours, exact = leaves(packed), leaves(packed.double())

    def split(x: Tensor) -> list[Tensor]:
        return [part.unflatten(-1, (4, 6)).transpose(1, 2) for part in x.chunk(3, -1)]

    q, k, v = split(ours[0])
    out = attention(q, k[:, :, 2:-3], v[:, :, 2:-3], score_mod=lambda s, b, h, i, j: s * 2)
    q, k, v = split(exact[0])
    want = softmax_product(products(q, k[:, :, 2:-3]) * 2, v[:, :, 2:-3])
    return with_gradients(out, ours), with_gradients(want, exact)


GROW = lambda s, b, h, i, j: s * 2.5
FADE = lambda s, b, h, i, j: s - 0.5 * j


def b25_two_lambdas_of_one_module_and_one_default(attention: Attention) -> tuple[Any, Any]:
    q, k, v = random_qkv(1, 2, 9, 4)
    _, j = grid(9)
    s = products(q, k)
    shifted = [lambda s, b, h, i, j, n=n: s - n * j for n in (0, 1, 2)]
    actual = [attention(q, k, v, score_mod=mod) for mod in (GROW, FADE, GROW, *shifted)]
    scores = [s * 2.5, s - 0.5 * j, s * 2.5, s, s - j, s - 2 * j]
    return tuple(actual), tuple(softmax_product(x, v) for x in scores)


def b26_one_shape_with_other_scales_strides_and_dtypes(attention: Attention) -> tuple[Any, Any]:
    q, k, v = random_qkv(1, 6, 6, 6, dtype=torch.float64)
    flipped = k.transpose(1, 2)
    mod = lambda s, b, h, i, j: s + 0.25 * h * j
    h, j = torch.arange(6)[:, None, None], torch.arange(6)

    def exact(a: Tensor, b: Tensor, scale: float | None = None) -> Tensor:
        return products(a, b, scale) + 0.25 * h * j

    runs = [
        (q, k, 0.1), (q, k, 3.0), (q, flipped, 0.1), (q, k.mT, None), (q.float().double(), k, None),
    ]  # fmt: skip
    actual = [attention(a, b, v, score_mod=mod, scale=scale) for a, b, scale in runs]
    expected = [softmax_product(exact(a, b, scale), v) for a, b, scale in runs]
    low = [x.bfloat16() for x in (q, k, v)]
    return (*actual, attention(*low, score_mod=mod)), (*expected, softmax_product(exact(low[0], low[1]), low[2]))


def b27_twelve_heads_over_two(attention: Attention) -> tuple[Any, Any]:
    actual: list[Tensor] = []
    expected: list[Tensor] = []
    for heads, kv_heads, rows in ((12, 2, 1), (9, 3, 5), (7, 1, 100), (12, 2, 100)):
        q, k, v = random_qkv(1, heads, rows, 4, Hkv=kv_heads, Skv=100, seed=rows)
        slope = random_tensor(heads, seed=55)
        ours, exact = leaves(q, k, v, slope), leaves(*(x.double() for x in (q, k, v, slope)))
        actual += with_gradients(attention(*ours[:3], score_mod=lambda s, b, h, i, j: s + ours[3][h] * j * 0.1), ours)
        _, j = grid(rows, 100)
        expected += with_gradients(
            softmax_product(products(exact[0], exact[1]) + exact[3][:, None, None] * j * 0.1, exact[2]), exact
        )
    return tuple(actual), tuple(expected)


def b28_jagged_sequences_do_not_see_each_other(attention: Attention) -> tuple[Any, Any]:
    parts = [random_tensor(n, 2, 4, seed=n) for n in (11, 13, 15)]
    x = torch.nested.as_nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    out = attention(x, x, x, score_mod=lambda s, b, h, i, j: s - 0.1 * b * (i - j).abs()).transpose(1, 2).unbind()
    expected = []
    for n, part in enumerate(parts):
        x = part.transpose(0, 1)[None]
        i, j = grid(part.shape[0])
        expected.append(softmax_product(products(x, x) - 0.1 * n * (i - j).abs(), x)[0].transpose(0, 1))
    return tuple(out), tuple(expected)


def b29_packed_sequences_with_gaps(attention: Attention) -> tuple[Any, Any]:
    q, k, v = random_qkv(1, 2, 30, 4)
    sequence = torch.tensor([0] * 9 + [-1] * 3 + [1] * 7 + [-1] * 1 + [2] * 8 + [-1] * 2)
    hole = (sequence == -1)[:, None]
    poisoned = [torch.where(hole, torch.nan, x).requires_grad_() for x in (q, k, v)]
    out = attention(*poisoned, mask_mod=lambda b, h, i, j: (sequence[i] == sequence[j]) & (sequence[i] >= 0))
    exact = leaves(*(torch.where(hole, 0.0, x.double()) for x in (q, k, v)))
    apart = (sequence[:, None] != sequence[None]) | (sequence[:, None] < 0)
    return with_gradients(out, poisoned), with_gradients(
        softmax_product(products(exact[0], exact[1]).masked_fill(apart, NEVER), exact[2]), exact
    )


def b30_eight_threads_with_eight_mods(attention: Attention) -> tuple[Any, Any]:
    q, k, v = random_qkv(1, 2, 20, 4)
    actual: list[Any] = [None] * 8
    barrier = threading.Barrier(8)

    def work(n: int) -> None:
        barrier.wait()
        actual[n] = attention(q, k, v, score_mod=lambda s, b, h, i, j: s * (n + 1) + j % (n + 2))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _, j = grid(20)
    return tuple(actual), tuple(softmax_product(products(q, k) * (n + 1) + j % (n + 2), v) for n in range(8))


def b31_no_keys_and_no_batch(attention: Attention) -> tuple[Any, Any]:
    mod = lambda s, b, h, i, j: s + j
    actual = (
        *attention(*random_qkv(2, 4, 5, 8, Hkv=2, Skv=0), score_mod=mod, return_lse=True),
        attention(*random_qkv(0, 4, 5, 8), score_mod=mod),
        attention(*random_qkv(2, 4, 0, 8, Skv=5), score_mod=mod),
    )
    none = torch.zeros(2, 4, 5, 8), torch.full((2, 4, 5), NEVER), torch.zeros(0, 4, 5, 8), torch.zeros(2, 4, 0, 8)
    return actual, none


def b32_one_query_at_the_end_of_a_cache(attention: Attention) -> tuple[Any, Any]:
    q, k, v = random_qkv(2, 1, 1, 4, Skv=100)
    causal = lambda b, h, i, j: i >= j
    lengths = torch.tensor([99, 40])
    actual = (attention(q, k, v, mask_mod=causal), attention(q, k, v, mask_mod=causal, q_offset=lengths))
    cut = torch.arange(100) > lengths[:, None, None, None]
    return actual, (v[:, :, :1], softmax_product(products(q, k).masked_fill(cut, NEVER), v))


def b33_masks_and_biases_that_broadcast(attention: Attention) -> tuple[Any, Any]:
    q, k, v = (x.bfloat16() for x in random_qkv(2, 3, 14, 8))
    bias, keys = random_tensor(3, 1, 14, seed=56), torch.arange(14) < torch.tensor([14, 6])[:, None]
    ours, exact = leaves(bias), leaves(bias.double())
    whole = ours[0].expand(3, 14, 14)
    out = attention(q, k, v, score_mod=lambda s, b, h, i, j: s + whole[h, i, j], mask_mod=lambda b, h, i, j: keys[b, j])
    scores = (products(q, k) + exact[0]).masked_fill(~keys[:, None, None], NEVER)
    return with_gradients(out.float(), ours), with_gradients(softmax_product(scores, v), exact)


CASES: dict[str, Case] = {name: value for name, value in globals().items() if name[:1] == "b" and name[1:3].isdigit()}
TOLERANCE, HALF = (2e-4, 2e-5), (3e-2, 3e-2)
"""Relative and absolute, against float64: of fp32 results, and of those in half precision."""
COMPUTED_IN_HALF = ("b33_masks_and_biases_that_broadcast",)
"""Cases whose results are fp32 but come from half inputs."""


def check(name: str, attention: Attention) -> None:
    """Runs a case; raises AssertionError where a result is off."""
    actual, expected = CASES[name](attention)
    pairs = zip(actual, expected, strict=True) if isinstance(actual, tuple) else [(actual, expected)]
    for n, (a, e) in enumerate(pairs):
        half = name in COMPUTED_IN_HALF or a.dtype in (torch.bfloat16, torch.float16)
        rtol, atol = HALF if half else TOLERANCE
        where = f"{name}, result {n}: "
        torch.testing.assert_close(a.double(), e.double(), rtol=rtol, atol=atol, msg=where.__add__)
