"""Rules and refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flexsdpa.spec.request import AttentionRequest


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a backend does not serve a request, as a record.

    rule: a stable id. field: the arguments that it looks at. got: what they are. need: what is served; empty where the reason
    says it. source: where the rule comes from. kind: "limit" of the backend, "not yet" where flexsdpa does not run it, or "open"
    where no source settles it.
    """

    rule: str
    field: str
    got: str
    need: str
    hint: str
    source: str
    reason: str = ""
    kind: str = "limit"

    def __str__(self) -> str:
        hint = f" -> {self.hint}" if self.hint else ""
        if self.reason:
            return f"{self.reason} ({self.got}){hint}"
        return f"{self.field}: {self.got} asked, {self.need} served{hint}"


@dataclass(frozen=True, slots=True)
class Rule:
    """One limit of one backend.

    refuses: what of the request breaks the rule, as text; None where the rule holds. need: what is served.
    source: where the limit comes from.
    """

    id: str
    field: str
    refuses: Callable[[AttentionRequest], str | None]
    need: str
    hint: str
    source: str

    def check(self, request: AttentionRequest) -> Refusal | None:
        got = self.refuses(request)
        return None if got is None else Refusal(self.id, self.field, got, self.need, self.hint, self.source)
