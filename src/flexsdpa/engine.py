"""The flow of a call, one function an arrow. Read this first.

    text --programs--> Programs    (simplified, with derivative; kept by text)
    request --decide--> Decision --plan_key--> PlanKey --PlanCache--> Plan
                                                        (miss: backend.build)

A front end calls ``plan`` with a signature: a tuple that holds everything a request is made of. ``describe``
turns the signature into an AttentionRequest, and into nothing else, so what is remembered by signature is what would be
decided again.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from flexsdpa import config
from flexsdpa.backends.catalogue import BACKENDS
from flexsdpa.backends.protocol import Backend, BuildSpec
from flexsdpa.eligibility.decide import Decision, decide
from flexsdpa.errors import FlexSDPAError, UnsupportedError
from flexsdpa.ir.derivative import Derivative, derivative
from flexsdpa.ir.program import Program
from flexsdpa.ir.simplify import simplify
from flexsdpa.ir.text import parse
from flexsdpa.logs import logger
from flexsdpa.plans.cache import CacheInfo, PlanCache
from flexsdpa.plans.key import PlanKey, plan_key
from flexsdpa.plans.plan import Plan
from flexsdpa.spec.request import AttentionRequest

SIGNATURES_KEPT = 4096


@functools.lru_cache(maxsize=1024)
def program_of(text: str) -> Program:
    """Traced text -> canonical program."""
    return simplify(parse(text))


@functools.lru_cache(maxsize=1024)
def derivative_of(text: str, slots: frozenset[int]) -> Derivative:
    """Traced text -> its derivative with respect to the score and to the captured tensors in ``slots``."""
    return derivative(program_of(text), slots)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a signature leads: the decision, and the key of its plan."""

    decision: Decision
    key: PlanKey


class Engine:
    """Backends in order of preference, and the plans made so far."""

    def __init__(self, backends: Sequence[Backend] = BACKENDS) -> None:
        self.backends = tuple(backends)
        self.cache = PlanCache(lambda: int(config.get("plan_cache_size")))
        self._routes: dict[Hashable, Route] = {}
        self._routes_lock = threading.Lock()

    def plan(self, signature: Hashable, describe: Callable[[], AttentionRequest]) -> Plan:
        """The plan of a call. ``describe`` must be a function of the signature alone."""
        route = self._routes.get(signature)
        if route is None:
            route = self._remember(signature, self.route(describe()))
        plan: Plan | None = self.cache.get(route.key)
        if plan is None:
            plan = self.cache.get_or_build(route.key, lambda: self.build(route))
        if route.decision.fallback:
            self.cache.count("fallbacks")
        return plan

    def route(self, request: AttentionRequest) -> Route:
        """request -> Decision -> PlanKey. Raises UnsupportedError with every reason."""
        decision = self.decide(request)
        try:
            name = decision.require()
        except UnsupportedError:
            self.cache.count("refusals")
            logger.debug("refused: %s", decision)
            raise
        backend = self.backend(name)
        return Route(decision, plan_key(decision.request, name, self.versions(backend), backend.shape_class(request)))

    def decide(self, request: AttentionRequest) -> Decision:
        """Who may serve a request. The request's program text may be a raw trace; the decision holds the canonical one."""
        return decide(canonical(request), self.backends)

    def build(self, route: Route) -> Plan:
        """PlanKey -> Plan. Called once per key."""
        request = route.decision.request
        backend = self.backend(route.key.backend)
        logger.info("building %s plan %s on %s: %s", request.direction, route.key.digest(), backend.name, request.summary())
        return backend.build(BuildSpec(request, program_of(request.program), derivative_for(request)))

    def backend(self, name: str) -> Backend:
        return next(backend for backend in self.backends if backend.name == name)

    def versions(self, backend: Backend) -> tuple[tuple[str, str], ...]:
        from flexsdpa import __version__

        return (("flexsdpa", __version__), *backend.versions())

    def _remember(self, signature: Hashable, route: Route) -> Route:
        with self._routes_lock:
            if len(self._routes) >= SIGNATURES_KEPT:
                self._routes.clear()
            self._routes[signature] = route
        return route

    def clear(self) -> None:
        """Forgets plans, routes and counters."""
        with self._routes_lock:
            self._routes.clear()
        self.cache.clear()


def canonical(request: AttentionRequest) -> AttentionRequest:
    """The request with its program simplified: two traces of one meaning are one request."""
    from dataclasses import replace

    text = program_of(request.program).text
    return request if text == request.program else replace(request, program=text)


def derivative_for(request: AttentionRequest) -> Derivative | None:
    """What a backward request differentiates: the score, and the arrays whose gradients it needs."""
    if request.direction == "forward":
        return None
    slots = frozenset(slot for slot, need in enumerate(request.needs[3:]) if need)
    return derivative_of(request.program, slots)


ENGINE = Engine()


def cache_info() -> CacheInfo:
    """Counters and size of the process's plan cache: traces, builds, hits, refusals, fallbacks, evictions."""
    return ENGINE.cache.info()


def cache_clear() -> None:
    """Forgets all plans of the process and zeroes the counters."""
    ENGINE.clear()


__all__ = ["ENGINE", "Engine", "FlexSDPAError", "Route", "cache_clear", "cache_info"]


def count(what: str, engine: Any = None) -> None:
    """Adds one to a counter of ``cache_info``."""
    (engine or ENGINE).cache.count(what)
