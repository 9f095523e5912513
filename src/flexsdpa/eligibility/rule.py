"""Rules and refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flexsdpa.spec.request import AttentionRequest


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a backend does not serve a request, as a record."""

    rule: str
    field: str
    got: str
    need: str
    hint: str
    source: str

    def __str__(self) -> str:
        hint = f" -> {self.hint}" if self.hint else ""
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
