"""GPU benchmarks: flexsdpa against torch's compiled FlexAttention (Triton) and torch SDPA, all in one run.

    python benchmarks/h200.py [--write] [--only causal]

B4 Hq32 Hkv8 S4096 D128 bf16, forward and backward, medians of CUDA-event timings with the caches flushed between runs
(triton.testing.do_bench). First calls are those of a fresh function in this process. Host time is per call, without waiting.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from approximate_tanh import approximate_tanh, lower_to_ptx
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from triton.testing import do_bench

from flexsdpa import mods
from flexsdpa.bench.report import write
from flexsdpa.torch import attention, explain

RESULTS = Path(__file__).parent / "results"
B, HQ, HKV, S, D = 4, 32, 8, 4096, 128
LIMITS = {
    "causal": (0.97, 3.15), "softcap": (2.40, 6.35), "softcap + causal": (1.55, 4.30), "score + (q - kv)": (2.00, 5.60),
    "ALiBi + causal, slopes tensor": (1.55, 4.30), "window 512 causal": (0.36, 1.40),
}  # fmt: skip
Mod = Callable[..., Any]


def softcap(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return 20.0 * torch.tanh(score / 20.0)


def workloads() -> dict[str, tuple[Mod | None, Mod | None]]:
    slopes = torch.tensor(mods.alibi_slopes(HQ), device="cuda")
    causal = lambda b, h, i, j: i >= j
    return {
        "causal": (None, causal),
        "softcap": (softcap, None),
        "softcap + causal": (softcap, causal),
        "score + (q - kv)": (lambda s, b, h, i, j: s + (i - j), None),
        "ALiBi + causal, slopes tensor": (lambda s, b, h, i, j: s - slopes[h] * (i - j), causal),
        "window 512 causal": (None, lambda b, h, i, j: (i >= j) & (i - j < 512)),
    }


def contenders(score_mod: Mod | None, mask_mod: Mod | None, name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "flexsdpa", lambda q, k, v: attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod)
    block_mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, S, S)
    compiled = torch.compile(flex_attention, dynamic=False)
    yield "flex (Triton)", lambda q, k, v: compiled(q, k, v, score_mod=score_mod, block_mask=block_mask, enable_gqa=True)
    if score_mod is softcap:
        yield "flex (Triton), approximate tanh", approximated(block_mask)
    if name == "causal":
        yield "SDPA", lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def approximated(block_mask: Any) -> Callable[..., Any]:
    """FlexAttention with tanh as one instruction, whose error is about 5e-4; compiled in the first call."""
    compiled = torch.compile(flex_attention, dynamic=False)

    def capped(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return 20.0 * approximate_tanh(score / 20.0)

    def call(q: Any, k: Any, v: Any) -> Any:
        lower_to_ptx()
        return compiled(q, k, v, score_mod=capped, block_mask=block_mask, enable_gqa=True)

    return call


def measure(name: str, score_mod: Mod | None, mask_mod: Mod | None) -> Iterator[list[Any]]:
    torch.manual_seed(0)
    q = torch.randn(B, HQ, S, D, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    k, v = (torch.randn(B, HKV, S, D, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    grad = torch.randn_like(q)
    told = explain(q, k, v, score_mod=score_mod, mask_mod=mask_mod)
    for contender, call in contenders(score_mod, mask_mod, name):
        torch._dynamo.reset()
        try:
            first = seconds(lambda call=call: call(q, k, v))
        except Exception as error:
            if contender == "flexsdpa":
                raise
            print(f"{name}: {contender} does not run here: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        out = call(q, k, v)
        first_backward = seconds(lambda out=out: out.backward(grad, retain_graph=True))
        forward = do_bench(lambda call=call: call(q, k, v), warmup=25, rep=100, return_mode="median")
        backward = do_bench(
            lambda out=out: out.backward(grad, retain_graph=True),
            warmup=25,
            rep=100,
            grad_to_none=[q, k, v],
            return_mode="median",
        )
        ours = contender == "flexsdpa"
        used = f"{told.forward.decision.backend} / {told.backward.decision.backend}" if ours else ""
        limits = LIMITS[name] if ours else ("", "")
        yield [name, contender, used, forward, limits[0], backward, limits[1], first, first_backward]


def seconds(run: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def host() -> Iterator[list[Any]]:
    """Microseconds a call takes on the host, B1 H8 S128 D64."""
    q, k, v = (torch.randn(1, 8, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    calls = {
        "flexsdpa causal": lambda: attention(q, k, v, mask_mod=mods.causal),
        "flexsdpa softcap": lambda: attention(q, k, v, score_mod=softcap),
        "SDPA causal": lambda: scaled_dot_product_attention(q, k, v, is_causal=True),
    }
    for name, call in calls.items():
        for _ in range(50):
            call()
        rounds = []
        for _ in range(5):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(200):
                call()
            rounds.append((time.perf_counter() - start) / 200 * 1e6)
        yield [name, sorted(rounds)[2]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="record the tables under benchmarks/results/")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--folder", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    facts = {"card": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    columns = ["workload", "", "backends", "forward ms", "at most", "backward ms", "at most", "first s", "first backward s"]
    rows = [row for name, pair in workloads().items() if arguments.only in name for row in measure(name, *pair)]
    tables = [("gpu-speed", columns, rows), ("gpu-host", ["call", "us"], list(host()))]
    for name, heads, table in tables:
        for row in table:
            print("  ".join(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row), flush=True)
        if arguments.write:
            write(arguments.folder, name, __doc__ or "", heads, table, **facts)


if __name__ == "__main__":
    main()
