"""Tensors -> signature -> AttentionRequest, and the checks at the door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flexsdpa.errors import ArgumentError, RequestError, layout_message, nearest
from flexsdpa.spec.request import AttentionRequest, Direction, check_tensors
from flexsdpa.spec.tensors import TensorSpec
from flexsdpa.torch.devices import device_of
from flexsdpa.torch.functions import DTYPE_NAMES
from flexsdpa.trace.capture import capture_name

LAYOUTS = ("bhsd", "bshd", "sbhd")

Signature = tuple[Any, ...]


def signature_of(
    direction: Direction, q: Tensor, k: Tensor, v: Tensor, arrays: Sequence[Tensor], program: str, backend: str, *more: Any
) -> Signature:
    """Everything that a request is made of, as a hashable tuple. ``more``: needs and the LSE gradient, for backward."""
    return (
        direction, program, backend, torch.are_deterministic_algorithms_enabled(), q.device, more,
        q.dtype, q.shape, q.stride(), k.dtype, k.shape, k.stride(), v.dtype, v.shape, v.stride(),
        *[(a.dtype, a.shape, a.stride()) for a in arrays],
    )  # fmt: skip


def request_of(signature: Signature, scalars: int) -> AttentionRequest:
    """The request that a signature describes."""
    direction, program, backend, deterministic, device, more, *rest = signature
    q, k, v = (TensorSpec(DTYPE_NAMES[rest[n]], tuple(rest[n + 1]), tuple(rest[n + 2])) for n in (0, 3, 6))
    arrays = tuple(TensorSpec(DTYPE_NAMES[dtype], tuple(shape), tuple(stride)) for dtype, shape, stride in rest[9:])
    needs, lse_gradient = more or ((), False)
    return AttentionRequest(
        direction, device_of(device), q, k, v, program, arrays, scalars, needs, lse_gradient, deterministic, backend
    )


def to_bhsd(x: Tensor, layout: str) -> Tensor:
    """A view of x as (B, H, S, D)."""
    if layout == "bhsd":
        return x
    if layout == "bshd":
        return x.transpose(1, 2)
    return x.permute(1, 2, 0, 3)


def from_bhsd(x: Tensor, layout: str) -> Tensor:
    """A view of a (B, H, S, D) tensor in the caller's layout."""
    if layout == "bshd":
        return x.transpose(1, 2)
    return x.permute(2, 0, 1, 3)


HABITS = {
    "attn_mask": "mask_mod=lambda b, h, i, j: mask[i, j] where True allows; score_mod=lambda s, b, h, i, j: s + bias[i, j]",
    "is_causal": "mask_mod=flexsdpa.mods.causal",
    "dropout_p": "attention dropout is not served; apply it to the output",
    "enable_gqa": "leave it out: k and v may have fewer heads",
    "block_mask": "mask_mod=the function that the block mask was made from; empty blocks are found and skipped",
    "kernel_options": "leave it out; flexsdpa.options(...) sets what can be set",
    "return_aux": "return_lse=True",
}
"""What SDPA and FlexAttention call things -> what to write here."""
KEYWORDS = ("score_mod", "mask_mod", "scale", "layout", "return_lse", "sink", "q_offset", "backend")


def refuse_keywords(given: dict[str, Any]) -> None:
    """Raises ArgumentError for keywords that attention does not have."""
    name = next(iter(given))
    hint = HABITS.get(name, f"the keywords are {', '.join(KEYWORDS)}")
    rows = (("instead", hint),)
    raise ArgumentError(layout_message(f"attention has no {name!r}{nearest(name, KEYWORDS)}", rows), field=name, got=given[name])


def check_layout(layout: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises RequestError for an unknown layout or a rank other than 4."""
    if layout not in LAYOUTS:
        raise RequestError(
            f"unknown layout {layout!r}{nearest(layout, LAYOUTS)}; known: {', '.join(LAYOUTS)}", field="layout", got=layout
        )
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise RequestError(f"{name} must be a torch tensor, got {type(x).__name__}", field=name, got=type(x))
        if x.dim() != 4:
            axes = ", ".join({"b": "batch", "h": "heads", "s": "length", "d": "head_dim"}[letter] for letter in layout)
            shape = tuple(x.shape)
            raise RequestError(
                f"{name} must have 4 dimensions ({axes}) in layout {layout!r}, got shape {shape}", field=name, got=shape
            )


def check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises RequestError for tensors (B, H, S, D) that do not fit together."""
    for name, x in (("k", k), ("v", v)):
        if x.device != q.device:
            raise RequestError(
                f"q, k and v must be on one device, got q on {q.device} and {name} on {x.device}", field="device", got=x.device
            )
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dtype not in DTYPE_NAMES:
            raise RequestError(f"q, k and v must be one of f16, bf16, f32, f64, got {name} {x.dtype}", field="dtype", got=x.dtype)
    check_tensors(*(TensorSpec(DTYPE_NAMES[x.dtype], tuple(x.shape)) for x in (q, k, v)))


def check_arrays(arrays: list[Tensor], device: torch.device, mods: tuple[Any, ...]) -> list[Tensor]:
    """Captured tensors on the call's device. A 0-D tensor on the CPU is moved, as torch does; others are an error."""
    for n, array in enumerate(arrays):
        if array.layout != torch.strided:
            kind = str(array.layout).removeprefix("torch.")
            raise RequestError(
                f"captured tensor {capture_name(mods, array) or n} is {kind}: make it dense before the call (.to_dense())",
                field="layout",
                got=array.layout,
            )
        if array.device == device:
            continue
        if array.dim() == 0 and array.device.type == "cpu":
            arrays[n] = array.to(device)
            continue
        name = capture_name(mods, array) or f"number {n}"
        raise RequestError(
            f"captured tensor {name} of shape {tuple(array.shape)} is on {array.device}, but q is on {device}: "
            f"move it before the call ({name}.to({str(device)!r}))",
            field="device",
            got=array.device,
        )
    return arrays
