"""cuDNN-style callbacks through torch attention: gradients, plans, compile."""

import torch

from flexsdpa import mods
from flexsdpa.engine import ENGINE
from flexsdpa.testing.budgets import assert_within_budget
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.testing.oracles import run_both
from flexsdpa.torch import attention


def biased(graph, score, tensors):
    low = graph.tanh(input=graph.div(a=score, b=tensors["cap"]))
    return graph.add(a=graph.mul(a=low, b=tensors["cap"]), b=tensors["bias"])


def test_captured_tensors_get_gradients():
    captured = [random_tensor(1, 4, 9, 1), random_tensor()]

    def make(bias, cap):
        callback = mods.from_graph_callback(biased, tensors={"bias": bias, "cap": cap})
        plain = lambda s, b, h, i, j: torch.tanh(s / cap) * cap + bias[0, h, i, 0]
        return (callback if is_traced() else plain), mods.causal

    traced_now = []
    is_traced = lambda: bool(traced_now)

    def ours(*args, **kwargs):
        return attention(*args, **kwargs)

    def mods_of(bias, cap):
        traced_now[:] = [True]
        callback, mask = make(bias, cap)
        traced_now.clear()
        plain, _ = make(bias, cap)

        def either(s, b, h, i, j):
            return callback(s, b, h, i, j) if hasattr(s, "_recorder") else plain(s, b, h, i, j)

        return either, mask

    assert_within_budget(run_both(ours, random_qkv(2, 4, 9, 8, Hkv=2), captured, mods_of))


def test_another_cap_builds_nothing():
    q, k, v = random_qkv(1, 2, 16, 8)
    call = lambda cap: attention(q, k, v, score_mod=mods.from_graph_callback(biased, tensors={"cap": cap, "bias": 0.0}))
    call(2.5)
    before = ENGINE.cache.info().builds
    for cap in (3.5, 7.25, 30.0):
        torch.testing.assert_close(call(cap), attention(q, k, v, score_mod=mods.softcap(cap)))
    assert ENGINE.cache.info().builds - before <= 1  # softcap itself


def test_it_compiles():
    q, k, v = random_qkv(1, 2, 16, 8)
    bias = random_tensor(1, 2, 16, 1)
    call = lambda q, k, v: attention(q, k, v, score_mod=mods.from_graph_callback(biased, tensors={"bias": bias, "cap": 2.5}))
    torch.testing.assert_close(torch.compile(call, backend="aot_eager")(q, k, v), call(q, k, v))
