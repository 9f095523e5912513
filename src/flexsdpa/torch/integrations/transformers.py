"""Hugging Face transformers: ``register()``, then ``attn_implementation="flexsdpa"``.

Attention and mask are registered under one name: with attention alone, transformers would hand over no mask and padding
would be attended to in silence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flexsdpa.errors import RequestError, UnsupportedError
from flexsdpa.mods import chain, softcap
from flexsdpa.torch.api import attention

NAME = "flexsdpa"
INTERFACE_FLAGS = ("_supports_attention_backend", "_supports_sdpa", "_supports_flex_attn")
"""A model that calls transformers' attention interface has one of them."""


def register(name: str = NAME) -> None:
    """Makes ``from_pretrained(..., attn_implementation=name)`` use flexsdpa, mask and attention together.

    Padding, causal, sliding-window, chunked and packed masks, soft-caps, position biases and attention sinks work.
    Needs transformers 5. May be called more than once.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, make_mask)
    _accept(name)


def _accept(name: str) -> None:
    """Lets every model take the name.

    transformers 5 looks for "sdpa" anywhere in the name and then asks whether the model supports torch's SDPA, which says
    nothing about this one: Gemma 2, whose soft-cap SDPA lacks, would be refused.
    """
    from transformers import PreTrainedModel

    check = PreTrainedModel.get_correct_attn_implementation
    names: set[str] = getattr(check, "_flexsdpa_names", set())
    if not names:

        @functools.wraps(check)
        def accepting(self: Any, requested_attention: str | None, is_init_check: bool = False) -> Any:
            if requested_attention not in names:
                return check(self, requested_attention, is_init_check)
            if not any(getattr(self, flag, False) for flag in INTERFACE_FLAGS):
                raise UnsupportedError(
                    f"{type(self).__name__} computes attention itself and does not ask transformers' attention interface: "
                    "attn_implementation can only be 'eager' there"
                )
            return requested_attention

        accepting._flexsdpa_names = names  # type: ignore[attr-defined]
        PreTrainedModel.get_correct_attn_implementation = accepting
    names.add(name)


@dataclass(frozen=True, eq=False)
class PositionMask:
    """A mask as a function of positions, where models expect a tensor: it knows the shape, dtype and device of one.

    Slices that models take (``mask[:, :, :, :kv_len]``) give the mask itself: it has no elements to cut off.
    """

    mask_mod: Callable[..., Any]
    shape: torch.Size
    device: torch.device
    dtype: torch.dtype = torch.bool

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def to(self, *_: Any, **__: Any) -> PositionMask:
        return self

    def __getitem__(self, _: Any) -> PositionMask:
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _no_tensor(str(func.__name__))

    def _computed(self, *_: Any) -> Any:
        raise _no_tensor("arithmetic")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __and__ = __or__ = __invert__ = __bool__ = _computed


def _no_tensor(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"this model computes with its attention mask ({what}), and with flexsdpa the mask is a function of positions, not a "
        "tensor: use attn_implementation='sdpa' or 'eager' for it"
    )


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | PositionMask | None = None,
    device: Any = "cpu",
    **_: Any,
) -> PositionMask:
    """transformers' mask interface. attention_mask: (B, tokens seen), True or 1 for real tokens."""
    from transformers import masking_utils

    if isinstance(attention_mask, PositionMask):
        return attention_mask  # generate() makes the mask before the model is called, and hands it over as its own
    function = masking_utils.causal_mask_function if mask_function is None else mask_function
    padding = None
    if attention_mask is not None and (torch.compiler.is_compiling() or not bool(attention_mask.all())):
        padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset).bool()

    q_start, kv_start = _start(q_offset, device), _start(kv_offset, device)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        q_position, kv_position = q_idx + q_start, kv_idx + kv_start
        keep = function(b, h, q_position, kv_position)
        return keep if padding is None else keep & padding[b, kv_position]

    shape = torch.Size((batch_size, 1, q_length, kv_length))
    return PositionMask(mask_mod, shape, torch.device(device))


def _start(offset: Any, device: Any) -> Any:
    """Positions move with every generated token: as a tensor a new one is no new program. 0 stays a constant."""
    if isinstance(offset, Tensor) or (isinstance(offset, int) and offset == 0):
        return offset
    return torch.ones((), dtype=torch.int64, device=device) * offset


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | PositionMask | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: (B, H, S, D) in, (B, S, H, D) out, no attention weights."""
    if dropout:
        raise UnsupportedError(
            f"attention dropout ({dropout}) is not supported by flexsdpa: set the model's attention dropout to 0 "
            "(config.attention_dropout or attention_probs_dropout_prob), or call model.eval()"
        )
    mask_mod, bias = _mask_of(attention_mask, query, key)
    if attention_mask is None and is_causal:
        mask_mod = _causal
    out = attention(
        query,
        key,
        value,
        score_mod=_score_mod(softcap, bias, position_bias),
        mask_mod=mask_mod,
        scale=scaling,
        sink=s_aux,
    )
    return out.transpose(1, 2).contiguous(), None


def _causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return kv_idx <= q_idx


def _mask_of(mask: Tensor | PositionMask | None, query: Tensor, key: Tensor) -> tuple[Callable[..., Any] | None, Tensor | None]:
    """(mask_mod, additive bias) of what the model hands over."""
    if mask is None:
        return None, None
    if isinstance(mask, PositionMask):
        if mask.shape[2] != query.shape[2] or mask.shape[3] < key.shape[2]:
            raise RequestError(
                f"the mask was made for {mask.shape[2]} queries and {mask.shape[3]} keys, but attention has {query.shape[2]} and "
                f"{key.shape[2]}",
                field="attention_mask",
                got=tuple(mask.shape),
            )
        return mask.mask_mod, None
    if mask.dim() != 4 or mask.shape[2] not in (1, query.shape[2]) or mask.shape[3] < key.shape[2]:
        raise RequestError(
            f"a tensor mask must be (batch or 1, heads or 1, {query.shape[2]}, {key.shape[2]}), got {tuple(mask.shape)}",
            field="attention_mask",
            got=tuple(mask.shape),
        )
    if mask.dtype == torch.bool:
        return (lambda b, h, i, j: mask[_at(mask, b, h, i, j)]), None
    return None, mask


def _score_mod(cap: float | None, bias: Tensor | None, position_bias: Tensor | None) -> Callable[..., Any] | None:
    parts: list[Callable[..., Any]] = [] if cap is None else [softcap(cap)]
    parts += [_Bias(x) for x in (bias, position_bias) if x is not None]
    return chain(*parts) if parts else None


@dataclass(frozen=True, eq=False)
class _Bias:
    """score + bias[b, h, q_idx, kv_idx] with dimensions of size 1 shared."""

    bias: Tensor

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + self.bias[_at(self.bias, b, h, q_idx, kv_idx)]


def _at(x: Tensor, *indices: Any) -> tuple[Any, ...]:
    return tuple([0 if size == 1 else index for size, index in zip(x.shape, indices, strict=True)])
