"""The forward kernel: online softmax over tiles of keys, in base 2.

For a row of queries: s = scale * q k^T, s' = mod(s), masked to -inf; then with the running maximum m,
p = 2^((s' - m) log2 e), l += sum p, acc += p v. At the end out = acc / l and LSE = m + ln l. Powers of 2 are the fast
exponential of torch on a CPU; log2 e multiplies the difference, which keeps the rounding small, or, where no mod
needs the score itself, it is folded into the scale.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flexsdpa.backends.reference.tiles import Group, Tile
from flexsdpa.backends.reference.torch_call import LN_2, LOG2_E, Call, Compiled, is_capturing
from flexsdpa.backends.reference.torch_fault import raise_fault
from flexsdpa.backends.reference.torch_ops import TileFunction, all_finite, empty_ordered


class ForwardPlan:
    """Runs any length, batch and head count: nothing of them is baked in."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled

    def run(self, q: Tensor, k: Tensor, v: Tensor, arrays: Sequence[Tensor], scalars: Sequence[float]) -> tuple[Tensor, Tensor]:
        """(out, lse). Runs fast code; if a read leaves its tensor, or the result is not finite, runs again with care."""
        on_cpu = q.device.type == "cpu"
        call = Call(self.compiled, q, k, v, arrays, scalars, careful=False)
        masked = self.compiled.has_keep or not self.compiled.identity
        unchecked_reads = bool(arrays) and not on_cpu
        if not unchecked_reads and (not arrays or self.compiled.slices_fit(arrays, call.sizes)):
            try:
                out, lse = _Forward(call).run()
            except IndexError:
                pass
            else:
                if not masked or is_capturing(q.device) or all_finite([out], call.F):
                    return out, lse
        return _Forward(Call(self.compiled, q, k, v, arrays, scalars, careful=True)).run()


class _Forward:
    def __init__(self, call: Call) -> None:
        self.call = call
        self.compiled = call.compiled
        self.score_mod = self.compiled.function(("score",), call.careful)
        self.keep = self.compiled.function(("keep",), call.careful)
        self.may_mask = self.compiled.has_keep or not self.compiled.identity
        self.scale = call.scale * (LOG2_E if self.compiled.identity else 1.0)

    def run(self) -> tuple[Tensor, Tensor]:
        call = self.call
        s = call.sizes
        out = empty_ordered(call.q, s.Dv)
        lse = torch.empty((s.B, s.Hq, s.Sq), dtype=call.F, device=call.device)
        if s.Skv == 0 or (out.numel() == 0 and lse.numel() == 0):
            return out.zero_(), lse.fill_(-torch.inf)
        self.scores = call.buffer("scores", call.walk.tile_kv)
        self.acc = call.buffer("sums", s.Dv)
        for group, q0, q1, tiles in call.rows():
            out_row, lse_row = call.query_view(out, group, q0, q1), call.query_view(lse, group, q0, q1)
            if tiles:
                self.row(group, q0, q1, tiles, out_row, lse_row)
            else:
                out_row.zero_()
                lse_row.fill_(-torch.inf)
        return out, lse

    def row(self, group: Group, q0: int, q1: int, tiles: list[Tile], out: Tensor, lse: Tensor) -> None:
        """One row of queries over all its tiles."""
        call = self.call
        n, rows = group.size, call.sizes.G * (q1 - q0)
        q = call.queries(call.q, group, q0, q1).mul_(self.scale)
        acc = self.acc[: n * rows * call.sizes.Dv].view(n, rows, call.sizes.Dv)
        spoiled = None
        m: Tensor | None = None
        total: Tensor | None = None
        for tile in tiles:
            s = self.score_tile(group, q0, q1, tile, q)
            v = call.keys(call.v, group, tile.k0, tile.k1)
            top = s.amax(-1, keepdim=True)
            peak = top if m is None else torch.maximum(m, top)
            shift = peak.masked_fill(peak.isinf(), 0.0) if self.may_mask else peak
            p = self.exponential(s.sub_(shift))
            if call.careful:
                v, spoiled = _finite_part(p, v, spoiled)
            if m is None or total is None:
                total = p.sum(-1, keepdim=True)
                torch.bmm(p, v, out=acc)
            else:
                decay = self.exponential(m.sub_(shift))
                total = total.mul_(decay).add_(p.sum(-1, keepdim=True))
                acc.mul_(decay).baddbmm_(p, v)
            m = peak
        assert m is not None
        assert total is not None
        whole = total.masked_fill(total == 0, 1.0) if self.may_mask else total
        acc.div_(whole)
        if spoiled is not None:
            acc.add_(spoiled)
        out.copy_(acc.view(out.shape))
        lse.copy_((m.add_(total.log2()).mul_(LN_2) if self.compiled.identity else m.add_(total.log())).view(lse.shape))

    def exponential(self, x: Tensor) -> Tensor:
        """e^x, or 2^x where scores are in units of ln 2 already; in place."""
        return x.exp2_() if self.compiled.identity else x.mul_(LOG2_E).exp2_()

    def score_tile(self, group: Group, q0: int, q1: int, tile: Tile, q: Tensor) -> Tensor:
        """Masked scores of one tile, as (n, G * Tq, Tk)."""
        call = self.call
        raw = raw_scores(call, self.scores, group, q0, q1, tile, q)
        keeps = keep_spans(call, self.keep, group, q0, q1, tile, raw)
        score = raw
        if not self.compiled.identity:
            result = self.score_mod(raw, *call.operands(group, q0, q1, tile.k0, tile.k1))
            if call.careful and result[1] is not None:
                check_fault(call, result[1], keeps, group, q0, tile.k0, raw.shape)
            score = full_tile(result[0], raw)
        mask_scores(score, keeps)
        return score.view(group.size, q.shape[1], tile.k1 - tile.k0)


def raw_scores(call: Call, buffer: Tensor, group: Group, q0: int, q1: int, tile: Tile, q: Tensor) -> Tensor:
    """q k^T of one tile in ``buffer``, as (nb, nh * G, Tq, Tk); q is (n, G * Tq, D), scaled."""
    n, rows, columns = group.size, q.shape[1], tile.k1 - tile.k0
    flat = buffer[: n * rows * columns].view(n, rows, columns)
    torch.bmm(q, call.keys(call.k, group, tile.k0, tile.k1).mT, out=flat)
    return flat.view(group.b1 - group.b0, (group.h1 - group.h0) * call.sizes.G, q1 - q0, columns)


def full_tile(score: Tensor, raw: Tensor) -> Tensor:
    """A mod's result as a tile that may be written to: a mod that ignores the score gives fewer axes."""
    whole = score.shape == raw.shape and score.is_contiguous()
    return score if whole else torch.empty_like(raw).copy_(score)


Spans = list[tuple[tuple[int, int], Tensor]]


def keep_spans(call: Call, keep: TileFunction, group: Group, q0: int, q1: int, tile: Tile, raw: Tensor) -> Spans:
    """The mask on those spans of a tile in which it is not known to be all True."""
    spans: Spans = []
    for start, stop in tile.masked:
        part = raw[..., start:stop]
        result = keep(part, *call.operands(group, q0, q1, tile.k0 + start, tile.k0 + stop))
        if call.careful and result[1] is not None:
            check_fault(call, result[1], [], group, q0, tile.k0 + start, part.shape)
        spans.append(((start, stop), result[0]))
    return spans


def mask_scores(score: Tensor, keeps: Spans) -> None:
    for (start, stop), keep in keeps:
        score[..., start:stop].masked_fill_(~keep, -torch.inf)


def check_fault(call: Call, fault: Tensor, keeps: Spans, group: Group, q0: int, k0: int, shape: Sequence[int]) -> None:
    """Raises ReadError if a position that the mask keeps depends on a read out of range. Waits for the device."""
    if is_capturing(call.device):
        return
    kept = fault.expand(shape)
    if keeps:
        kept = kept.clone()
        for (start, stop), keep in keeps:
            kept[..., start:stop] &= keep
    if bool(kept.any()):
        b, h, i, j = kept.nonzero()[0].tolist()
        raise_fault(call, {"b": group.b0 + b, "h": group.h0 * call.sizes.G + h, "q": q0 + i, "kv": k0 + j})


def _finite_part(p: Tensor, v: Tensor, spoiled: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """(v with everything that is not finite replaced by 0, what the replaced values do to rows that see them).

    A value that is nan or inf spoils the rows whose probability for it is positive, and no others.
    """
    if not is_capturing(v.device) and bool(torch.isfinite(v).all()):
        return v, spoiled
    seen = (p != 0).to(p.dtype)
    effect = torch.zeros((), dtype=p.dtype, device=p.device)
    for test, value in ((v == torch.inf, torch.inf), (v == -torch.inf, -torch.inf), (torch.isnan(v), torch.nan)):
        hit = torch.bmm(seen, test.to(p.dtype)) > 0
        effect = effect + torch.where(hit, value, 0.0)
    clean = torch.nan_to_num(v, nan=0.0, posinf=0.0, neginf=0.0)
    return clean, effect if spoiled is None else spoiled + effect
