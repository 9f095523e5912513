"""Builds plans of the reference backend."""

from __future__ import annotations

from flexsdpa.backends.protocol import BuildSpec
from flexsdpa.backends.reference.torch_backward import BackwardPlan
from flexsdpa.backends.reference.torch_call import Compiled
from flexsdpa.backends.reference.torch_forward import ForwardPlan
from flexsdpa.plans.plan import Plan


def build(spec: BuildSpec) -> Plan:
    """A forward or backward plan that serves any shape. Lowering happens at the first run that needs it."""
    if spec.derivative is None:
        return ForwardPlan(Compiled(spec.program, ("score",)))
    return BackwardPlan(spec.derivative, spec.request.needs)
