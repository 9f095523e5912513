"""Sequences of different lengths packed into one row, with or without padding between them; nested tensors."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from flexsdpa.errors import RequestError
from flexsdpa.torch.api import attention

Mod = Callable[..., Any]


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    *,
    kv_offsets: Tensor | None = None,
    lengths: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    score_mod: Mod | None = None,
    mask_mod: Mod | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    sink: Tensor | None = None,
    backend: str | None = None,
) -> Any:
    """Attention within each of N packed sequences; sequences never see each other.

    Args:
        q: (T, Hq, D). k: (Tk, Hkv, D). v: (Tk, Hkv, Dv). Sequence n holds rows offsets[n] up to offsets[n + 1].
        offsets: (N + 1,) integers, not decreasing, from 0 up to at most T. Empty sequences are fine.
        kv_offsets: those of the keys; ``offsets`` by default.
        lengths: (N,) real lengths, where the rows of a sequence include padding at its end. Padding and rows after the last
            sequence give 0, and nothing stored there (nan included) reaches another row.
        kv_lengths: those of the keys; ``lengths`` by default where neither ``kv_offsets`` nor this is given.
        score_mod, mask_mod: see positions within the sequence, and as ``b`` the number of the sequence.
        scale, return_lse, sink, backend: as for ``attention``.

    Returns:
        (T, Hq, Dv); with return_lse also the LSE, (Hq, T).

    Raises:
        RequestError: offsets or lengths that do not fit; the check reads them on the host.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 3:
            raise RequestError(
                f"{name} must be packed as (tokens, heads, head_dim), got shape {tuple(x.shape)}", field=name, got=x.shape
            )
    sequence, position = _rows(offsets, lengths, q.shape[0], "", q.device)
    kv_sequence, kv_position = sequence, position
    if kv_offsets is None and k.shape[0] != q.shape[0]:
        raise RequestError(f"k has {k.shape[0]} rows and q has {q.shape[0]}: give kv_offsets", field="kv_offsets")
    if kv_offsets is not None or kv_lengths is not None:
        of_keys = offsets if kv_offsets is None else kv_offsets
        kv_sequence, kv_position = _rows(of_keys, kv_lengths, k.shape[0], "kv_", q.device)
        if len(of_keys) != len(offsets):
            raise RequestError("offsets and kv_offsets must describe the same number of sequences", field="kv_offsets")

    def same_sequence(b: Any, h: Any, i: Any, j: Any) -> Any:
        inside = (sequence[i] == kv_sequence[j]) & (sequence[i] >= 0)
        if mask_mod is None:
            return inside
        return inside & mask_mod(sequence[i], h, position[i], kv_position[j])

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        assert score_mod is not None
        return score_mod(s, sequence[i], h, position[i], kv_position[j])

    rows = [x.unsqueeze(0) for x in (q, k, v)]
    mod = None if score_mod is None else score
    options: dict[str, Any] = {"scale": scale, "return_lse": return_lse, "sink": sink, "backend": backend}
    result = attention(*rows, score_mod=mod, mask_mod=same_sequence, layout="bshd", **options)
    return (result[0][0], result[1][0]) if isinstance(result, tuple) else result[0]


def _rows(offsets: Tensor, lengths: Tensor | None, rows: int, side: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """(sequence, position) of every row, int64; sequence -1 for padding. side: "" or "kv_", for error texts."""
    name = f"{side}offsets"
    bounds = _integers(offsets, name)
    if len(bounds) < 2 or bounds[0] != 0 or any(a > b for a, b in pairwise(bounds)) or bounds[-1] > rows:
        raise RequestError(
            f"{name} must start at 0, not decrease and end at most at the number of rows ({rows}), got {_short(bounds)}",
            field=name,
            got=bounds,
        )
    room = [b - a for a, b in pairwise(bounds)]
    real = room if lengths is None else _integers(lengths, f"{side}lengths")
    if len(real) != len(room) or any(not 0 <= n <= space for n, space in zip(real, room, strict=False)):
        raise RequestError(
            f"{side}lengths must give one length per sequence, none longer than its rows {_short(room)}, got {_short(real)}",
            field=f"{side}lengths",
            got=real,
        )
    start, size = torch.tensor(bounds, device=device), torch.tensor([*real, 0], device=device)
    row = torch.arange(rows, device=device)
    sequence = torch.searchsorted(start[1:].contiguous(), row, right=True)
    position = row - start[sequence]
    return torch.where(position < size[sequence], sequence, -1), position


def _integers(x: Tensor, name: str) -> list[int]:
    if not isinstance(x, Tensor) or x.dim() != 1 or x.is_floating_point() or x.dtype == torch.bool:
        raise RequestError(f"{name} must be a 1-D integer tensor", field=name, got=x)
    return [int(n) for n in x.tolist()]


def _short(values: list[int]) -> str:
    return str(values) if len(values) <= 8 else f"[{', '.join(map(str, values[:8]))}, ...]"


def nested_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    """``attention`` of jagged nested tensors: each sequence attends within itself. Called by ``attention``.

    q, k, v: nested (B, H, S*, D) in layout "bhsd" or (B, S*, H, D) in "bshd", where S* varies.
    """
    layout = options.pop("layout", "bhsd")
    ragged = {"bhsd": 2, "bshd": 1}.get(layout)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not x.is_nested or x.layout != torch.jagged or x.dim() != 4 or _jagged(x)._ragged_idx != ragged:
            raise RequestError(
                f"nested attention needs q, k and v as jagged nested tensors whose lengths are dimension {ragged} of layout "
                f"{layout!r}; {name} is not",
                field=name,
            )
    for name in ("q_offset", "return_lse"):
        if options.pop(name, None):
            instead = "varlen_attention" if name == "return_lse" else "a mask with an offset, mods.causal(offset=...)"
            raise RequestError(f"{name} is not available for nested tensors: use {instead}", field=name)
    queries, keys = _jagged(q), _jagged(k)
    packed = [_jagged(x).values() if ragged == 1 else _jagged(x).values().transpose(0, 1) for x in (q, k, v)]
    same = torch.equal(queries.offsets(), keys.offsets()) and packed[0].shape[0] == packed[1].shape[0]
    out = varlen_attention(
        packed[0],
        packed[1],
        packed[2],
        queries.offsets(),
        kv_offsets=None if same else keys.offsets(),
        lengths=queries.lengths(),
        kv_lengths=keys.lengths(),
        **options,
    )
    nested = torch.nested.nested_tensor_from_jagged(out, queries.offsets(), queries.lengths())
    return nested if ragged == 1 else nested.transpose(1, 2)


def _jagged(x: Tensor) -> Any:
    """A jagged nested tensor, whose methods torch's types do not list."""
    return x
