"""Score mods: ``f(score, b, h, q_idx, kv_idx) -> score``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flexsdpa import ops
from flexsdpa.errors import RequestError


@dataclass(frozen=True, eq=False)
class softcap:
    """Soft-capped scores (Gemma 2): ``cap * tanh(score / cap)``.

    cap: a positive number, or a 0-D tensor if it is learned. A new value costs nothing: it is a run-time operand.
    """

    cap: Any

    def __post_init__(self) -> None:
        if isinstance(self.cap, int | float) and not 0 < self.cap < math.inf:
            raise RequestError(f"softcap needs a positive finite cap, got {self.cap}", field="cap", got=self.cap)
        if isinstance(self.cap, int):
            object.__setattr__(self, "cap", float(self.cap))

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return self.cap * ops.tanh(score / self.cap)


def alibi_slopes(heads: int) -> list[float]:
    """The slopes of the ALiBi paper for a number of heads (Press et al. 2022).

    ``2 ** (-8 * (n + 1) / heads)`` for powers of two; otherwise those of the next lower power of two, followed by every
    second slope of the next higher one.
    """
    if heads < 1:
        raise RequestError(f"alibi_slopes needs at least one head, got {heads}", field="heads", got=heads)
    whole = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (n + 1) / whole) for n in range(whole)]
    between = [2.0 ** (-8.0 * (n + 1) / (2 * whole)) for n in range(0, 2 * whole, 2)]
    return slopes + between[: heads - whole]


@dataclass(frozen=True, eq=False)
class alibi:
    """Linear biases: ``score - slopes[h] * (q_idx - kv_idx)``, or ``|q_idx - kv_idx|`` where symmetric.

    slopes: (Hq,) float tensor; ``torch.tensor(alibi_slopes(heads))``. Receives a gradient if it requires one.
    """

    slopes: Any
    symmetric: bool = False

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        distance = ops.abs(q_idx - kv_idx) if self.symmetric else q_idx - kv_idx
        return score - ops.read(self.slopes, h) * distance


@dataclass(frozen=True, eq=False)
class relative_bias:
    """A learned bias per distance: ``score + table[h, q_idx - kv_idx + center]``.

    table: (Hq, N) or (N,) float tensor. center: the column of distance 0, ``(N - 1) // 2`` by default.
    clip: distances beyond the table use its ends; without it they are an error, unless masked.
    """

    table: Any
    center: int | None = None
    clip: bool = False

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        size = self.table.shape[-1]
        center = (size - 1) // 2 if self.center is None else self.center
        column = q_idx - kv_idx + center
        if self.clip:
            column = ops.clamp(column, min=0, max=size - 1)
        return score + (ops.read(self.table, h, column) if self.table.ndim == 2 else ops.read(self.table, column))


def t5_bucket(distance: Any, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128) -> Any:
    """The bucket of a distance ``kv_idx - q_idx`` (Raffel et al. 2020).

    Half of the buckets (a quarter per direction where bidirectional) hold one distance each; the rest grow
    logarithmically up to max_distance, beyond which all distances share the last. Computed in fp32, as T5 does.
    """
    start: Any = 0
    if bidirectional:
        num_buckets //= 2
        start = ops.where(distance > 0, num_buckets, 0)
        distance = ops.abs(distance)
    else:
        distance = ops.maximum(-distance, 0)
    exact = num_buckets // 2
    growth = _fp32(ops.log(_fp32(ops.maximum(distance, 1)) / exact))
    steps = _fp32(_fp32(growth / math.log(max_distance / exact)) * (num_buckets - exact))
    large = ops.minimum(exact + _int(steps), num_buckets - 1)
    return start + ops.where(distance < exact, distance, large)


def _fp32(x: Any) -> Any:
    return x.float() if hasattr(x, "float") else x


def _int(x: Any) -> Any:
    return x.long() if hasattr(x, "long") else x.astype(int)


@dataclass(frozen=True, eq=False)
class t5_bias:
    """T5's learned bias: ``score + table[t5_bucket(kv_idx - q_idx), h]``.

    table: (num_buckets, Hq) float tensor, as in T5's embedding. Receives a gradient. T5 uses ``scale=1.0``.
    """

    table: Any
    bidirectional: bool = True
    max_distance: int = 128

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        bucket = t5_bucket(kv_idx - q_idx, self.bidirectional, self.table.shape[0], self.max_distance)
        return score + ops.read(self.table, bucket, h)


@dataclass(frozen=True, eq=False)
class _Chain:
    parts: tuple[Callable[..., Any], ...]

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        for part in self.parts:
            score = part(score, b, h, q_idx, kv_idx)
        return score


def chain(*score_mods: Callable[..., Any]) -> Callable[..., Any]:
    """Score mods one after the other: ``chain(f, g)`` is ``g(f(score))``."""
    return _Chain(score_mods)
