"""Captured tensors of every dtype, and index arithmetic, mean in a mod what they mean in torch."""

import pytest
import torch

from flexsdpa import mods
from flexsdpa.testing.budgets import assert_within_budget
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.testing.oracles import dense_attention, run_both
from flexsdpa.torch import attention

S = 31


@pytest.fixture
def doubles_by_default():
    """In torch an integer tensor times a float has the default dtype, in a mod the working dtype: here they are one."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def agrees(score_mod, mask_mod=None, dtype=torch.float32, inputs=None):
    inputs = random_qkv(2, 4, S, 8, Hkv=2, dtype=dtype, seed=1) if inputs is None else inputs
    assert_within_budget(run_both(attention, inputs, (), lambda: (score_mod, mask_mod)))


@pytest.mark.parametrize("input_dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_float_tables_of_any_dtype(dtype, input_dtype):
    table = random_tensor(4, S, dtype=dtype, seed=2)
    judged = run_both(
        attention,
        random_qkv(2, 4, S, 8, dtype=input_dtype),
        [table],
        lambda t: (lambda s, b, h, i, j: s * 0.5 + t[h, j].tanh(), None),
    )
    assert_within_budget(judged)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool], ids=str)
def test_integer_and_bool_tables(dtype):
    table = torch.randint(0, 2 if dtype == torch.bool else 100, (2, S), generator=torch.Generator().manual_seed(1)).to(dtype)
    agrees(lambda s, b, h, i, j: s + table[b, j])
    agrees(lambda s, b, h, i, j: s + 0.01 * (table[b, j].long() * 7 - i))
    agrees(None, lambda b, h, i, j: (table[b, i] == table[b, j]) | (i == j))
    if dtype == torch.bool:
        agrees(None, lambda b, h, i, j: table[b, j])
        agrees(lambda s, b, h, i, j: torch.where(table[b, i] ^ table[b, j], s, s * 2), lambda b, h, i, j: ~table[b, j] | (i == j))


def test_arithmetic_of_narrow_integers_does_not_overflow():
    table = torch.full((S,), 127, dtype=torch.int8)
    wide = table.long()
    q, k, v = random_qkv(1, 1, S, 8)
    out = attention(q, k, v, score_mod=lambda s, b, h, i, j: s + 0.001 * (table[j] * table[i] + j))
    expected, _ = dense_attention(q, k, v, lambda s, b, h, i, j: s + 0.001 * (wide[j] * wide[i] + j))
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)


def test_transcendentals_of_half_tables_are_computed_in_fp32():
    mass = (random_tensor(S, seed=3).abs() + 0.5).half()
    judged = run_both(
        attention, random_qkv(2, 4, S, 8, dtype=torch.float16), [mass],
        lambda mass: (lambda s, b, h, i, j: s + torch.log(mass[j].float()) - torch.exp(mass[i].float()), None),
    )  # fmt: skip
    assert_within_budget(judged)
    q, k, v = random_qkv(2, 4, S, 8, dtype=torch.float16)
    without_casts = attention(q, k, v, score_mod=lambda s, b, h, i, j: s + torch.log(mass[j]) - torch.exp(mass[i]))
    assert torch.equal(without_casts, judged.actual[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_index_arithmetic_is_not_rounded_to_the_input_dtype(dtype):
    inputs = random_qkv(1, 1, 1025, 8, dtype=dtype)
    agrees(lambda s, b, h, i, j: s - 0.3 * (i - j).abs(), inputs=inputs)
    # LSE is about 1024 here, and exp(score - LSE) is as imprecise as the rounding of an fp32 LSE, which a dense softmax has not.
    judged = run_both(attention, inputs, (), lambda: (lambda s, b, h, i, j: s + (i - j), mods.causal))
    assert_within_budget(judged, factor=4.0)


def test_index_arithmetic_is_64_bits_wide():
    big = 46341 * 46341
    agrees(lambda s, b, h, i, j: s * ((i * big + j * big + 2**40) % 7))
    agrees(None, lambda b, h, i, j: ((i + 2**31) * (j + 2**31) // 2**31) % 5 != 0)


SIGNED = {
    "floor division": lambda i, j: (i - j - 9) // 4,
    "floor division by a negative": lambda i, j: (i - j) // -3,
    "modulo": lambda i, j: (i - j - 9) % 4,
    "modulo of a negative": lambda i, j: (i - j) % -3,
    "torch.remainder": lambda i, j: torch.remainder(i - j, 5),
    "torch.fmod": lambda i, j: torch.fmod(i - j, 5),
    "div floor": lambda i, j: torch.div(i - j, 4, rounding_mode="floor"),
    "div trunc": lambda i, j: torch.div(i - j, 4, rounding_mode="trunc"),
    "true division": lambda i, j: (i - j) / 4,
    "windows": lambda i, j: (i - 12 - 3) // 4 == (j - 12 - 3) // 4,
    "by a position": lambda i, j: (i - j) // (j + 1) + (i - j) % (j + 1),
    "number divided by a position": lambda i, j: -100 // (j + 1) + 100 % (i + 1),
    "powers": lambda i, j: (i - j) ** 2 + (i - j) ** 3,
    "shifts": lambda i, j: (i << 2) + (j >> 1) + ((i - j) >> 1),
    "bits": lambda i, j: (i & j) + (i | j) - (i ^ j) + ~j,
    "absolute": lambda i, j: abs(i - j) + torch.abs(j - i),
    "sign": lambda i, j: torch.sign(i - j) - (j - i).sign(),
    "clamp": lambda i, j: (i - j).clamp(-3, 5) + torch.clamp(i, max=4) + torch.clamp(j, min=2),
    "smallest and largest": lambda i, j: torch.minimum(i, j) - torch.maximum(i, j),
    "comparison as a number": lambda i, j: (i > j) * 3 + (i == j) + (i != j).long() - (i >= j).double() + (i < j).int(),
    "negation": lambda i, j: -(i - j) + (+i),
    "where of integers": lambda i, j: torch.where(i > j, i, -j),
    "logical": lambda i, j: torch.logical_and(i > 3, j) | torch.logical_or(i == 1, j == 2) ^ torch.logical_not(j),
    "cast of a quotient": lambda i, j: ((i - j) / 3).long() + ((i - j) * 0.4).int(),
    "isin by hand": lambda i, j: (i == 1) | (i == 4) | (j == 5),
}


@pytest.mark.parametrize("name", SIGNED)
def test_integer_arithmetic_is_pythons(name, doubles_by_default):
    f = SIGNED[name]
    agrees(lambda s, b, h, i, j: s + 0.1 * f(i, j), dtype=torch.float64)
    agrees(lambda s, b, h, i, j: s * torch.where(f(i, j) > 0, 0.5, 2.0), dtype=torch.float64)


def test_divmod_is_quotient_and_remainder():
    q, k, v = random_qkv(1, 2, S, 8)
    out = attention(q, k, v, score_mod=lambda s, b, h, i, j: s + divmod(i - j, 4)[0] * divmod(i - j, -4)[1])
    assert torch.equal(out, attention(q, k, v, score_mod=lambda s, b, h, i, j: s + ((i - j) // 4) * ((i - j) % -4)))


@pytest.mark.parametrize("sign", [1, -1])
def test_casts_round_once(sign, doubles_by_default):
    agrees(
        lambda s, b, h, i, j: s + sign * (s * 0.1).half().float() * 0 + (i * 1.001).to(torch.bfloat16).double(),
        dtype=torch.float64,
    )
    agrees(lambda s, b, h, i, j: s + (i * 100).to(torch.int8) * 0.01 + (j * 100).to(torch.uint8) * 0.01, dtype=torch.float64)


def test_numbers_of_every_kind():
    import numpy as np

    for one in (
        2,
        2.5,
        True,
        np.float32(2.5),
        np.float64(2.5),
        np.int64(2),
        np.bool_(True),
        torch.tensor(2.5),
        torch.tensor(2),
        torch.tensor(True),
    ):
        number = torch.as_tensor(one) if isinstance(one, np.generic) else one
        q, k, v = random_qkv(1, 2, S, 8, dtype=torch.float64)
        out = attention(q, k, v, score_mod=lambda s, b, h, i, j: s * one + one * j)
        expected, _ = dense_attention(q, k, v, lambda s, b, h, i, j: s * number + number * j)
        torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 50.0, 3, -7])
def test_special_constants_keep_their_meaning(value):
    agrees(lambda s, b, h, i, j: (s + value) * 0.5 + (s - value) - value, dtype=torch.float64)
    agrees(lambda s, b, h, i, j: torch.tanh(s * value) + torch.where(s < value, 1.0, value), dtype=torch.float64)


def test_minus_infinity_and_nan_constants():
    agrees(lambda s, b, h, i, j: torch.where(j > i, -float("inf"), s))
    agrees(lambda s, b, h, i, j: torch.where(torch.isnan(j * float("nan")) & (j <= i), s, -torch.inf))


def test_tables_are_read_by_all_four_indices_at_once():
    slots = torch.randperm(S, generator=torch.Generator().manual_seed(2)).expand(2, 4, S).contiguous()
    agrees(None, lambda b, h, i, j: slots[b, h, j] <= i)
    table = random_tensor(2, 4, S, S, seed=3)
    agrees(lambda s, b, h, i, j: s + table[b, h, i, j] + table[b, h, j, i])
    q, k, v = random_qkv(2, 4, S, 8)
    step_by_step = attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[b, h][i, j] + table[b][h][j][i])
    assert torch.equal(
        step_by_step, attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[b, h, i, j] + table[b, h, j, i])
    )


def test_a_table_is_read_through_another():
    order = torch.randperm(S, generator=torch.Generator().manual_seed(4))
    pages = torch.randint(0, 4, (2, S // 8 + 1), generator=torch.Generator().manual_seed(5))
    bias = random_tensor(4, 8, seed=6)
    judged = run_both(
        attention,
        random_qkv(2, 4, S, 8),
        [bias],
        lambda t: (lambda s, b, h, i, j: s + t[pages[b, order[j] // 8], order[j] % 8], None),
    )
    assert_within_budget(judged)


def test_negative_indices_count_from_the_end():
    table = random_tensor(2 * S - 1, seed=7)
    judged = run_both(attention, random_qkv(2, 4, S, 8), [table], lambda t: (lambda s, b, h, i, j: s + t[i - j], None))
    assert_within_budget(judged)


def test_an_embedding_is_a_table():
    weight = random_tensor(10, 4, seed=8)
    judged = run_both(attention, random_qkv(2, 4, S, 8), [weight], lambda w: (lambda s, b, h, i, j: s + w[(j - i) % 10, h], None))
    assert_within_budget(judged)
    q, k, v = random_qkv(2, 4, S, 8)
    by_function = attention(q, k, v, score_mod=lambda s, b, h, i, j: s + torch.nn.functional.embedding((j - i) % 10, weight)[h])
    torch.testing.assert_close(by_function, attention(q, k, v, score_mod=lambda s, b, h, i, j: s + weight[(j - i) % 10, h]))


@pytest.mark.parametrize("S", [1, 127, 128, 129, 1000, 1024, 1025])
def test_tables_with_exactly_one_entry_per_position(S):
    keys, queries = random_tensor(S, seed=9), random_tensor(S, seed=10)
    keep = keys > 0

    def make(key_bias, query_scale):
        return (lambda s, b, h, i, j: s * query_scale[i] + key_bias[j], lambda b, h, i, j: keep[j] | keep[i])

    assert_within_budget(run_both(attention, random_qkv(1, 2, S, 4), [keys, queries], make))
