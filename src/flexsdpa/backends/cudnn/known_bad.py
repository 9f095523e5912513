"""Releases of cuDNN that compute something wrongly, as rows: doctor prints them, the rule ``cudnn.known-bad`` asks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flexsdpa.backends.cudnn.layout import layout
from flexsdpa.ir.canonical import program_of
from flexsdpa.spec.request import AttentionRequest

Version = tuple[int, ...]
NEVER: Version = (1 << 30,)


@dataclass(frozen=True, slots=True)
class KnownBad:
    """What releases from ``first`` up to, not including, ``fixed`` get wrong, on one family of cards or on all (empty)."""

    id: str
    first: Version
    fixed: Version
    family: str
    what: str
    source: str
    concerns: Callable[[AttentionRequest], bool]

    def covers(self, version: Version) -> bool:
        return self.first <= version < self.fixed

    @property
    def versions(self) -> str:
        first = ".".join(map(str, self.first)) if self.first else "any"
        return f"{first} and newer" if self.fixed == NEVER else f"{first} to before {'.'.join(map(str, self.fixed))}"


def _always(request: AttentionRequest) -> bool:
    return True


def _open_window(request: AttentionRequest) -> bool:
    """A bound on the left without the causal one on the right, over more than 1024 keys, as a native flag."""
    q_len, kv_len = request.q.shape[2], request.k.shape[2]
    native = layout(program_of(request.program), request.direction, q_len, kv_len).native
    return native is not None and native.left is not None and native.right != 0 and kv_len > 1024


def _large_unequal_dims(request: AttentionRequest) -> bool:
    d, dv = request.q.shape[3], request.v.shape[3]
    return request.direction == "backward" and d != dv and min(d, dv) >= 128 and (d, dv) != (192, 128)


TE = "TransformerEngine, fused_attn.cpp"
FE = "cudnn-frontend, sdpa_support_surface.h"
KNOWN_BAD: tuple[KnownBad, ...] = (
    KnownBad("half-precision", (9, 10, 0), (9, 10, 2), "", "fp16 and bf16 attention, forward and backward", f"{TE}; {FE}",
             _always),
    KnownBad("open-window", (9, 14, 0), (9, 14, 1), "", "a window with a left bound that is not causal, over more than 1024 keys",
             f"{TE}; {FE}", _open_window),
    KnownBad("unequal-dims", (9, 11, 0), NEVER, "sm_9x",
             "backward with two different head dims of 128 and more, but for 192 and 128", TE, _large_unequal_dims),
)  # fmt: skip


def known_bad(request: AttentionRequest, version: Version) -> KnownBad | None:
    """The row that says why this release must not serve a request."""
    for row in KNOWN_BAD:
        on_this_card = row.family in ("", request.device.family_name)
        if on_this_card and row.covers(version) and row.concerns(request):
            return row
    return None
