"""How long a decision takes: a call of another framework asked of every backend, and flexsdpa's own decision.

    python benchmarks/decisions.py [--write]

Medians over 2,000 decisions of each kind; no framework is imported.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flexsdpa.bench.report import write
from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.eligibility.field.decide import BACKENDS, decide_case
from flexsdpa.engine import ENGINE
from flexsdpa.spec.device import Device
from flexsdpa.spec.request import AttentionRequest
from flexsdpa.spec.tensors import TensorSpec, contiguous_strides
from flexsdpa.trace.run import IDENTITY_TEXT

RESULTS = Path(__file__).parent / "results"
ROUNDS = 2000
CALLS: dict[str, dict[str, Any]] = {
    "causal on sm_90": {"mask": "causal"},
    "ragged training on sm_121": {"cc": "12.1", "layout": "thd_thd_thd", "mask": "padding_causal", "training": True},
    "fp8 on sm_100": {"cc": "10.0", "dtype": "fp8_current", "mask": "causal", "training": True},
    "score_mod on sm_80": {"cc": "8.0", "score_mod": "yes"},
}


def median_us(work: Callable[[], object]) -> float:
    """The median of ROUNDS calls, in microseconds."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000


def rows() -> list[list[Any]]:
    found: list[list[Any]] = []
    for name, changes in CALLS.items():
        case = FieldCase.of(**changes)
        every = median_us(lambda case=case: [decide_case(case, backend) for backend in BACKENDS])
        found.append([name, f"{len(BACKENDS)} backends, as other frameworks call them", every, 200])
    shape = (4, 32, 4096, 128)
    spec = TensorSpec("bf16", shape, contiguous_strides(shape))
    for device in ("sm_90", "sm_121", "cpu"):
        request = AttentionRequest("backward", Device.parse(device), spec, spec, spec, IDENTITY_TEXT, needs=(True, True, True))
        mine = median_us(lambda request=request: ENGINE.decide(request))
        found.append([f"flexsdpa's own, backward on {device}", f"{len(ENGINE.backends)} backends", mine, 200])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="record the table under benchmarks/results/")
    table = rows()
    for name, asked, us, limit in table:
        print(f"{name:<40} {asked:<36} {us:7.1f} us (at most {limit})")
    assert "torch" not in sys.modules
    slow = [name for name, _, us, limit in table if us > limit]
    if parser.parse_args().write:
        method = f"Medians of {ROUNDS} decisions, in microseconds; every rule of every backend is asked. benchmarks/decisions.py"
        write(RESULTS, "decisions", method, ("call", "asked", "us", "at most"), table)
    if slow:
        sys.exit(f"over the bar: {', '.join(slow)}")


if __name__ == "__main__":
    main()
