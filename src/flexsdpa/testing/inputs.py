"""Random inputs of attention, the same for the same seed. Needs torch."""

from __future__ import annotations

import torch
from torch import Tensor


def random_tensor(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, device: str = "cpu") -> Tensor:
    """Normal numbers, drawn in fp64 and then rounded, so that one seed means the same values in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(device)


def random_qkv(
    B: int = 2,
    Hq: int = 4,
    Sq: int = 9,
    D: int = 8,
    *,
    Hkv: int | None = None,
    Skv: int | None = None,
    Dv: int | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    device: str = "cpu",
) -> tuple[Tensor, Tensor, Tensor]:
    """q (B, Hq, Sq, D), k (B, Hkv, Skv, D), v (B, Hkv, Skv, Dv). What is not given is as for q."""
    heads, length = Hq if Hkv is None else Hkv, Sq if Skv is None else Skv
    return (
        random_tensor(B, Hq, Sq, D, dtype=dtype, seed=3 * seed, device=device),
        random_tensor(B, heads, length, D, dtype=dtype, seed=3 * seed + 1, device=device),
        random_tensor(B, heads, length, D if Dv is None else Dv, dtype=dtype, seed=3 * seed + 2, device=device),
    )
