"""Request -> Decision: the backend that serves it, and every reason of every other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flexsdpa.eligibility.rule import Refusal, Rule
from flexsdpa.errors import RequestError, UnsupportedError, layout_message, nearest
from flexsdpa.spec.request import AttentionRequest


class Candidate(Protocol):
    """What a decision needs of a backend."""

    @property
    def name(self) -> str: ...
    @property
    def rules(self) -> tuple[Rule, ...]: ...


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
    """The answer to a request. ``backend`` is None where nobody may serve it."""

    request: AttentionRequest
    verdicts: tuple[Verdict, ...]
    backend: str | None

    @property
    def fallback(self) -> bool:
        """Whether a candidate that comes earlier in the order of preference refused."""
        return self.backend is not None and self.verdicts[0].backend != self.backend

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


def decide(request: AttentionRequest, candidates: Sequence[Candidate]) -> Decision:
    """Runs every rule of every candidate. ``candidates`` come in order of preference.

    A named backend is the only one that may be chosen. Raises RequestError for a name that nobody has.
    """
    names = [candidate.name for candidate in candidates]
    if request.backend != "auto" and request.backend not in names:
        known = ["auto", *names]
        raise RequestError(
            f"unknown backend {request.backend!r}{nearest(request.backend, known)}; known: {', '.join(known)}",
            field="backend",
            got=request.backend,
        )
    verdicts = tuple(
        Verdict(candidate.name, tuple(refusal for rule in candidate.rules if (refusal := rule.check(request))))
        for candidate in candidates
    )
    allowed = [v.backend for v in verdicts if v.eligible and request.backend in ("auto", v.backend)]
    if request.backend != "auto":
        verdicts = tuple(v for v in verdicts if v.backend == request.backend)
    return Decision(request, verdicts, allowed[0] if allowed else None)
