"""The sdpa backend's entry in the catalogue."""

from __future__ import annotations

from typing import Any

from flexsdpa.backends.protocol import BuildSpec
from flexsdpa.backends.sdpa.rules import RULES
from flexsdpa.eligibility.rule import Rule
from flexsdpa.plans.plan import Plan
from flexsdpa.spec.request import AttentionRequest
from flexsdpa.version import installed


class SdpaBackend:
    """torch's fused CPU kernel."""

    name = "sdpa"
    rules: tuple[Rule, ...] = RULES
    universal = False

    def versions(self) -> tuple[tuple[str, str], ...]:
        return (("torch", installed("torch")),)

    def shape_class(self, request: AttentionRequest) -> tuple[Any, ...]:
        return ()

    def build(self, spec: BuildSpec) -> Plan:
        from flexsdpa.backends.sdpa.build import build

        return build(spec)
