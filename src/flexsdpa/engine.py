"""The flow of a call, one function an arrow. Read this first.

    text --program_of--> Program --derivative_of--> Derivative      (ir/canonical.py, remembered by text)
    request --decide--> Decision --plan_key--> PlanKey --PlanCache--> Plan --run--> tensors
                                                        (miss: Backend.build)

A front end calls ``run`` with a signature: a tuple that holds everything a request is made of. ``describe`` turns the
signature into an AttentionRequest and looks at nothing else, so a route remembered by signature is the route that
would be found again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from flexsdpa import config
from flexsdpa.backends.catalogue import BACKENDS
from flexsdpa.backends.protocol import Backend, BuildSpec
from flexsdpa.eligibility.decide import NOTHING, Decision, decide
from flexsdpa.eligibility.rule import Refusal
from flexsdpa.errors import UnsupportedError
from flexsdpa.ir.canonical import derivative_of, program_of
from flexsdpa.ir.derivative import Derivative
from flexsdpa.logs import logger
from flexsdpa.plans.cache import CacheInfo, PlanCache
from flexsdpa.plans.key import PlanKey, plan_key
from flexsdpa.plans.plan import Plan, PlanDeclined
from flexsdpa.spec.replay import dumps
from flexsdpa.spec.request import AttentionRequest
from flexsdpa.version import __version__

SIGNATURES_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Route:
    """Where a signature leads: the decision, the key of its plan, and who declined at run time before."""

    decision: Decision
    key: PlanKey
    declined: Mapping[str, Refusal] = field(default_factory=dict)


class Engine:
    """Backends in order of preference, and the plans made so far."""

    def __init__(self, backends: Sequence[Backend] = BACKENDS) -> None:
        self.backends = tuple(backends)
        self.cache = PlanCache(lambda: int(config.get("plan_cache_size")))
        self._routes: dict[Hashable, Route] = {}  # changed by single, atomic operations: no lock that a fork could break

    def run(self, signature: Hashable, describe: Callable[[], AttentionRequest], *tensors: Any) -> Any:
        """Serves one direction of one call. ``describe`` must be a function of the signature alone."""
        route = self._routes.get(signature)
        if route is None:
            route = self._remember(signature, self.route(describe()))
        plan = self.plan(route)
        try:
            return plan.run(*tensors)
        except PlanDeclined as declined:
            return self._run_elsewhere(signature, route, declined, tensors)

    def route(self, request: AttentionRequest, declined: dict[str, Refusal] | None = None) -> Route:
        """request -> Decision -> PlanKey. Raises UnsupportedError with every reason."""
        decision = self.decide(request, declined)
        record_request(decision.request, declined)
        try:
            name = decision.require()
        except UnsupportedError:
            self.cache.count("refusals")
            logger.debug("refused: %s", decision)
            raise
        backend = self.backend(name)
        if decision.fallback and backend.universal and decision.request.device.kind != "cpu":
            _say_once(decision)
        key = plan_key(decision.request, name, versions(backend, decision.request), backend.shape_class(decision.request))
        return Route(decision, key, dict(declined or NOTHING))

    def decide(self, request: AttentionRequest, declined: dict[str, Refusal] | None = None) -> Decision:
        """Who may serve a request. Its text may be a raw trace; the decision's request holds the canonical text."""
        text = program_of(request.program).text
        return decide(replace(request, program=text), self.backends, declined or NOTHING)

    def plan(self, route: Route) -> Plan:
        """PlanKey -> Plan, built at most once."""
        if route.decision.fallback:
            self.cache.count("fallbacks")
        plan: Plan | None = self.cache.get(route.key)
        if plan is None:
            plan = self.cache.get_or_build(route.key, lambda: self.build(route))
        return plan

    def build(self, route: Route) -> Plan:
        """A new plan for a key."""
        request = route.decision.request
        logger.info("building %s plan %s: %s", route.key.backend, route.key.digest(), request.summary())
        return self.backend(route.key.backend).build(BuildSpec(request, program_of(request.program), derivative_for(request)))

    def backend(self, name: str) -> Backend:
        return next(backend for backend in self.backends if backend.name == name)

    def clear(self) -> None:
        """Forgets plans, routes and counters."""
        self._routes.clear()
        self.cache.clear()

    def _remember(self, signature: Hashable, route: Route) -> Route:
        if len(self._routes) >= SIGNATURES_KEPT:
            self._routes.clear()
        self._routes[signature] = route
        return route

    def _run_elsewhere(self, signature: Hashable, route: Route, declined: PlanDeclined, tensors: tuple[Any, ...]) -> Any:
        """The next backend that serves these values, after one declined them; a named backend has no next one."""
        refusals = dict(route.declined)
        lasting = True
        while True:
            lasting = lasting and declined.lasting
            refusal = Refusal(declined.rule, declined.field, declined.got, declined.need, "", "found at run time")
            refusals[route.key.backend] = refusal
            route = self.route(route.decision.request, refusals)
            if lasting:
                self._remember(signature, route)
            try:
                return self.plan(route).run(*tensors)
            except PlanDeclined as again:
                declined = again


def versions(backend: Backend, request: AttentionRequest) -> tuple[tuple[str, str], ...]:
    """The libraries that a plan depends on: ours, the backend's, the device's."""
    return (("flexsdpa", __version__), *backend.versions(), *request.device.libraries)


def derivative_for(request: AttentionRequest) -> Derivative | None:
    """What a backward request differentiates: the score, and the arrays whose gradients it needs."""
    if request.direction == "forward":
        return None
    return derivative_of(request.program, frozenset(slot for slot, need in enumerate(request.needs[3:]) if need))


_said: set[str] = set()


def _say_once(decision: Decision) -> None:
    """A GPU without a fused kernel for this request: served, slowly, and never in silence."""
    reasons = "; ".join(f"{v.backend}: {r}" for v in decision.verdicts for r in v.refusals[:1])
    if reasons not in _said and len(_said) < 100:
        _said.add(reasons)
        logger.warning(
            "no fused kernel serves this request, the tiled reference does (%s): %s", reasons, decision.request.summary()
        )


def record_request(request: AttentionRequest, declined: Mapping[str, Refusal] | None = None) -> None:
    """Appends a request, once, to the file that the option names, with what backends said of it at run time. A file that cannot
    be written is said once, and no call fails."""
    file = config.get("request_log")
    if not file:
        return
    line = dumps(request, {name: asdict(refusal) for name, refusal in (declined or {}).items()})
    if (file, line) in _recorded:
        return
    if len(_recorded) >= SIGNATURES_KEPT:
        _recorded.clear()
    _recorded.add((file, line))
    try:
        with open(file, "a", encoding="utf-8") as log:
            log.write(line + "\n")
    except OSError as error:
        if file not in _said:
            _said.add(file)
            logger.warning("requests are not logged: %s", error)


_recorded: set[tuple[str, str]] = set()
ENGINE = Engine()


def cache_info() -> CacheInfo:
    """Counters and size of the process's plan cache: traces, builds, hits, refusals, fallbacks, evictions."""
    return ENGINE.cache.info()


def cache_clear() -> None:
    """Forgets all plans of the process and zeroes the counters."""
    ENGINE.clear()
