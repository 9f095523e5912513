"""Plans of the cudnn backend: pieces, graphs for them, the trial, and what a direction takes and gives."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import cudnn
import torch
from torch import Tensor

from flexsdpa.backends.cudnn.handles import handle_on
from flexsdpa.backends.cudnn.layout import TILE, Layout, Native, Piece, guarded, layout
from flexsdpa.backends.cudnn.lower import MASKED, Lowering, View, view_of
from flexsdpa.backends.cudnn.rules import lowered_program, needs_wide_views
from flexsdpa.backends.cudnn.torch_check import Trial, disagreement, make_trial
from flexsdpa.backends.cudnn.torch_graph import TYPES, Graph
from flexsdpa.backends.cudnn.torch_operands import view
from flexsdpa.backends.cudnn.tune import finished
from flexsdpa.backends.protocol import BuildSpec
from flexsdpa.ir.program import Program
from flexsdpa.logs import logger
from flexsdpa.plans.key import ArtifactKey
from flexsdpa.plans.plan import Plan, PlanDeclined
from flexsdpa.plans.store import STORE
from flexsdpa.spec.request import AttentionRequest
from flexsdpa.spec.tensors import ordered_strides
from flexsdpa.version import __version__

LOWERING = "2"
"""Raised where a change of lower.py or of the trial makes what is kept on disk worthless within one version."""

_VERDICTS: dict[tuple[Any, ...], str] = {}
"""What trials found, by everything that a kernel's code depends on: empty where it agreed."""


class _CudnnPlan:
    """What the two directions share: the layout, one graph per distinct piece shape, a lock around their use."""

    def __init__(self, request: AttentionRequest, trusted: bool = False, kept: bool = True) -> None:
        self.request = request
        self.kept = kept
        self.program = finished(lowered_program(request))
        self.trusted = trusted
        q_len, kv_len = request.q.shape[2], request.k.shape[2]
        self.layout: Layout = layout(self.program, request.direction, q_len, kv_len)
        self.whole = self.layout.whole(q_len, kv_len)
        self.wide = needs_wide_views(request)
        self.moving = tuple(axis for axis, starts in self.layout.starts().items() if any(starts))
        self.graphs: dict[tuple[int, int], Graph] = {}
        self.lock = threading.Lock()
        self.refused: PlanDeclined | None = None

    def graph(self, piece: Piece, tensors: dict[str, Tensor], arrays: Sequence[Tensor], handle: Any) -> Graph:
        """The graph for pieces of this shape: from memory, from disk, or built. cuDNN's refusal is kept, in its words."""
        shape = (piece.q1 - piece.q0, piece.k1 - piece.k0)
        found = self.graphs.get(shape)
        if found is None:
            guard = guarded(self.request.direction, piece)
            views = {
                what: view(arrays[what.slot], what, tensors["q"].shape[:2], piece) for what in views_of(self.program, self.wide)
            }
            key = self.artifact_key(tensors, views, guard)
            found = self._load(key, handle) or self._build(key, tensors, views, guard, handle)
            self.graphs[shape] = found
        return found

    def artifact_key(self, tensors: dict[str, Tensor], views: dict[View, Tensor], guard: bool) -> ArtifactKey:
        """Everything that a graph's bytes depend on."""
        r = self.request
        named = {**tensors, **{repr(what): x for what, x in sorted(views.items(), key=lambda item: repr(item[0]))}}
        facts = tuple((name, str(x.dtype), tuple(x.shape), tuple(x.stride())) for name, x in named.items())
        options = {
            "native": self.layout.native,
            "guarded": guard,
            "deterministic": r.deterministic,
            "lowering": LOWERING,
            "moving": self.moving,
        }
        return ArtifactKey(
            r.direction, "cudnn", (("flexsdpa", __version__), *r.device.libraries), r.device.name, r.device.capability,
            self.program.text, facts, tuple((name, repr(value)) for name, value in options.items()),
        )  # fmt: skip

    def _load(self, key: ArtifactKey, handle: Any) -> Graph | None:
        data = STORE.load(key) if self.kept else None
        if data is None:
            return None
        try:
            return Graph.loaded(self.program, data, handle)
        except Exception as error:
            logger.warning("cuDNN does not take a kernel that was kept on disk, it is built again: %s", error)
            return None

    def _build(self, key: ArtifactKey, tensors: dict[str, Tensor], views: dict[View, Tensor], guard: bool, handle: Any) -> Graph:
        made = Graph.empty(self.program, tensors["q"].dtype, handle)
        made.examples = views
        lowering = Lowering(self.program, TYPES, made.declare, guard, self.moving, self.wide)
        try:
            self.describe(made, lowering, tensors, made.input("scale", made.scale, by_value=True))
            made.build()
        except cudnn.cudnnGraphNotSupportedError as error:
            text = " ".join(str(error).split())
            logger.info("cuDNN refused %s: %s", self.request.summary(), text)
            self.refused = PlanDeclined("cudnn.build", "graph", f"cuDNN says: {text[-300:]}", "a graph that cuDNN builds", True)
            raise self.refused from None
        if self.kept:
            STORE.save(key, made.saved(), self.request.summary())
        return made

    def describe(self, made: Graph, lowering: Lowering, tensors: dict[str, Tensor], scale: Any) -> None:
        raise NotImplementedError

    def attempt(self, trial: Trial, scalars: Sequence[float]) -> dict[str, Tensor]:
        raise NotImplementedError

    def try_out(self, arrays: Sequence[Tensor], scalars: Sequence[float]) -> None:
        """Raises PlanDeclined if the program, run on a small problem, does not give what the interpreter gives."""
        if self.trusted or self.layout.native is not None:
            return
        if torch.cuda.is_current_stream_capturing():
            raise PlanDeclined("cudnn.capture", "graph capture", "a first call under capture", "one call before the capture")
        r = self.request
        rests = r.q.shape[2] % TILE, r.k.shape[2] % TILE
        key = (r.direction, r.program, r.device, r.q.dtype, r.q.shape[3], r.v.shape[3], r.group, r.deterministic, rests)
        if key not in _VERDICTS and STORE.load(self._verdict_key(key)) is not None:
            _VERDICTS[key] = ""  # another process tried it, with these versions on this model of card
        if key not in _VERDICTS:
            trial = make_trial(r, lowered_program(r), arrays, scalars)
            try:
                found = type(self)(trial.request, trusted=True, kept=False).attempt(trial, scalars)
            except PlanDeclined as declined:  # what cannot be tried cannot be trusted
                self.refused = declined
                raise
            _VERDICTS[key] = disagreement(trial.answers, found)
            if not _VERDICTS[key]:
                STORE.save(self._verdict_key(key), b"agreed", f"trial of {r.summary()}")
        self.trusted = True
        if _VERDICTS[key]:
            logger.warning("cuDNN builds a kernel for %s that computes wrongly: %s", r.summary(), _VERDICTS[key])
            self.refused = PlanDeclined(
                "cudnn.trial", "result", _VERDICTS[key], "a kernel that agrees with the interpreter", True
            )
            raise self.refused

    def _verdict_key(self, key: tuple[Any, ...]) -> ArtifactKey:
        r = self.request
        facts = tuple((str(n), repr(x)) for n, x in enumerate(key) if x is not r.device)
        return ArtifactKey(
            r.direction, "cudnn", (("flexsdpa", __version__), *r.device.libraries), r.device.name, r.device.capability,
            self.program.text, (), (("trial", LOWERING), *facts),
        )  # fmt: skip

    def mask_options(self, lowering: Lowering) -> dict[str, Any]:
        """Native flags, or the callback; nothing for plain attention."""
        native: Native | None = self.layout.native
        if native is None:
            return {"score_mod": lowering.score_mod}
        if native == Native():
            return {}
        options: dict[str, Any] = {"diagonal_alignment": cudnn.diagonal_alignment.TOP_LEFT}
        if native.left is not None:
            options["diagonal_band_left_bound"] = native.left
        if native.right is not None:
            options["diagonal_band_right_bound"] = native.right
        return options

    def execute(self, piece: Piece, tensors: dict[str, Tensor], arrays: Sequence[Tensor], scalars: Sequence[float]) -> None:
        device = tensors["q"].device
        with self.lock:
            if not self.trusted:
                self.try_out(arrays, scalars)
            if self.refused is not None:
                raise self.refused
            handle = handle_on(device)
            self.graph(piece, tensors, arrays, handle).run(tensors, arrays, scalars, piece, handle)


def views_of(program: Program, wide: bool) -> set[View]:
    """Every view that lowering may ask for."""
    found = (view_of(program, program.instrs[n], wide) for n in program.reads())
    return {what for what in found if what is not None}


class CudnnForward(_CudnnPlan):
    """out and LSE."""

    def attempt(self, trial: Trial, scalars: Sequence[float]) -> dict[str, Tensor]:
        scale = trial.q.shape[3] ** -0.5
        return dict(zip(("out", "lse"), self.run(trial.q, trial.k, trial.v, trial.arrays, [scale, *scalars[1:]]), strict=True))

    def describe(self, made: Graph, lowering: Lowering, tensors: dict[str, Tensor], scale: Any) -> None:
        q, k, v = (made.input(name, tensors[name]) for name in ("q", "k", "v"))
        out, lse = made.graph.sdpa(q=q, k=k, v=v, attn_scale=scale, generate_stats=True, **self.mask_options(lowering))
        made.output("out", out, tensors["out"])
        made.output("lse", lse, tensors["lse"])

    def run(self, q: Tensor, k: Tensor, v: Tensor, arrays: Sequence[Tensor], scalars: Sequence[float]) -> tuple[Tensor, Tensor]:
        q, k, v = (aligned(x) for x in (q, k, v))
        out = empty_ordered(q, v.shape[3])
        lse = torch.empty((*q.shape[:3], 1), dtype=torch.float32, device=q.device)
        with on(q.device):
            if self.whole:
                self.execute(self.layout.pieces[0], {"q": q, "k": k, "v": v, "out": out, "lse": lse}, arrays, scalars)
            else:
                fill_dead(self.layout.pieces, out, lse)
            for piece in self.layout.pieces if not self.whole else ():
                tensors = {
                    "q": rows(q, piece),
                    "k": keys(k, piece),
                    "v": keys(v, piece),
                    "out": rows(out, piece),
                    "lse": rows(lse, piece),
                }
                self.execute(piece, tensors, arrays, scalars)
            if self.layout.may_be_dead:
                dead = lse < MASKED / 2
                lse.masked_fill_(dead, -torch.inf)
                out.masked_fill_(dead, 0.0)
        return out, lse.squeeze(3)


class CudnnBackward(_CudnnPlan):
    """dq, dk, dv. dk and dv of several bands are summed in fp32, the band with most keys first: it needs no zeros."""

    def attempt(self, trial: Trial, scalars: Sequence[float]) -> dict[str, Tensor]:
        scale = trial.q.shape[3] ** -0.5
        grads = self.run(
            trial.grad_out, None, trial.q, trial.k, trial.v, trial.out, trial.lse, trial.arrays, [scale, *scalars[1:]]
        )
        return {name: grad for name, grad in zip(("dq", "dk", "dv"), grads, strict=False) if grad is not None}

    def describe(self, made: Graph, lowering: Lowering, tensors: dict[str, Tensor], scale: Any) -> None:
        given = {name: made.input(name, tensors[name]) for name in ("q", "k", "v", "o", "dO", "stats")}
        options = self.mask_options(lowering)
        if "score_mod" in options:
            options["score_mod_bprop"] = lowering.score_mod_bprop
        grads = made.graph.sdpa_backward(
            **given, attn_scale=scale, use_deterministic_algorithm=self.request.deterministic, **options
        )
        for name, grad in zip(("dq", "dk", "dv"), grads, strict=True):
            made.output(name, grad, tensors[name])

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
        assert grad_out is not None
        q, k, v = (aligned(x) for x in (q, k, v))
        out, grad_out = in_order(out, q), in_order(grad_out, q)
        dq, dk, dv = (empty_ordered(x, x.shape[3]) for x in (q, k, v))
        with on(q.device):
            stats = lse.contiguous().unsqueeze(3)
            if self.layout.may_be_dead:
                stats = torch.where(stats == -torch.inf, torch.inf, stats)
            if self.whole:
                self._piece(self.layout.pieces[0], q, k, v, out, grad_out, stats, dq, dk, dv, arrays, scalars)
            else:
                self._bands(q, k, v, out, grad_out, stats, dq, dk, dv, arrays, scalars)
        grads = (dq, dk, dv)
        wanted = [grad if need else None for grad, need in zip(grads, self.request.needs, strict=False)]
        return [*wanted, *[None] * len(arrays)]

    def _bands(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, grad_out: Tensor, stats: Tensor,
        dq: Tensor, dk: Tensor, dv: Tensor, arrays: Sequence[Tensor], scalars: Sequence[float],
    ) -> None:  # fmt: skip
        fill_dead(self.layout.pieces, dq)
        sums: list[Tensor] = []
        for piece in sorted(self.layout.pieces, key=lambda piece: piece.k0 - piece.k1):
            first = not sums and (piece.k0, piece.k1) == (0, k.shape[2])
            parts = [dk, dv] if first else [empty_ordered(keys(x, piece), x.shape[3]) for x in (k, v)]
            self._piece(
                piece, rows(q, piece), keys(k, piece), keys(v, piece), rows(out, piece), rows(grad_out, piece),
                rows(stats, piece).contiguous(), rows(dq, piece), parts[0], parts[1], arrays, scalars,
            )  # fmt: skip
            if first:
                sums = [x.float() for x in parts]
                continue
            sums = sums or [torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (dk, dv)]
            for total, part in zip(sums, parts, strict=True):
                keys(total, piece).add_(part)
        for grad, total in zip((dk, dv), sums or (torch.zeros_like(dk), torch.zeros_like(dv)), strict=True):
            grad.copy_(total)

    def _piece(
        self, piece: Piece, q: Tensor, k: Tensor, v: Tensor, out: Tensor, grad_out: Tensor, stats: Tensor,
        dq: Tensor, dk: Tensor, dv: Tensor, arrays: Sequence[Tensor], scalars: Sequence[float],
    ) -> None:  # fmt: skip
        tensors = {"q": q, "k": k, "v": v, "o": out, "dO": grad_out, "stats": stats, "dq": dq, "dk": dk, "dv": dv}
        self.execute(piece, tensors, arrays, scalars)


def on(device: torch.device) -> AbstractContextManager[Any]:
    """The device guard, which costs microseconds where it changes nothing."""
    return NOTHING_TO_GUARD if torch.cuda.current_device() == device.index else torch.cuda.device(device)


NOTHING_TO_GUARD: AbstractContextManager[Any] = contextlib.nullcontext()


def rows(x: Tensor, piece: Piece) -> Tensor:
    return x[:, :, piece.q0 : piece.q1]


def keys(x: Tensor, piece: Piece) -> Tensor:
    return x[:, :, piece.k0 : piece.k1]


def fill_dead(pieces: Sequence[Piece], out: Tensor, lse: Tensor | None = None) -> None:
    """Queries before the first and after the last piece have no keys: out 0, LSE -inf."""
    first, last = (pieces[0].q0, pieces[-1].q1) if pieces else (out.shape[2], out.shape[2])
    for part in (slice(0, first), slice(last, None)):
        out[:, :, part].zero_()
        if lse is not None:
            lse[:, :, part].fill_(-torch.inf)


known_strides = functools.lru_cache(maxsize=1024)(ordered_strides)


def empty_ordered(like: Tensor, last: int) -> Tensor:
    """An uninitialised (B, H, S, last) tensor in the memory order of ``like``."""
    shape = (*like.shape[:3], last)
    return torch.empty_strided(shape, known_strides(shape, like.stride()), dtype=like.dtype, device=like.device)


def in_order(x: Tensor, like: Tensor) -> Tensor:
    """x in the memory order that the forward gives, which is what the graph was built for."""
    shape = tuple(x.shape)
    strides = known_strides(shape, like.stride())
    if x.stride() == strides and x.data_ptr() % 16 == 0:
        return x
    return torch.empty_strided(shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def aligned(x: Tensor) -> Tensor:
    """cuDNN wants tensors on 16-byte boundaries; a view that starts elsewhere is copied, strides kept."""
    if x.data_ptr() % 16 == 0:
        return x
    if 0 in x.stride():
        raise PlanDeclined("cudnn.alignment", "storage", "an expanded tensor off a 16-byte boundary", "16-byte boundaries")
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


def build(spec: BuildSpec) -> Plan:
    return CudnnForward(spec.request) if spec.derivative is None else CudnnBackward(spec.request)
