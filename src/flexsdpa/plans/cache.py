"""PlanCache: bounded, thread safe, one build per key however many threads ask, usable after fork."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Counters since the last clear.

    traces: mods traced. builds: plans built. hits: calls that found their plan. refusals: requests that no backend
    served. fallbacks: requests served by a backend that is not the first choice. size, capacity: plans kept, at most.
    """

    traces: int
    builds: int
    hits: int
    refusals: int
    fallbacks: int
    evictions: int
    size: int
    capacity: int


class _Flight:
    """A build in progress: the others wait for its end."""

    __slots__ = ("done", "error", "plan")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.plan: Any = None
        self.error: BaseException | None = None


class PlanCache:
    """Plans by key, least recently used out first. A failed build is not kept: every waiter gets its error."""

    def __init__(self, capacity: Callable[[], int]) -> None:
        self._capacity = capacity
        self._reset()
        _CACHES.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._plans: OrderedDict[Hashable, Any] = OrderedDict()
        self._flights: dict[Hashable, _Flight] = {}
        self._counts = dict.fromkeys(("traces", "builds", "hits", "refusals", "fallbacks", "evictions"), 0)

    def count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def get(self, key: Hashable) -> Any | None:
        """The plan, or None. Counts a hit."""
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None:
                self._plans.move_to_end(key)
                self._counts["hits"] += 1
            return plan

    def get_or_build(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """The plan of ``key``; ``build`` runs in one thread only, the others wait for it."""
        plan = self.get(key)
        if plan is not None:
            return plan
        capacity = max(self._capacity(), 1)  # may raise, so before anybody waits
        with self._lock:
            if key in self._plans:
                self._counts["hits"] += 1
                return self._plans[key]
            flight = self._flights.get(key)
            mine = flight is None
            if flight is None:
                flight = self._flights[key] = _Flight()
        if mine:
            self._build(key, flight, build, capacity)
        else:
            flight.done.wait()
        if flight.error is not None:
            raise flight.error
        return flight.plan

    def _build(self, key: Hashable, flight: _Flight, build: Callable[[], Any], capacity: int) -> None:
        try:
            flight.plan = build()
        except BaseException as error:
            flight.error = error
        with self._lock:
            if flight.error is None:
                self._plans[key] = flight.plan
                self._counts["builds"] += 1
                while len(self._plans) > capacity:
                    self._plans.popitem(last=False)
                    self._counts["evictions"] += 1
            self._flights.pop(key, None)
        flight.done.set()

    def clear(self) -> None:
        """Forgets every plan and zeroes the counters. Builds in progress end undisturbed."""
        with self._lock:
            self._plans.clear()
            for name in self._counts:
                self._counts[name] = 0

    def info(self) -> CacheInfo:
        with self._lock:
            return CacheInfo(**self._counts, size=len(self._plans), capacity=self._capacity())


_CACHES: weakref.WeakSet[PlanCache] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked child locks may be held by threads that no longer exist: start anew, keep the plans."""
    for cache in list(_CACHES):
        plans, counts = cache._plans, cache._counts
        cache._reset()
        cache._plans, cache._counts = plans, counts


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
