"""Random mods against the dense float64 oracle: out, LSE and all gradients."""

import torch
from hypothesis import HealthCheck, given, settings

import flexsdpa
from flexsdpa.testing.oracles import run_both
from flexsdpa.testing.torch_strategies import random_mods
from flexsdpa.torch import attention

quiet = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def judge(mod, dtype):
    torch.set_default_dtype(dtype if dtype == torch.float64 else torch.float32)  # the oracle's integers times floats
    try:
        return run_both(attention, mod.inputs(dtype), mod.captured(dtype), mod.make_mods, backend="reference")
    finally:
        torch.set_default_dtype(torch.float32)


def assert_close(judged):
    """Errors up to 4 times those of a dense computation in working precision, plus two roundings to the result's dtype, plus
    64 working roundings of the largest gradient: where the terms of a random derivative cancel, a small gradient is a
    difference of large ones. A wrong rule is off by orders of magnitude more.
    """
    largest = max(1.0, *(float(x.detach().nan_to_num(neginf=0.0).abs().max()) for x in judged.exact if x.numel()))
    for name, seen, exact, low in zip(judged.names, judged.actual, judged.exact, judged.low, strict=True):
        seen, exact, low, precision = seen.detach().double(), exact.detach(), low.detach().double(), torch.finfo(seen.dtype).eps
        assert torch.equal(seen == -torch.inf, exact == -torch.inf), name
        alive = exact != -torch.inf
        seen, exact, low = seen[alive], exact[alive], low[alive]
        if not exact.numel():
            continue
        working = torch.finfo(torch.float64 if judged.actual[1].dtype == torch.float64 else torch.float32).eps
        allowed = 4 * float((low - exact).abs().max()) + precision * float(exact.abs().max()) + 32 * working * largest
        error = float((seen - exact).abs().max())
        assert error <= allowed, f"{name}: largest error {error:.3g}, allowed {allowed:.3g}"


@quiet
@given(random_mods(kinks=True))
def test_random_mods_in_fp64(mod):
    assert_close(judge(mod, torch.float64))


@quiet
@given(random_mods())
def test_random_mods_in_fp32(mod):
    assert_close(judge(mod, torch.float32))


@quiet
@given(random_mods())
def test_random_mods_in_bf16(mod):
    assert_close(judge(mod, torch.bfloat16))


@quiet
@given(random_mods(kinks=True))
def test_random_mods_with_tiny_tiles(mod):
    with flexsdpa.options(tile_q=3, tile_kv=5, tile_elements=40):
        assert_close(judge(mod, torch.float64))


@quiet
@given(random_mods(min_length=120, max_length=400))
def test_random_mods_over_several_blocks_of_keys(mod):
    with flexsdpa.options(tile_q=64, tile_kv=128):
        assert_close(judge(mod, torch.float32))


@quiet
@given(random_mods(score_masks=True, min_length=8))
def test_random_mods_that_mask_by_score(mod):
    assert_close(judge(mod, torch.float64))
