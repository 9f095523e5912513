"""The reference backend's entry in the catalogue."""

from __future__ import annotations

from typing import Any

from flexsdpa.backends.protocol import BuildSpec
from flexsdpa.backends.reference.rules import RULES
from flexsdpa.eligibility.rule import Rule
from flexsdpa.plans.plan import Plan
from flexsdpa.spec.request import AttentionRequest
from flexsdpa.version import installed


class ReferenceBackend:
    """Tiled attention on any torch device."""

    name = "reference"
    rules: tuple[Rule, ...] = RULES
    universal = True

    def versions(self) -> tuple[tuple[str, str], ...]:
        return (("torch", installed("torch")),)

    def shape_class(self, request: AttentionRequest) -> tuple[Any, ...]:
        return ()

    def build(self, spec: BuildSpec) -> Plan:
        from flexsdpa.backends.reference.build import build

        return build(spec)
