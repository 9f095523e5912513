"""Tensors as a request sees them: dtype, shape and strides, never data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's dtype (short name), shape and strides in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def stride_class(self) -> str:
        """``contiguous``, ``broadcast`` (a stride of 0 over more than one element) or ``strided``."""
        if not self.strides or self.strides == contiguous_strides(self.shape):
            return "contiguous"
        if any(stride == 0 and size > 1 for stride, size in zip(self.strides, self.shape, strict=True)):
            return "broadcast"
        return "strided"

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def ordered_strides(shape: tuple[int, ...], like: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a new (B, H, S, D) tensor in the memory order of one with strides ``like``.

    q stored (B, S, H, D) gives an output stored so, which reshapes to (B, S, H * D) without a copy.
    """
    b, h, s, d = shape
    if s > 1 and b > 1 and like[0] < like[2] and like[1] < like[2]:  # (S, B, H, D)
        return h * d, d, b * h * d, 1
    if s > 1 and h > 1 and like[1] < like[2]:  # (B, S, H, D)
        return s * h * d, d, h * d, 1
    return h * s * d, s * d, d, 1
