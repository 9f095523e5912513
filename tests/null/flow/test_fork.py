"""A forked child may build, even if a thread of its parent held a lock or was building at the time."""

import os
import signal
import threading
import time

import pytest

from flexsdpa.engine import Engine
from flexsdpa.plans.cache import PlanCache
from null.toy_backend import PLAIN, ToyBackend, request

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),  # Python 3.12 warns of what is tested here
]

SECONDS = 4


def in_child(work):
    """Runs ``work`` in a forked child; says whether it returned true, in time."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


class Holding:
    """A thread that holds a lock until the block ends."""

    def __init__(self, lock):
        self.lock, self.held, self.release = lock, threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.hold, daemon=True)

    def hold(self):
        with self.lock:
            self.held.set()
            self.release.wait(3 * SECONDS)

    def __enter__(self):
        self.thread.start()
        assert self.held.wait(SECONDS)

    def __exit__(self, *_):
        self.release.set()
        self.thread.join(SECONDS)


class TestPlanCache:
    def test_a_child_builds_although_a_thread_held_the_lock(self):
        plans = PlanCache(lambda: 10)
        with Holding(plans._lock):
            assert in_child(lambda: plans.get_or_build("key", lambda: "plan") == "plan")

    def test_a_child_builds_what_a_thread_of_the_parent_was_building(self):
        plans = PlanCache(lambda: 10)
        building, release = threading.Event(), threading.Event()

        def slow():
            building.set()
            release.wait(3 * SECONDS)
            return "parent"

        thread = threading.Thread(target=plans.get_or_build, args=("key", slow), daemon=True)
        thread.start()
        assert building.wait(SECONDS)
        try:
            assert in_child(lambda: plans.get_or_build("key", lambda: "child") == "child")
        finally:
            release.set()
            thread.join(SECONDS)
        assert plans.get("key") == "parent"

    def test_a_child_keeps_the_plans_and_counters(self):
        plans = PlanCache(lambda: 10)
        plans.get_or_build("key", lambda: "plan")
        assert in_child(lambda: plans.get("key") == "plan" and plans.info().builds == 1)

    def test_what_a_child_builds_is_its_own(self):
        plans = PlanCache(lambda: 10)
        assert in_child(lambda: plans.get_or_build("key", lambda: "plan") == "plan")
        assert plans.get("key") is None


class TestEngine:
    def test_a_child_serves_calls(self):
        engine = Engine([ToyBackend()])
        engine.run(PLAIN, lambda: PLAIN)
        other = request(scalars=1)
        assert in_child(lambda: engine.run(other, lambda: other)[0] == "toy")

    def test_a_child_serves_calls_although_a_thread_held_the_caches_lock(self):
        engine = Engine([ToyBackend()])
        with Holding(engine.cache._lock):
            assert in_child(lambda: engine.run(PLAIN, lambda: PLAIN)[0] == "toy")
