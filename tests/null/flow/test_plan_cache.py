"""PlanCache: bounded, one build per key however many threads ask, failures not kept, counters."""

import threading
import time
from dataclasses import fields

import pytest

from flexsdpa.plans.cache import CacheInfo, PlanCache


def cache(capacity=100):
    return PlanCache(lambda: capacity)


def fail():
    raise RuntimeError("no plan")


def in_threads(count, work):
    """Runs ``work(n)`` in threads that start together; returns what each returned or raised."""
    start = threading.Barrier(count)
    results = [None] * count

    def run(n):
        start.wait()
        try:
            results[n] = work(n)
        except BaseException as error:
            results[n] = error

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    return results


class TestLeastRecentlyUsedGoesFirst:
    def test_the_oldest_goes(self):
        plans = cache(2)
        for key in "abc":
            plans.get_or_build(key, lambda: key)
        assert [plans.get(key) for key in "abc"] == [None, "b", "c"]

    def test_a_plan_that_was_used_stays(self):
        plans = cache(2)
        for key in "aba":
            plans.get_or_build(key, lambda: key)
        plans.get_or_build("c", lambda: "c")
        assert [plans.get(key) for key in "abc"] == ["a", None, "c"]

    def test_at_least_one_is_kept(self):
        plans = cache(0)
        assert plans.get_or_build("a", lambda: 1) == 1
        assert plans.get("a") == 1

    def test_a_smaller_capacity_holds_from_the_next_build(self):
        capacity = [5]
        plans = PlanCache(lambda: capacity[0])
        for n in range(5):
            plans.get_or_build(n, lambda: n + 1)
        capacity[0] = 2
        plans.get_or_build("new", lambda: "new")
        assert plans.info().size == 2
        assert plans.info().evictions == 4


class TestSingleFlight:
    def test_eight_threads_make_one_build(self):
        plans = cache()
        builds = []

        def build():
            builds.append(threading.get_ident())
            time.sleep(0.1)
            return object()

        results = in_threads(8, lambda n: plans.get_or_build("key", build))
        assert len(builds) == 1
        assert len({id(plan) for plan in results}) == 1
        assert plans.info().builds == 1

    def test_other_keys_do_not_wait(self):
        plans = cache()
        release = threading.Event()
        slow = threading.Thread(target=plans.get_or_build, args=("slow", lambda: release.wait(20)), daemon=True)
        slow.start()
        assert plans.get_or_build("fast", lambda: "plan") == "plan"
        release.set()
        slow.join(20)

    def test_a_failed_build_is_everyones_error_and_is_not_kept(self):
        plans = cache()
        builds = []
        waiting = threading.Barrier(5)

        def build():
            builds.append(1)
            waiting.wait(20)
            time.sleep(0.3)  # the others have time to find the build in progress
            raise RuntimeError("no plan")

        def ask(n):
            if n:
                waiting.wait(20)
                return plans.get_or_build("key", build)
            return plans.get_or_build("key", build)

        results = in_threads(5, ask)
        assert len(builds) == 1
        assert [str(error) for error in results] == ["no plan"] * 5
        assert plans.info().builds == 0
        assert plans.get_or_build("key", lambda: "plan") == "plan"

    def test_a_build_that_is_interrupted_leaves_the_key_free(self):
        plans = cache()

        def interrupted():
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            plans.get_or_build("key", interrupted)
        assert in_threads(1, lambda n: plans.get_or_build("key", lambda: "plan")) == ["plan"]

    def test_a_build_may_build_another_plan(self):
        plans = cache()
        assert plans.get_or_build("outer", lambda: (plans.get_or_build("inner", lambda: 1), 2)) == (1, 2)

    def test_clearing_during_a_build_does_not_disturb_it(self):
        plans = cache()
        assert plans.get_or_build("key", lambda: plans.clear() or "plan") == "plan"


class TestCounters:
    def test_builds_and_hits(self):
        plans = cache()
        for key in "aaab":
            plans.get_or_build(key, lambda: 1)
        info = plans.info()
        assert (info.builds, info.hits, info.size) == (2, 2, 2)

    def test_a_miss_is_no_hit(self):
        plans = cache()
        assert plans.get("a") is None
        assert plans.info().hits == 0

    def test_a_failed_build_is_no_build(self):
        plans = cache()
        with pytest.raises(RuntimeError):
            plans.get_or_build("a", fail)
        assert plans.info() == CacheInfo(0, 0, 0, 0, 0, 0, 0, 100)

    @pytest.mark.parametrize("name", [f.name for f in fields(CacheInfo) if f.name not in ("size", "capacity")])
    def test_every_counter_counts_and_is_cleared(self, name):
        plans = cache()
        plans.count(name)
        plans.count(name)
        assert getattr(plans.info(), name) == 2
        plans.clear()
        assert getattr(plans.info(), name) == 0

    def test_counting_is_thread_safe(self):
        plans = cache()
        in_threads(8, lambda n: [plans.count("traces") for _ in range(500)])
        assert plans.info().traces == 4000

    def test_capacity_is_the_one_in_force(self):
        assert cache(7).info().capacity == 7


class TestClear:
    def test_plans_are_forgotten(self):
        plans = cache()
        plans.get_or_build("a", lambda: 1)
        plans.clear()
        assert plans.get("a") is None
        assert plans.get_or_build("a", lambda: 2) == 2
