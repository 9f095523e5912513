"""CPU benchmarks: speed against torch's own attention, memory, structure analysis, host cost.

    python benchmarks/cpu.py [--write]

Every ratio comes from one run, contenders in turn, medians. ``--write`` records the tables under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from flexsdpa import cache_clear, mods
from flexsdpa.bench.report import write
from flexsdpa.bench.timing import compare
from flexsdpa.engine import ENGINE
from flexsdpa.torch import attention

RESULTS = Path(__file__).parent / "results"


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def softcap(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return 20.0 * torch.tanh(score / 20.0)


def speed() -> list[list[Any]]:
    """B1 H8 S2048 D64 fp32, forward."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 8, 2048, 64) for _ in range(3))
    block_mask = create_block_mask(causal, None, None, 2048, 2048, device="cpu")
    compiled = torch.compile(flex_attention)
    rows = []

    def add(name: str, contenders: dict[str, Any], limits: dict[str, float], rounds: int) -> None:
        timings = compare(contenders, rounds)
        ours = timings.pop("flexsdpa")
        for peer, timing in timings.items():
            ratio = ours.median_ms / timing.median_ms
            spread = f"{ours.low_ms:.1f}-{ours.high_ms:.1f}"
            rows.append([name, peer, ours.median_ms, spread, timing.median_ms, ratio, limits.get(peer, "")])

    add(
        "softcap + causal, forward",
        {
            "flexsdpa": lambda: attention(q, k, v, score_mod=softcap, mask_mod=causal),
            "flex_attention eager": lambda: flex_attention(q, k, v, score_mod=softcap, block_mask=block_mask),
            "flex_attention compiled": lambda: compiled(q, k, v, score_mod=softcap, block_mask=block_mask),
        },
        {"flex_attention eager": 0.20, "flex_attention compiled": 2.0},
        9,
    )
    sdpa = {"torch SDPA": 1.2}
    add(
        "causal, forward",
        {
            "flexsdpa": lambda: attention(q, k, v, mask_mod=causal),
            "torch SDPA": lambda: scaled_dot_product_attention(q, k, v, is_causal=True),
        },
        sdpa,
        21,
    )
    add(
        "causal, forward, backend='reference'",
        {
            "flexsdpa": lambda: attention(q, k, v, mask_mod=causal, backend="reference"),
            "torch SDPA": lambda: scaled_dot_product_attention(q, k, v, is_causal=True),
        },
        {},
        21,
    )
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    add(
        "causal, forward and backward",
        {
            "flexsdpa": lambda: attention(*leaves, mask_mod=causal).sum().backward(),
            "torch SDPA": lambda: scaled_dot_product_attention(*leaves, is_causal=True).sum().backward(),
        },
        {},
        9,
    )
    return rows


def backward() -> list[list[Any]]:
    """Training steps of mods that flex_attention cannot differentiate on a CPU, next to the plain causal one."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 8, 2048, 64, requires_grad=True) for _ in range(3))
    slopes, table = torch.rand(8, requires_grad=True), torch.randn(32, 8, requires_grad=True)
    documents = torch.repeat_interleave(torch.arange(8), 256)
    calls = {
        "causal": {"mask_mod": mods.causal},
        "softcap + causal": {"score_mod": mods.softcap(20.0), "mask_mod": mods.causal},
        "ALiBi + causal, slopes learned": {"score_mod": mods.alibi(slopes), "mask_mod": mods.causal},
        "T5 bias + causal, table learned": {"score_mod": mods.t5_bias(table), "mask_mod": mods.causal},
        "8 documents + causal": {"mask_mod": mods.and_masks(mods.document(documents), mods.causal)},
        "window 256": {"mask_mod": mods.sliding_window(256)},
    }
    runs = {name: (lambda call=call: attention(q, k, v, **call).sum().backward()) for name, call in calls.items()}
    return [[name, timing.median_ms, f"{timing.low_ms:.1f}-{timing.high_ms:.1f}"] for name, timing in compare(runs, 7).items()]


CHILD = """
import sys, torch
from flexsdpa import mods
from flexsdpa.torch import attention
def high_water(): return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) / 1024
S = int(sys.argv[1])
def step(S):
    q, k, v = (torch.randn(1, 4, S, 64, requires_grad=True) for _ in range(3))
    out = attention(q, k, v, mask_mod=mods.sliding_window(512))
    out.backward(torch.ones_like(out))
    return 8 * out.numel() * 4 / 2**20   # q, k, v, out, grad_out, dq, dk, dv
step(64)                                 # libraries and code are loaded before the measurement, tile buffers are not
open("/proc/self/clear_refs", "w").write("5")
before = high_water()
held = step(S)
print(high_water() - before - held)
"""


def memory() -> list[list[Any]]:
    """Peak memory of a step beyond inputs, output and gradients: VmHWM of a fresh process."""
    peaks = {}
    for length in (8192, 32768):
        done = subprocess.run([sys.executable, "-c", CHILD, str(length)], capture_output=True, text=True, check=True)
        peaks[length] = float(done.stdout.split()[-1])
    growth = peaks[32768] / max(peaks[8192], 1e-9)
    return [
        ["S=8192, window 512, H4 D64, forward and backward", f"{peaks[8192]:.1f} MiB", ""],
        ["S=32768, the same", f"{peaks[32768]:.1f} MiB", "200 MB"],
        ["growth of the whole peak, inputs and gradients included", f"{_total(peaks, 32768) / _total(peaks, 8192):.2f}", "4.5"],
        ["growth of the part beyond them", f"{growth:.2f}", ""],
    ]


def _total(peaks: dict[int, float], length: int) -> float:
    return peaks[length] + 8 * 4 * length * 64 * 4 / 2**20


def structure() -> list[list[Any]]:
    """Structure analysis and block map at S = 100,000."""
    from flexsdpa.ir.simplify import simplify
    from flexsdpa.ir.text import parse
    from flexsdpa.structure.analyse import analyse
    from flexsdpa.structure.blocks import Grid, block_rows
    from flexsdpa.structure.ranges import ArrayRanges
    from flexsdpa.torch.functions import ReadMode, TorchFrontend
    from flexsdpa.trace.run import trace

    length = 100_000
    documents = torch.repeat_interleave(torch.arange(length // 100), 100)
    masks = {
        "window 512": mods.sliding_window(512),
        "1000 documents + causal": mods.and_masks(mods.document(documents), mods.causal),
    }
    rows = []
    for name, mask in masks.items():
        with ReadMode():
            traced = trace(None, mask, TorchFrontend(torch.float32, torch.device("cpu"), False))

        def run(traced: Any = traced) -> None:
            program = simplify(parse(traced.text))
            analyse(program)
            ranges = [ArrayRanges(a.numpy()) for a in traced.arrays]
            block_rows(program, Grid((0, 0), (0, 0), length, length, 128, 128), ranges)

        elapsed = compare({name: run}, 9)[name]
        tracemalloc.start()
        run()
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        rows.append([name, elapsed.median_ms, "50 ms", f"{peak:.1f} MB", "50 MB"])
    return rows


def host() -> list[list[Any]]:
    """Host cost of a softcap call without its kernel: the plan is replaced by one that returns at once."""
    q, k, v = (torch.randn(1, 2, 8, 4) for _ in range(3))
    grad = q.clone().requires_grad_()
    out = torch.empty(1, 2, 8, 4), torch.empty(1, 2, 8)

    class Nothing:
        def run(self, *_: Any) -> Any:
            return out

    cache_clear()
    calls = {
        "softcap": lambda: attention(q, k, v, score_mod=softcap),
        "softcap + causal": lambda: attention(q, k, v, score_mod=softcap, mask_mod=causal),
        "softcap, with gradients": lambda: attention(grad, k, v, score_mod=softcap),
        "plain": lambda: attention(q, k, v),
    }
    for call in calls.values():
        call()
    for key in ENGINE.cache._plans:
        ENGINE.cache._plans[key] = Nothing()
    rows = [[name, _microseconds(call), "60 us" if name == "softcap" else ""] for name, call in calls.items()]
    rows += [[f"of which {name}", us, ""] for name, us in _parts(q, k, v)]
    cache_clear()
    return rows


def _parts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[tuple[str, float]]:
    from flexsdpa.torch.api import scalar_tensor
    from flexsdpa.torch.autograd import run_forward
    from flexsdpa.torch.functions import ReadMode, TorchFrontend
    from flexsdpa.trace.run import trace

    def traced() -> Any:
        with ReadMode():
            return trace(softcap, None, TorchFrontend(torch.float32, q.device, False))

    text, scalars = traced().text, scalar_tensor([0.5, 20.0, 20.0], False)
    return [
        ("tracing and text", _microseconds(traced)),
        ("the scalar tensor", _microseconds(lambda: scalar_tensor([0.5, 20.0, 20.0], False))),
        (
            "operator dispatch, signature, route and plan lookup",
            _microseconds(lambda: run_forward(q, k, v, [], scalars, text, "")),
        ),
    ]


def _microseconds(call: Any, count: int = 3000) -> float:
    samples = []
    for _ in range(200):
        call()
    for _ in range(count):
        start = time.perf_counter_ns()
        call()
        samples.append(time.perf_counter_ns() - start)
    return sorted(samples)[count // 2] / 1e3


SECTIONS: dict[str, tuple[Any, str, list[str]]] = {
    "cpu-speed": (
        speed,
        "B1 H8 S2048 D64 fp32. Milliseconds, medians of interleaved rounds in one process; spread: quartiles.",
        ["workload", "peer", "flexsdpa ms", "spread", "peer ms", "ratio", "at most"],
    ),
    "cpu-training": (
        backward,
        "B1 H8 S2048 D64 fp32, forward and backward. Milliseconds, medians of interleaved rounds; spread: quartiles. torch's "
        "flex_attention has no backward on a CPU.",
        ["workload", "ms", "spread"],
    ),
    "cpu-memory": (
        memory,
        "Peak resident memory (VmHWM, reset after a step at S=64) of a fresh process beyond q, k, v, out and their gradients.",
        ["what", "measured", "at most"],
    ),
    "structure": (
        structure,
        "Parsing, simplification, structure analysis, range tables and block map at S = 100,000 with blocks of 128. Median; "
        "peak by tracemalloc.",
        ["mask", "ms", "at most", "peak", "at most "],
    ),
    "host-cost": (
        host,
        "Microseconds of a call whose plan returns at once: B1 H2 S8 D4. Median of 3000.",
        ["call", "us", "at most"],
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="record the tables under benchmarks/results/")
    parser.add_argument("--only", choices=list(SECTIONS), help="one table")
    arguments = parser.parse_args()
    for name, (run, method, columns) in SECTIONS.items():
        if arguments.only in (None, name):
            rows = run()
            print(f"\n{name}\n  " + "  |  ".join(columns))
            for row in rows:
                print(
                    "  "
                    + "  |  ".join(
                        f"{cell:.3g}" if isinstance(cell, float) and math.isfinite(cell) else str(cell) for cell in row
                    )
                )
            if arguments.write:
                write(RESULTS, name, method, columns, rows, threads=torch.get_num_threads())


if __name__ == "__main__":
    main()
