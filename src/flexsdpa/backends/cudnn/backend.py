"""The cudnn backend's entry in the catalogue."""

from __future__ import annotations

from typing import Any

from flexsdpa.backends.cudnn.known_bad import KNOWN_BAD
from flexsdpa.backends.cudnn.rules import RULES
from flexsdpa.backends.protocol import BuildSpec
from flexsdpa.eligibility.rule import Rule
from flexsdpa.plans.plan import Plan
from flexsdpa.spec.request import AttentionRequest


class CudnnBackend:
    """cuDNN's fused attention graphs."""

    name = "cudnn"
    rules: tuple[Rule, ...] = RULES
    universal = False
    known_bad = KNOWN_BAD
    caution = (
        "rules hold what is known without asking: at the first call cuDNN must still build the graph and agree with the "
        "interpreter on a small problem, else the next backend serves, with one warning"
    )

    def versions(self) -> tuple[tuple[str, str], ...]:
        return ()  # cuDNN and its frontend are libraries of the device, which every key holds

    def shape_class(self, request: AttentionRequest) -> tuple[Any, ...]:
        """A graph holds every size and stride."""
        tensors = (request.q, request.k, request.v, *request.arrays)
        return tuple((x.shape, x.strides) for x in tensors)

    def build(self, spec: BuildSpec) -> Plan:
        from flexsdpa.backends.cudnn.build import build

        return build(spec)
