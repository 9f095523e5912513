"""AttentionRequest: everything that decides which kernel may serve a call, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flexsdpa.dtypes import INPUT_DTYPES
from flexsdpa.errors import RequestError
from flexsdpa.spec.device import Device
from flexsdpa.spec.tensors import TensorSpec

Direction = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class AttentionRequest:
    """One direction of one attention call.

    q (B, Hq, Sq, D), k (B, Hkv, Skv, D), v (B, Hkv, Skv, Dv). program: canonical text. arrays: captured tensors
    by slot. needs: which gradients are wanted, for q, k, v and then every array (backward only).
    """

    direction: Direction
    device: Device
    q: TensorSpec
    k: TensorSpec
    v: TensorSpec
    program: str
    arrays: tuple[TensorSpec, ...] = ()
    scalars: int = 0
    needs: tuple[bool, ...] = ()
    lse_gradient: bool = False
    deterministic: bool = False
    backend: str = "auto"

    @property
    def group(self) -> int:
        """Query heads per kv head."""
        return self.q.shape[1] // max(self.k.shape[1], 1)

    def summary(self) -> str:
        """One line for error texts."""
        kv = "" if self.group == 1 else f"  kv heads {self.k.shape[1]}"
        return f"q {self.q}  k {self.k.shape}  v {self.v.shape}{kv}  {self.direction}  device {self.device}"


AXES = {
    "q": "(batch, heads, q_len, head_dim)",
    "k": "(batch, kv_heads, kv_len, head_dim)",
    "v": "(batch, kv_heads, kv_len, v_head_dim)",
}


def check_tensors(q: TensorSpec, k: TensorSpec, v: TensorSpec) -> None:
    """Raises RequestError for ranks, dtypes and sizes that do not fit together."""
    for name, spec in (("q", q), ("k", k), ("v", v)):
        if spec.rank != 4:
            raise RequestError(f"{name} must have 4 dimensions {AXES[name]}, got shape {spec.shape}", field=name, got=spec.shape)
    if not q.dtype == k.dtype == v.dtype:
        raise RequestError(
            f"q, k and v must have one dtype, got {q.dtype}, {k.dtype} and {v.dtype}: cast them, or run under autocast",
            field="dtype",
            got=(q.dtype, k.dtype, v.dtype),
        )
    if q.dtype not in INPUT_DTYPES:
        raise RequestError(f"q, k and v must be one of {', '.join(INPUT_DTYPES)}, got {q.dtype}", field="dtype", got=q.dtype)
    _check_sizes(q.shape, k.shape, v.shape)


def _check_sizes(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> None:
    if not q[0] == k[0] == v[0]:
        raise RequestError(
            f"q, k and v must have one batch size, got {q[0]}, {k[0]} and {v[0]}", field="batch", got=(q[0], k[0], v[0])
        )
    if k[1] != v[1]:
        raise RequestError(f"k and v must have the same number of heads, got {k[1]} and {v[1]}", field="heads", got=(k[1], v[1]))
    if k[1] == 0 or q[1] % k[1]:
        raise RequestError(
            f"the number of query heads must be a multiple of the kv heads (GQA), got {q[1]} and {k[1]}",
            field="heads",
            got=(q[1], k[1]),
        )
    if k[2] != v[2]:
        raise RequestError(f"k and v must have the same length, got {k[2]} and {v[2]}", field="kv_len", got=(k[2], v[2]))
    if q[3] != k[3]:
        raise RequestError(f"q and k must have the same head_dim, got {q[3]} and {k[3]}", field="head_dim", got=(q[3], k[3]))
    if q[3] == 0:
        raise RequestError("head_dim must be at least 1, got 0", field="head_dim", got=0)
