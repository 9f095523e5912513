"""Dense attention on index grids: the float64 oracle, and the same in working precision for error budgets. Needs torch.

The mods are called on tensors of positions, not traced, so an oracle shares no code with what it judges. Memory is
O(B H Sq Skv): for tests only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class GuardedReads(TorchFunctionMode):
    """Makes a read out of range harmless where ``keep`` is False, and an IndexError elsewhere."""

    def __init__(self, keep: Tensor) -> None:
        super().__init__()
        self.keep = keep

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            table, index = args
            parts = []
            for dim, part in enumerate(index if isinstance(index, tuple) else (index,)):
                if isinstance(part, Tensor) and part.dtype == torch.int64:
                    outside = (part < -table.shape[dim]) | (part >= table.shape[dim])
                    if bool((outside & self.keep).any()):
                        raise IndexError("a kept position reads out of range")
                    part = torch.where(outside, 0, part)
                parts.append(part)
            args = (table, tuple(parts))
        return func(*args, **(kwargs or {}))


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    scale: float | None = None,
    work: torch.dtype = torch.float64,
    q_offset: Any = 0,
    products: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """(out, lse) in ``work``, differentiable. Rows without keys: out 0, lse -inf.

    q (B, Hq, Sq, D), k (B, Hkv, Skv, D), v (B, Hkv, Skv, Dv). products: the dtype to which probabilities and the output
    are rounded, as a low-precision kernel does.
    """
    group = q.shape[1] // k.shape[1]
    (b, h, sq, d), skv = q.shape, k.shape[2]
    k, v = (x.to(work).repeat_interleave(group, 1) for x in (k, v))
    scores = q.to(work) @ k.mT * (d**-0.5 if scale is None else scale)
    grid = [
        torch.arange(n, device=q.device).view(shape)
        for n, shape in ((b, (-1, 1, 1, 1)), (h, (-1, 1, 1)), (sq, (-1, 1)), (skv, (-1,)))
    ]
    grid[2] = grid[2] + (q_offset.view(-1, 1, 1, 1) if isinstance(q_offset, Tensor) and q_offset.dim() else q_offset)
    keep = torch.ones((), dtype=torch.bool, device=q.device)
    if mask_mod is not None:
        keep = torch.as_tensor(mask_mod(*grid), device=q.device)
    if score_mod is not None:
        with GuardedReads(keep):
            scores = torch.as_tensor(score_mod(scores, *grid)).to(work)
    scores = scores.expand(b, h, sq, skv).masked_fill(~keep, -torch.inf)
    alive = (scores != -torch.inf).any(-1, keepdim=True)
    safe = torch.where(alive, scores, 0.0)
    if skv == 0:
        return torch.zeros(b, h, sq, v.shape[3], dtype=work) + 0 * v.sum(), scores.new_full((b, h, sq), -torch.inf)
    p = safe.softmax(-1) * alive
    out = (p @ v) if products is None else (p.to(products) @ v.to(products)).to(work)
    return out, torch.where(alive[..., 0], safe.logsumexp(-1), -torch.inf)


@dataclass
class Judged:
    """What attention gave and what it should have given: out, lse and the gradients that were asked for."""

    names: list[str]
    actual: list[Tensor]
    exact: list[Tensor]
    low: list[Tensor]


def run_both(
    attention: Callable[..., Any],
    inputs: Sequence[Tensor],
    captured: Sequence[Tensor] = (),
    make_mods: Callable[..., tuple[Any, Any]] = lambda: (None, None),
    seed: int = 0,
    lse_gradient: bool = True,
    **options: Any,
) -> Judged:
    """Runs attention and both oracles, forward and backward, on the same inputs.

    inputs: q, k, v. captured: float tensors that the mods read; they receive gradients. make_mods(*captured) gives
    (score_mod, mask_mod), so each run gets its own leaves. The loss is a random sum over out and, where it is finite, lse.
    """
    generator = torch.Generator().manual_seed(seed)
    q, _, v = inputs
    w_out = torch.randn(*q.shape[:3], v.shape[3], generator=generator, dtype=torch.float64).to(q.device)
    w_lse = torch.randn(q.shape[:3], generator=generator, dtype=torch.float64).to(q.device)

    def run(call: Callable[..., Any], leaf_dtype: torch.dtype | None) -> list[Tensor]:
        leaves = [x.detach().to(leaf_dtype or x.dtype).requires_grad_() for x in (*inputs, *captured)]
        out, lse = call(*leaves[:3], *make_mods(*leaves[3:]))
        loss = (out * w_out.to(out.dtype)).sum()
        if lse_gradient:
            alive = lse.detach() != -torch.inf
            loss = loss + (lse[alive] * w_lse[alive].to(lse.dtype)).sum()
        grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        return [out, lse, *(torch.zeros_like(x) if g is None else g for g, x in zip(grads, leaves, strict=True))]

    def ours(q: Tensor, k: Tensor, v: Tensor, score_mod: Any, mask_mod: Any) -> Any:
        return attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod, return_lse=True, **options)

    def dense(work: torch.dtype) -> Callable[..., Any]:
        kept: dict[str, Any] = {name: options[name] for name in ("scale", "q_offset") if name in options}
        if work == torch.float32 and q.dtype in (torch.float16, torch.bfloat16):
            kept["products"] = q.dtype
        return lambda q, k, v, score_mod, mask_mod: dense_attention(q, k, v, score_mod, mask_mod, work=work, **kept)

    low_work = torch.float64 if q.dtype == torch.float64 else torch.float32
    names = ["out", "lse", "dq", "dk", "dv", *(f"dcaptured[{n}]" for n in range(len(captured)))]
    return Judged(names, run(ours, None), run(dense(torch.float64), torch.float64), run(dense(low_work), None))
