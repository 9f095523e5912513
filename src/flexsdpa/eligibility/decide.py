"""Request -> Decision: the backend that serves it, and every reason of every other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flexsdpa.eligibility.preference import RUN, order_of
from flexsdpa.eligibility.rule import Refusal, Rule
from flexsdpa.errors import RequestError, UnsupportedError, layout_message, nearest
from flexsdpa.spec.request import AttentionRequest


class Candidate(Protocol):
    """What a decision needs of a backend."""

    @property
    def name(self) -> str: ...
    @property
    def rules(self) -> tuple[Rule, ...]: ...
    @property
    def universal(self) -> bool: ...


NOTHING: Mapping[str, Refusal] = {}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One candidate's answer. No refusals: eligible."""

    backend: str
    refusals: tuple[Refusal, ...]

    @property
    def eligible(self) -> bool:
        return not self.refusals


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a request. ``backend`` is None where nobody may serve it.

    fallback: the backend of last resort serves a GPU, or a backend declined at run time.
    """

    request: AttentionRequest
    verdicts: tuple[Verdict, ...]
    backend: str | None
    fallback: bool = False

    def require(self) -> str:
        """The chosen backend, or the error that lists what to change."""
        if self.backend is not None:
            return self.backend
        asked = self.request.backend
        if asked == "auto":
            headline = f"no backend can serve this attention request ({len(self.verdicts)} refused)"
        else:
            headline = f"backend {asked!r} cannot serve this attention request, and a named backend never falls back"
        rows = [("request", self.request.summary())]
        rows += [(verdict.backend, str(refusal)) for verdict in self.verdicts for refusal in verdict.refusals]
        rows.append(("try", "flexsdpa explain, or backend='auto'" if asked != "auto" else "flexsdpa explain"))
        raise UnsupportedError(layout_message(headline, rows), decision=self)


def decide(request: AttentionRequest, candidates: Sequence[Candidate], declined: Mapping[str, Refusal] = NOTHING) -> Decision:
    """Runs every rule of every candidate. The order of preference is that of the card's family; see preference.py.

    A named backend is the only one that may be chosen. declined: what backends said at run time, by name.
    Raises RequestError for a name that nobody has.
    """
    names = [candidate.name for candidate in candidates]
    if request.backend != "auto" and request.backend not in names:
        known = ["auto", *names]
        raise RequestError(
            f"unknown backend {request.backend!r}{nearest(request.backend, known)}; known: {', '.join(known)}",
            field="backend",
            got=request.backend,
        )
    order = order_of(RUN, request.device.family_name, request.direction, names)
    candidates = sorted(candidates, key=lambda candidate: order.index(candidate.name))
    verdicts = tuple(_verdict(request, candidate, declined) for candidate in candidates)
    allowed = [
        candidate
        for candidate, verdict in zip(candidates, verdicts, strict=True)
        if verdict.eligible and request.backend in ("auto", candidate.name)
    ]
    if request.backend != "auto":
        verdicts = tuple(v for v in verdicts if v.backend == request.backend)
    if not allowed:
        return Decision(request, verdicts, None)
    last_resort = allowed[0].universal and request.backend == "auto" and request.device.kind != "cpu"
    return Decision(request, verdicts, allowed[0].name, last_resort or bool(declined))


def _verdict(request: AttentionRequest, candidate: Candidate, declined: Mapping[str, Refusal]) -> Verdict:
    refusals = [refusal for rule in candidate.rules if (refusal := rule.check(request))]
    if candidate.name in declined:
        refusals.append(declined[candidate.name])
    return Verdict(candidate.name, tuple(refusals))
