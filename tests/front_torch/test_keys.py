"""What shares a plan and what does not: by what a mod computes, never by its name, source or identity."""

import functools
import textwrap
import types

import pytest
import torch

import flexsdpa
from flexsdpa import mods
from flexsdpa.testing.budgets import assert_within_budget
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.testing.oracles import dense_attention, run_both
from flexsdpa.torch import attention

S = 17
MULTIPLY = lambda score, b, h, q_idx, kv_idx: score * 3.0
ADD = lambda score, b, h, q_idx, kv_idx: score + 0.5 * (kv_idx - q_idx)
FIRST, SECOND = lambda s, b, h, i, j: s - j, lambda s, b, h, i, j: s * j
SCALE = 2.0
SHIFT = 0
BIAS = torch.zeros(S)


def assert_exact(score_mod=None, mask_mod=None, **options):
    """Forward and backward agree with the oracle now, as the mod is now."""
    assert_within_budget(run_both(attention, random_qkv(2, 2, S, 8), (), lambda: (score_mod, mask_mod), **options))


def builds(call):
    """How many plans a call builds, forward and backward."""
    before = flexsdpa.cache_info().builds
    call()
    return flexsdpa.cache_info().builds - before


def train(score_mod=None, mask_mod=None, captured=(), inputs=None, **options):
    leaves = [x.detach().requires_grad_() for x in (random_qkv(2, 2, S, 8) if inputs is None else inputs)]
    out = attention(*leaves, score_mod=score_mod, mask_mod=mask_mod, **options)
    torch.autograd.grad(out.square().sum(), [*leaves, *captured])


# Different functions never share a plan.


def test_two_lambdas_of_one_module_differ():
    for mod in (MULTIPLY, ADD, MULTIPLY):
        assert_exact(mod)


def test_two_lambdas_on_one_line_differ():
    for mod in (FIRST, SECOND, FIRST):
        assert_exact(mod)


def test_lambdas_of_a_loop_differ():
    by_default = [lambda s, b, h, i, j, c=c: s * c - c * j for c in (0.25, 2, 3.5, 1, 1.0)]
    late = [lambda s, b, h, i, j: s * c for c in (0.25, 2, 3.5)]
    for mod in [*by_default, *late]:
        assert_exact(mod)


def test_functions_of_one_qualified_name_differ():
    def make(sign):
        if sign > 0:

            def mod(score, b, h, q_idx, kv_idx):
                return score + kv_idx
        else:

            def mod(score, b, h, q_idx, kv_idx):
                return score - kv_idx

        return mod  # fmt: skip

    assert make(1).__qualname__ == make(-1).__qualname__
    for sign in (1, -1, 1):
        assert_exact(make(sign))


def test_one_code_object_with_other_globals_differs():
    for scale in (0.5, 4):
        assert_exact(types.FunctionType(MULTIPLY_BY_GLOBAL.__code__, {"SCALE": scale}))


def MULTIPLY_BY_GLOBAL(score, b, h, q_idx, kv_idx):
    return score * SCALE


def test_a_function_redefined_under_its_name_differs():
    scope = {}
    for body in ("score * 2.5", "score - kv_idx", "score * 2.5"):
        exec(f"def mod(score, b, h, q_idx, kv_idx): return {body}", scope)
        assert_exact(scope["mod"])


def test_a_new_function_at_the_address_of_a_dead_one_differs():
    for n in range(30):
        mod = eval(f"lambda s, b, h, i, j: s + {n} * j - {n / 10} * i")
        q, k, v = random_qkv(1, 1, S, 8)
        torch.testing.assert_close(
            attention(q, k, v, score_mod=mod).double(), dense_attention(q, k, v, mod)[0], rtol=1e-4, atol=1e-5
        )
        del mod


PAIRS = {
    "1 and 1.0": (lambda s, b, h, i, j: s + 1 // (j + 1), lambda s, b, h, i, j: s + 1.0 / (j + 1)),
    "1 and True": (lambda s, b, h, i, j: s + (j > 1) * 1, lambda s, b, h, i, j: s + (j > 1) * 2),
    "0.0 and -0.0": (lambda s, b, h, i, j: s * (1 / (0.0 * (j + 1)) > 0), lambda s, b, h, i, j: s * (1 / (-0.0 * (j + 1)) > 0)),
    "int constants": (lambda s, b, h, i, j: s + (j % 3), lambda s, b, h, i, j: s + (j % 4)),
    "order of operands": (lambda s, b, h, i, j: s * (i - j), lambda s, b, h, i, j: s * (j - i)),
    "which index": (lambda s, b, h, i, j: s + b, lambda s, b, h, i, j: s + h),
    "strictness": (lambda s, b, h, i, j: torch.where(i > j, s, 0.5), lambda s, b, h, i, j: torch.where(i >= j, s, 0.5)),
    "min and max": (lambda s, b, h, i, j: torch.minimum(s, -s), lambda s, b, h, i, j: torch.maximum(s, -s)),
    "clamp sides": (lambda s, b, h, i, j: s.clamp(min=0.3), lambda s, b, h, i, j: s.clamp(max=0.3)),
    "cast": (lambda s, b, h, i, j: s + j * 50, lambda s, b, h, i, j: s + (j * 50).to(torch.int8)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_functions_that_differ_a_little_differ(name):
    first, second = PAIRS[name]
    for mod in (first, second, first):
        q, k, v = random_qkv(2, 2, S, 8)
        torch.testing.assert_close(
            attention(q, k, v, score_mod=mod).double(),
            dense_attention(q, k, v, mod, work=torch.float32)[0].double(),
            rtol=1e-4,
            atol=1e-5,
        )
    assert not torch.equal(attention(q, k, v, score_mod=first), attention(q, k, v, score_mod=second))


def test_a_mask_and_a_score_of_the_same_body_differ():
    assert_exact(lambda s, b, h, i, j: s * (i >= j), None)
    assert_exact(None, lambda b, h, i, j: i >= j)
    assert_exact(lambda s, b, h, i, j: s * (i >= j), lambda b, h, i, j: i >= j)


def test_mods_and_plain_sdpa_take_turns():
    q, k, v = random_qkv(2, 2, S, 8)
    plain, causal = (torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=c) for c in (False, True))
    for _ in range(2):
        torch.testing.assert_close(attention(q, k, v), plain)
        assert_exact(MULTIPLY)
        torch.testing.assert_close(attention(q, k, v, mask_mod=mods.causal), causal)
        torch.nn.functional.scaled_dot_product_attention(q, k, v)
        assert_exact(mods.softcap(1.0), mods.causal)


# What a function reads from outside counts at once.


@pytest.fixture
def globals_restored():
    yield
    globals().update(SCALE=2.0, SHIFT=0, BIAS=torch.zeros(S))


def test_a_changed_global_counts_at_once(globals_restored):
    global SCALE, SHIFT, BIAS
    mod = lambda s, b, h, i, j: s * SCALE + SHIFT * j + BIAS[j]
    for scale, shift in ((2.0, 0), (0.5, 3), (1.0, -1), (1, True), (2.0, 0)):
        SCALE, SHIFT = scale, shift
        BIAS = random_tensor(S, seed=SHIFT + 5)
        assert_exact(mod)


def test_a_changed_closure_counts_at_once():
    cap, shift, table = 1.0, 0, torch.zeros(S)
    mod = lambda s, b, h, i, j: cap * torch.tanh(s / cap) + shift * i + table[j]
    for values in ((1.0, 0), (20.0, 1), (7, 2), (1.0, 0)):
        cap, shift = values
        table = random_tensor(S, seed=shift)
        assert_exact(mod)


def test_a_changed_default_counts_at_once():
    def mod(score, b, h, q_idx, kv_idx, offset=0, *, factor=1.0):
        return score * factor - (q_idx - kv_idx + offset) // 3

    for offset, factor in ((0, 1.0), (5, 2.0), (-3, 0.5)):
        mod.__defaults__, mod.__kwdefaults__ = (offset,), {"factor": factor}
        assert_exact(mod)


def test_a_changed_attribute_counts_at_once():
    class Mod:
        window, gain = 3, 1.0

        def __call__(self, score, b, h, q_idx, kv_idx):
            return torch.where((q_idx - kv_idx).abs() < self.window, score, self.gain)

    mod = Mod()
    for Mod.window, mod.gain in ((3, 1.0), (5, 0.5), (1, 2.5)):
        assert_exact(mod)


def test_a_changed_item_counts_at_once():
    settings = {"gain": 1.0, "steps": [1, 2]}
    mod = lambda s, b, h, i, j: s * settings["gain"] + j // settings["steps"][-1]
    for settings["gain"], settings["steps"][-1] in ((1.0, 2), (0.3, 3), (4.0, 1)):
        assert_exact(mod)


def test_a_helper_that_is_replaced_counts_at_once():
    scope = types.SimpleNamespace(helper=lambda x: x * 2)
    mod = lambda s, b, h, i, j: scope.helper(s)
    for factor in (2, 0.5):
        scope.helper = lambda x: x * factor
        assert_exact(mod)


def test_a_tensor_changed_in_place_counts_at_once():
    table, limit = torch.zeros(S), torch.tensor([S, S])
    for fill, length in ((0.0, S), (1.5, 3), (-1.0, 9)):
        table[::2], limit[1] = fill, length
        assert_exact(lambda s, b, h, i, j: s + table[j], lambda b, h, i, j: j < limit[b])


@pytest.mark.parametrize("kind", ["partial", "method", "module", "callable", "builtin wrapper"])
def test_any_callable_is_a_mod(kind):
    class Owner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("slopes", torch.tensor([0.5, 0.25]))

        def forward(self, score, b, h, q_idx, kv_idx):
            return score - self.slopes[h] * (q_idx - kv_idx)

        def mask(self, b, h, q_idx, kv_idx):
            return q_idx - kv_idx >= -2

    owner = Owner()
    base = lambda slopes, s, b, h, i, j: s - slopes[h] * (i - j)
    score_mod = {
        "partial": functools.partial(base, owner.slopes),
        "method": owner.forward,
        "module": owner,
        "callable": mods.alibi(owner.slopes),
        "builtin wrapper": functools.wraps(base)(lambda *args: owner.forward(*args)),
    }[kind]
    q, k, v = random_qkv(2, 2, S, 8)
    out = attention(q, k, v, score_mod=score_mod, mask_mod=functools.partial(owner.mask) if kind == "partial" else owner.mask)
    expected, _ = dense_attention(q, k, v, owner.forward, owner.mask)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)


# The same function gets one plan.

SAME = {
    "same function": (lambda n: train(MULTIPLY), 3),
    "another float in a closure": (lambda n: train(lambda s, b, h, i, j: (s / (0.3 + n)).tanh() * (n * 0.7 + 0.1)), 12),
    "another float of a mod": (lambda n: train(mods.softcap(1.5 + n), mods.causal), 12),
    "another tensor": (lambda n: train(mods.alibi(random_tensor(2, seed=n))), 4),
    "another tensor with a gradient": (lambda n: train(mods.alibi(t := torch.ones(2, requires_grad=True)), captured=[t]), 4),
    "another closure": (lambda n: train(make_closure(random_tensor(2, seed=n))), 4),
    "another scale": (lambda n: train(MULTIPLY, scale=0.1 + n), 4),
    "another length": (lambda n: train(MULTIPLY, mods.causal, inputs=random_qkv(2, 2, 3 + 50 * n, 8)), 8),
    "another kv length": (lambda n: train(MULTIPLY, mods.causal, inputs=random_qkv(2, 2, 9, 8, Skv=1 + 70 * n)), 6),
    "another batch": (lambda n: train(MULTIPLY, inputs=random_qkv(1 + n, 2, 9, 8)), 4),
    "another number of heads": (lambda n: train(MULTIPLY, inputs=random_qkv(2, 2 + 2 * n, 9, 8, Hkv=1 + n % 2)), 4),
    "another head dim": (lambda n: train(MULTIPLY, inputs=random_qkv(2, 2, 9, 8 + n, Dv=3 + n)), 4),
    "another layout": (lambda n: train(MULTIPLY, inputs=random_qkv(2, 3, 3, 8), layout=["bhsd", "bshd", "sbhd"][n]), 3),
    "another offset": (lambda n: train(MULTIPLY, mods.causal, q_offset=n), 4),
    "another offset tensor": (lambda n: train(MULTIPLY, mods.causal, q_offset=torch.tensor(n)), 4),
    "table of another length": (lambda n: train(mods.relative_bias(random_tensor(2, 2 * S + 1 + 2 * n), center=S)), 4),
    "documents": (lambda n: train(None, mods.document(torch.arange(2 * S).view(2, S) // (n + 2))), 4),
    "lambdas of one body": (lambda n: train([lambda s, b, h, i, j: s * 3.0, lambda score, *_: 3.0 * score, MULTIPLY][n]), 3),
    "another value of a global": (lambda n: train(MULTIPLY_BY_GLOBAL), 3),
    "a function defined anew": (lambda n: train(eval("lambda s, b, h, i, j: s - 0.01 * (i - j) ** 2")), 3),
}


def make_closure(slopes):
    return lambda s, b, h, i, j: s + slopes[h]


@pytest.mark.parametrize("name", SAME)
def test_one_function_gets_one_plan_per_direction(name, empty_cache):
    call, times = SAME[name]
    for n in range(times):
        call(n)
    info = empty_cache()
    assert info.builds == 2
    assert info.hits == 2 * times - 2
    assert info.traces == times


def test_another_program_dtype_or_need_is_another_plan(empty_cache):
    train(MULTIPLY)
    assert builds(lambda: train(ADD)) == 2
    assert builds(lambda: train(MULTIPLY, inputs=random_qkv(2, 2, S, 8, dtype=torch.bfloat16))) == 2
    assert builds(lambda: train(MULTIPLY)) == 0
    q, k, v = random_qkv(2, 2, S, 8)
    assert builds(lambda: attention(q.requires_grad_(), k, v, score_mod=MULTIPLY).sum().backward()) == 1
    table = torch.ones(2)
    train(make_closure(table))
    table = torch.ones(2, dtype=torch.bfloat16)
    assert builds(lambda: train(make_closure(table))) == 2


def test_an_unknown_int_is_part_of_the_program(empty_cache):
    for position in range(4):
        train(None, lambda b, h, i, j: j <= position)
    assert empty_cache().builds == 8
    for position in range(4):
        train(None, lambda b, h, i, j: j <= torch.tensor(position))
    assert empty_cache().builds == 10


def test_cache_clear_forgets_plans_and_counters(empty_cache):
    train(MULTIPLY)
    assert empty_cache().size == 2
    flexsdpa.cache_clear()
    info = empty_cache()
    assert (info.size, info.builds, info.hits, info.traces) == (0, 0, 0, 0)
    train(MULTIPLY)
    assert empty_cache().builds == 2


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_eviction_costs_builds_and_nothing_else(capacity, empty_cache):
    pool = [MULTIPLY, ADD, FIRST, SECOND, mods.softcap(2.0)]
    with flexsdpa.options(plan_cache_size=capacity):
        for mod in pool * 2:
            assert_exact(mod)
    info = empty_cache()
    assert info.size <= capacity
    assert info.evictions == info.builds - info.size
    assert info.builds > 2 * len(pool)


def test_a_plan_in_use_may_be_evicted():
    leaves = [x.requires_grad_() for x in random_qkv(2, 2, S, 8)]
    with flexsdpa.options(plan_cache_size=1):
        out = attention(*leaves, score_mod=MULTIPLY)
        assert_exact(ADD)
        grads = torch.autograd.grad(out.sum(), leaves)
    expected = torch.autograd.grad(dense_attention(*leaves, MULTIPLY)[0].sum(), leaves)
    torch.testing.assert_close(grads, expected, rtol=1e-4, atol=1e-5)


def test_same_shapes_in_another_memory_order_are_read_right():
    q, k, v = random_qkv(1, 4, 4, 4)
    for views in ((q, k, v), (q, k.mT, v), (q.transpose(1, 2), k, v.mT), (q, k, v)):
        out = attention(*views, score_mod=MULTIPLY)
        torch.testing.assert_close(out.double(), dense_attention(*views, MULTIPLY)[0], rtol=1e-4, atol=1e-5)


def test_one_mod_in_a_fresh_process_gives_the_same_key(fresh_process):
    script = textwrap.dedent("""
        import torch
        from flexsdpa.engine import ENGINE
        from flexsdpa.torch import attention
        q = k = v = torch.ones(1, 2, 4, 8)
        cap, table = 3.0, torch.ones(2)
        attention(q, k, v, score_mod=lambda s, b, h, i, j: cap * torch.tanh(s / cap) + table[h])
        print([key.digest() for key in ENGINE.cache._plans])
    """)
    assert fresh_process(script) == fresh_process(script.replace("3.0", "4.5").replace("cap", "limit"))
