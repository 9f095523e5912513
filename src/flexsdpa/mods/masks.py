"""Masks: ``f(b, h, q_idx, kv_idx) -> bool``, True where attention is allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flexsdpa import ops
from flexsdpa.errors import RequestError, TraceError

Mask = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class _Causal:
    """Causal: ``kv_idx <= q_idx + offset``.

    ``mods.causal`` is the mask itself; ``mods.causal(offset=n)`` is one with an offset: with Skv - Sq the diagonal ends in the
    bottom-right corner, as when decoding with a cache. offset: an integer, or an integer tensor of shape () or (B,).
    """

    offset: Any = 0

    def __call__(self, *args: Any, offset: Any = None) -> Any:
        if not args:
            return _Causal(self.offset if offset is None else offset)
        if len(args) != 4:
            raise TraceError(
                f"causal is a mask_mod (b, h, q_idx, kv_idx); it was called with {len(args)} arguments: pass it as mask_mod="
            )
        b, _, q_idx, kv_idx = args
        return kv_idx <= q_idx + per_batch(self.offset, b)


causal = _Causal()


@dataclass(frozen=True, eq=False)
class sliding_window:
    """A window of ``window`` keys that ends at the query: ``0 <= q_idx - kv_idx < window``.

    causal=False: both sides, ``|q_idx - kv_idx| < window``, so 2 * window - 1 keys. The query itself counts.
    """

    window: int
    causal: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.window, int) and self.window < 1:
            raise RequestError(
                f"sliding_window needs a window of at least 1 key, got {self.window}", field="window", got=self.window
            )

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        if self.causal:
            return (q_idx - kv_idx < self.window) & (kv_idx <= q_idx)
        return ops.abs(q_idx - kv_idx) < self.window


@dataclass(frozen=True, eq=False)
class document:
    """Documents packed in one row: ``ids[b, q_idx] == ids[b, kv_idx]``.

    ids: (B, S) or (S,) integer tensor of document numbers. kv_ids: those of the keys, where they differ.
    Positions within a document are not renumbered. padding_id: positions with this id attend nothing.
    """

    ids: Any
    kv_ids: Any = None
    padding_id: int | None = None

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        kv_ids = self.ids if self.kv_ids is None else self.kv_ids
        mine = ops.read(self.ids, b, q_idx) if self.ids.ndim == 2 else ops.read(self.ids, q_idx)
        theirs = ops.read(kv_ids, b, kv_idx) if kv_ids.ndim == 2 else ops.read(kv_ids, kv_idx)
        same = mine == theirs
        return same if self.padding_id is None else same & (mine != self.padding_id)


@dataclass(frozen=True, eq=False)
class prefix_lm:
    """A prefix that everyone sees, causal after it: ``(kv_idx < prefix[b]) | (kv_idx <= q_idx)``.

    prefix: an integer, or an integer tensor of shape () or (B,).
    """

    prefix: Any

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (kv_idx < per_batch(self.prefix, b)) | (kv_idx <= q_idx)


@dataclass(frozen=True, eq=False)
class padding:
    """Padded batches: ``kv_idx < lengths[b]``, and ``q_idx < q_lengths[b]`` where given (padded queries then give 0).

    lengths, q_lengths: (B,) integer tensors, or one integer for all.
    """

    lengths: Any
    q_lengths: Any = None

    def __post_init__(self) -> None:
        for name, value in (("lengths", self.lengths), ("q_lengths", self.q_lengths)):
            if getattr(value, "ndim", 0) > 1 or str(getattr(value, "dtype", "")).endswith("bool"):
                raise RequestError(
                    f"padding takes {name} of shape (batch,), got shape {tuple(value.shape)}: read a boolean mask with "
                    "lambda b, h, q_idx, kv_idx: mask[b, kv_idx]",
                    field=name,
                    got=tuple(value.shape),
                )

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        keys = kv_idx < per_batch(self.lengths, b)
        return keys if self.q_lengths is None else keys & (q_idx < per_batch(self.q_lengths, b))


def per_batch(value: Any, b: Any) -> Any:
    """value[b] of a (B,) tensor; a number or a 0-D tensor as it is."""
    return ops.read(value, b) if getattr(value, "ndim", 0) == 1 else value


@dataclass(frozen=True, eq=False)
class _All:
    masks: tuple[Mask, ...]

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        result = self.masks[0](b, h, q_idx, kv_idx)
        for mask in self.masks[1:]:
            result = result & mask(b, h, q_idx, kv_idx)
        return result


@dataclass(frozen=True, eq=False)
class _Any:
    masks: tuple[Mask, ...]

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        result = self.masks[0](b, h, q_idx, kv_idx)
        for mask in self.masks[1:]:
            result = result | mask(b, h, q_idx, kv_idx)
        return result


@dataclass(frozen=True, eq=False)
class _Not:
    mask: Mask

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return ops.logical_not(self.mask(b, h, q_idx, kv_idx))


def and_masks(*masks: Mask) -> Mask:
    """Allowed where every mask allows."""
    return _All(_given(masks, "and_masks"))


def or_masks(*masks: Mask) -> Mask:
    """Allowed where at least one mask allows."""
    return _Any(_given(masks, "or_masks"))


def not_mask(mask: Mask) -> Mask:
    """Allowed where the mask does not allow."""
    return _Not(mask)


def _given(masks: tuple[Mask, ...], name: str) -> tuple[Mask, ...]:
    if not masks:
        raise RequestError(f"{name} needs at least one mask", field="masks")
    return masks
