"""Plan: a kernel that is ready to run, for one direction on one device."""

from __future__ import annotations

from typing import Any, Protocol


class Plan(Protocol):
    """What a backend builds. ``run`` takes the tensors of the direction; see backends/protocol.py."""

    def run(self, *tensors: Any) -> Any: ...


class PlanDeclined(Exception):
    """A plan found at run time that it cannot serve these values exactly. Never reaches the user: the engine asks the next
    backend, and where the user named this one it becomes an UnsupportedError. Fields as in Refusal.

    lasting: no other values would be served either, so the engine need not ask this plan again.
    """

    def __init__(self, rule: str, field: str, got: str, need: str, lasting: bool = False) -> None:
        super().__init__(f"{rule}: {got}")
        self.rule, self.field, self.got, self.need, self.lasting = rule, field, got, need, lasting
