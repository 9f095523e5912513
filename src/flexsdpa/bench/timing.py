"""Wall-clock timing: medians over interleaved rounds, so that a slow phase of the machine hits every contender alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of one contender."""

    median_ms: float
    low_ms: float
    high_ms: float
    rounds: int


def compare(contenders: Mapping[str, Run], rounds: int = 9, warmup: int = 2, wait: Run | None = None) -> dict[str, Timing]:
    """Times contenders in turn, ``rounds`` times. low and high are the quartiles. wait: waits for the device."""
    for run in contenders.values():
        for _ in range(warmup):
            run()
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    gc.collect()
    for _ in range(rounds):
        for name, run in contenders.items():
            if wait:
                wait()
            start = time.perf_counter()
            run()
            if wait:
                wait()
            samples[name].append((time.perf_counter() - start) * 1e3)
    return {name: _timing(values) for name, values in samples.items()}


def _timing(values: list[float]) -> Timing:
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return Timing(statistics.median(ordered), ordered[quarter], ordered[-1 - quarter], len(ordered))


def once_ms(run: Run) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3
