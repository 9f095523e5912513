"""The backward kernel: recomputes each tile and accumulates gradients.

With p = exp(s' - LSE), dp = dO v^T, D = sum(dO * O) - dLSE:  ds' = p (dp - D); dv += p^T dO;
ds = ds' * d(mod)/d(score); dq += scale * ds k; dk += scale * ds^T q; each read of a captured tensor receives
ds' * d(mod)/d(read), summed over the positions that read the same element.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flexsdpa.backends.reference.tiles import Group, Tile
from flexsdpa.backends.reference.torch_call import LOG2_E, Call, Compiled, is_capturing
from flexsdpa.backends.reference.torch_forward import full_tile, keep_spans, mask_scores, raw_scores
from flexsdpa.backends.reference.torch_ops import all_finite, empty_ordered
from flexsdpa.backends.reference.torch_reads import ReadSums
from flexsdpa.ir.derivative import Derivative

LARGE_LSE = 64.0
"""Where an LSE is larger, its own rounding changes probabilities by more than 4e-6: rows then find their sums again."""


class BackwardPlan:
    """Runs any length, batch and head count. ``needs`` says which gradients are wanted: q, k, v, then every array."""

    def __init__(self, derivative: Derivative, needs: tuple[bool, ...]) -> None:
        self.derivative = derivative
        self.needs = needs
        program = derivative.program
        self.results = [name for name, _ in program.results if name != "keep"]
        self.compiled = Compiled(program, self.results)
        slope = program.result("dscore")
        self.slope_is_one = slope is not None and program.instrs[slope].op == "const_f" and program.instrs[slope].attr == "1.0"

    def run(
        self,
        grad_out: Tensor | None,
        grad_lse: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        arrays: Sequence[Tensor],
        scalars: Sequence[float],
    ) -> list[Tensor | None]:
        """[dq, dk, dv, *darrays], None where not needed. Runs again with care, like the forward."""
        given = (grad_out, grad_lse, out, lse)
        unchecked_reads = bool(arrays) and q.device.type != "cpu"
        call = Call(self.compiled, q, k, v, arrays, scalars, careful=False)
        if not unchecked_reads and (not arrays or self.compiled.slices_fit(arrays, call.sizes)):
            try:
                grads = _Backward(self, call, *given).run()
            except IndexError:
                pass
            else:
                if is_capturing(q.device) or all_finite(grads, call.F):
                    return grads
        return _Backward(self, Call(self.compiled, q, k, v, arrays, scalars, careful=True), *given).run()


class _Backward:
    def __init__(
        self, plan: BackwardPlan, call: Call, grad_out: Tensor | None, grad_lse: Tensor | None, out: Tensor, lse: Tensor
    ) -> None:
        self.plan, self.call = plan, call
        self.grad_out, self.grad_lse, self.out, self.lse = grad_out, grad_lse, out, lse
        self.gradient_mod = plan.compiled.function(plan.results, call.careful)
        self.keep = plan.compiled.function(("keep",), call.careful)
        self.rough = not is_capturing(call.device) and bool(((lse.abs() > LARGE_LSE) & lse.isfinite()).any())
        # D from a half-precision out is off by its rounding, which captured tensors sum over whole rows
        self.exact_offset = call.q.dtype != call.F and any(plan.needs[3:]) and grad_out is not None

    def run(self) -> list[Tensor | None]:
        call, s = self.call, self.call.sizes
        need_q, need_k, need_v, *need_arrays = self.plan.needs
        dq = empty_ordered(call.q, s.D).zero_() if need_q else None
        dk = empty_ordered(call.k, s.D).zero_() if need_k else None
        dv = empty_ordered(call.v, s.Dv).zero_() if need_v else None
        self.reads = ReadSums(call, self.plan.derivative, need_arrays)
        if s.B * s.Hq * s.Sq * s.Skv:
            self.scores = call.buffer("scores", call.walk.tile_kv)
            self.slopes = call.buffer("slopes", call.walk.tile_kv)
            self._walk(dq, dk, dv)
        return [dq, dk, dv, *self.reads.finish()]

    def _walk(self, dq: Tensor | None, dk: Tensor | None, dv: Tensor | None) -> None:
        call = self.call
        current: Group | None = None
        dk_sum = dv_sum = None
        for group, q0, q1, tiles in call.rows():
            if group is not current:
                self._store(current, dk_sum, dk)
                self._store(current, dv_sum, dv)
                current, dk_sum, dv_sum = group, self._sum_of(group, dk), self._sum_of(group, dv)
            if tiles:
                self.row(group, q0, q1, tiles, dq, dk_sum, dv_sum)
        self._store(current, dk_sum, dk)
        self._store(current, dv_sum, dv)

    def _sum_of(self, group: Group, grad: Tensor | None) -> Tensor | None:
        """Where a group's dk or dv is summed: the result itself where its dtype and layout allow, else a buffer."""
        if grad is None:
            return None
        part = grad[group.b0 : group.b1, group.h0 : group.h1]
        if grad.dtype == self.call.F and group.b1 - group.b0 == 1:
            return part[0]
        return torch.zeros((group.size, *part.shape[2:]), dtype=self.call.F, device=grad.device)

    def _store(self, group: Group | None, total: Tensor | None, grad: Tensor | None) -> None:
        if group is None or total is None or grad is None:
            return
        part = grad[group.b0 : group.b1, group.h0 : group.h1]
        if total.data_ptr() != part.data_ptr():
            part.copy_(total.view(part.shape))

    def row(
        self, group: Group, q0: int, q1: int, tiles: list[Tile], dq: Tensor | None, dk: Tensor | None, dv: Tensor | None
    ) -> None:
        """One row of queries over all its tiles. dk and dv are the group's sums, (n, Skv, D)."""
        call = self.call
        q = call.queries(call.q, group, q0, q1).mul_(call.scale)
        lse = call.query_view(self.lse, group, q0, q1).reshape(*q.shape[:2], 1)
        dead = lse == -torch.inf
        lse = lse.masked_fill(dead, torch.inf)
        do, offset = self._output_side(group, q0, q1, dead)
        share = None
        if self.rough:
            lse, share = self._own_sums(group, q0, q1, tiles, q, lse)
        if self.exact_offset or (self.rough and self.grad_out is not None):
            offset = offset + self._offset_error(group, q0, q1, tiles, q, lse, share, do)
        q_factor = _clean(q) if call.careful else q
        dq_sum = None
        for tile in tiles:
            raw = raw_scores(call, self.scores, group, q0, q1, tile, q)
            p, results = self._probabilities(group, q0, q1, tile, raw, lse, share)
            if dv is not None:
                dv[:, tile.k0 : tile.k1].baddbmm_(p.mT, do)
            ds = self._score_gradient(group, q0, q1, tile, p, results, do, offset)
            if ds is None:
                continue
            if dq is not None:
                k = call.keys(call.k, group, tile.k0, tile.k1)
                k = _clean(k) if call.careful else k
                dq_sum = torch.bmm(ds, k) if dq_sum is None else dq_sum.baddbmm_(ds, k)
            if dk is not None:
                dk[:, tile.k0 : tile.k1].baddbmm_(ds.mT, q_factor)
        if dq is not None and dq_sum is not None:
            row = call.query_view(dq, group, q0, q1)
            row.copy_(dq_sum.mul_(call.scale).view(row.shape))

    def _output_side(self, group: Group, q0: int, q1: int, dead: Tensor) -> tuple[Tensor, Tensor]:
        """(dO, D = sum(dO * O) - dLSE) of a row, 0 where the row has no keys."""
        call = self.call
        out = call.queries(self.out, group, q0, q1)
        if self.grad_out is None:
            do, offset = torch.zeros_like(out), torch.zeros_like(dead, dtype=call.F)
        else:
            do = call.queries(self.grad_out, group, q0, q1).masked_fill_(dead, 0.0)
            offset = out.mul_(do).sum(-1, keepdim=True)
        if self.grad_lse is not None:
            offset = offset - call.query_view(self.grad_lse, group, q0, q1).reshape(dead.shape).to(call.F)
        return do, offset.masked_fill_(dead, 0.0)

    def _own_sums(self, group: Group, q0: int, q1: int, tiles: list[Tile], q: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        """(largest score, 1 / sum of exp(score - largest)) of a row, by a pass over its tiles: p = exp(s - largest) / sum."""
        call = self.call
        m, total = torch.full_like(lse, -torch.inf), torch.zeros_like(lse)
        for tile in tiles:
            raw = raw_scores(call, self.scores, group, q0, q1, tile, q)
            s, _ = self._masked_scores(group, q0, q1, tile, raw)
            s = s.view(group.size, lse.shape[1], tile.k1 - tile.k0)
            peak = torch.maximum(m, s.amax(-1, keepdim=True))
            shift = peak.masked_fill(peak.isinf(), 0.0)
            total = total * (m - shift).exp() + s.sub_(shift).exp_().sum(-1, keepdim=True)
            m = peak
        dead = lse == torch.inf
        return m.masked_fill(dead, torch.inf), total.masked_fill(dead, 1.0).reciprocal()

    def _offset_error(
        self, group: Group, q0: int, q1: int, tiles: list[Tile], q: Tensor, lse: Tensor, share: Tensor | None, do: Tensor
    ) -> Tensor:
        """sum(p dp) - sum(dO * O): what rounding out to its dtype did to D, by a pass over the row's tiles."""
        call = self.call
        exact: Tensor | None = None
        for tile in tiles:
            raw = raw_scores(call, self.scores, group, q0, q1, tile, q)
            p, _ = self._probabilities(group, q0, q1, tile, raw, lse, share)
            dp = self.slopes[: p.numel()].view(p.shape)
            torch.bmm(do, call.keys(call.v, group, tile.k0, tile.k1).mT, out=dp)
            part = dp.mul_(p)
            part = (part.masked_fill_(p == 0, 0.0) if call.careful else part).sum(-1, keepdim=True)
            exact = part if exact is None else exact.add_(part)
        assert exact is not None
        out = call.queries(self.out, group, q0, q1)
        return exact - out.mul_(do).sum(-1, keepdim=True)

    def _probabilities(
        self, group: Group, q0: int, q1: int, tile: Tile, raw: Tensor, lse: Tensor, share: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """p of one tile, (n, G * Tq, Tk), and the derivative program's results by name. p = exp(score - lse) * share."""
        score, results = self._masked_scores(group, q0, q1, tile, raw)
        p = score.view(group.size, lse.shape[1], tile.k1 - tile.k0).sub_(lse).mul_(LOG2_E).exp2_()
        return p if share is None else p.mul_(share), results

    def _masked_scores(self, group: Group, q0: int, q1: int, tile: Tile, raw: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The mod's scores of one tile, -inf where masked, and the derivative program's results by name."""
        call = self.call
        keeps = keep_spans(call, self.keep, group, q0, q1, tile, raw)
        values = self.gradient_mod(raw, *call.operands(group, q0, q1, tile.k0, tile.k1))
        results = dict(zip(self.plan.results, values, strict=False))
        score = full_tile(results["score"], raw)
        mask_scores(score, keeps)
        return score, results

    def _score_gradient(
        self, group: Group, q0: int, q1: int, tile: Tile, p: Tensor, results: dict[str, Tensor], do: Tensor, offset: Tensor
    ) -> Tensor | None:
        """d(loss)/d(score) of one tile, (n, G * Tq, Tk), after captured tensors got their share; None if it is zero."""
        call = self.call
        ds = self.slopes[: p.numel()].view(p.shape)
        torch.bmm(do, call.keys(call.v, group, tile.k0, tile.k1).mT, out=ds)
        ds.sub_(offset).mul_(p)
        shape = (group.b1 - group.b0, (group.h1 - group.h0) * call.sizes.G, q1 - q0, tile.k1 - tile.k0)
        dead = None
        if call.careful:  # a position without probability has no gradient, whatever is stored there
            dead = (p == 0).view(shape)
            ds.view(shape).masked_fill_(dead, 0.0)
        if self.reads.reads:
            at = call.operands(group, q0, q1, tile.k0, tile.k1)[4]
            self.reads.add(results, ds.view(shape), dead, at)
        if "dscore" not in results:
            return None
        if not self.plan.slope_is_one:
            ds.view(shape).mul_(results["dscore"])
            if dead is not None:
                ds.view(shape).masked_fill_(dead, 0.0)
        return ds


def _clean(x: Tensor) -> Tensor:
    """x without nan and inf: where they matter they have already reached the scores."""
    return torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
