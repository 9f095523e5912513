"""What a backend is.

The contract between directions, the same for every backend: forward gives out and LSE (natural log, fp32 or fp64
for fp64 inputs, (B, Hq, Sq)); a row without keys has out 0 and LSE -inf, and its gradients are 0. Backward takes
q, k, v, out, LSE and the gradients of out and LSE, so one backend's forward may feed another's backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from flexsdpa.eligibility.rule import Rule
from flexsdpa.ir.derivative import Derivative
from flexsdpa.ir.program import Program
from flexsdpa.plans.plan import Plan
from flexsdpa.spec.request import AttentionRequest


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """What a backend builds from. ``derivative`` is None for the forward direction."""

    request: AttentionRequest
    program: Program
    derivative: Derivative | None


class Backend(Protocol):
    """One backend.

    Forward plans run as ``run(q, k, v, arrays, scalars) -> (out, lse)``. Backward plans run as
    ``run(grad_out, grad_lse, q, k, v, out, lse, arrays, scalars) -> [dq, dk, dv, *darrays]`` with None for gradients
    that the request does not need. ``scalars[0]`` is the softmax scale; the program's scalars follow.
    """

    @property
    def name(self) -> str: ...

    @property
    def rules(self) -> tuple[Rule, ...]: ...

    @property
    def universal(self) -> bool:
        """Whether this is the backend of last resort: it serves everything, and is not a fused GPU kernel."""

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Name and version of every library that a plan depends on."""

    def shape_class(self, request: AttentionRequest) -> tuple[Any, ...]:
        """What plans bake in of shapes and strides; () if they serve any."""

    def build(self, spec: BuildSpec) -> Plan:
        """A plan; raises BuildError. Heavy imports happen here."""
