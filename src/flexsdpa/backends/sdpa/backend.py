"""The sdpa backend's entry in the catalogue."""

from __future__ import annotations

import sys
from typing import Any

from flexsdpa.backends.protocol import BuildSpec
from flexsdpa.backends.sdpa.rules import RULES
from flexsdpa.eligibility.rule import Rule
from flexsdpa.plans.plan import Plan
from flexsdpa.spec.request import AttentionRequest


class SdpaBackend:
    """torch's fused CPU kernel."""

    name = "sdpa"
    rules: tuple[Rule, ...] = RULES
    universal = False

    def versions(self) -> tuple[tuple[str, str], ...]:
        torch = sys.modules.get("torch")
        return (("torch", str(getattr(torch, "__version__", "not loaded"))),)

    def shape_class(self, request: AttentionRequest) -> tuple[Any, ...]:
        return ()

    def build(self, spec: BuildSpec) -> Plan:
        from flexsdpa.backends.sdpa.build import build

        return build(spec)
