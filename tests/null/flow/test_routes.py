"""Routes remembered by signature: found without asking again, never stale, bounded."""

import threading

import pytest

from flexsdpa import config
from flexsdpa import engine as module
from flexsdpa.engine import Engine
from flexsdpa.errors import RequestError, UnsupportedError
from flexsdpa.spec.tensors import TensorSpec
from flexsdpa.testing.fake_devices import H100
from null.toy_backend import PLAIN, ToyBackend, only_devices, request


class Described:
    """Calls an engine with a signature and counts how often the request is asked for."""

    def __init__(self, engine):
        self.engine = engine
        self.times = 0

    def __call__(self, signature, asked):
        def describe():
            self.times += 1
            return asked

        return self.engine.run(signature, describe)


def test_a_known_signature_is_not_described_again():
    call = Described(Engine([ToyBackend()]))
    for _ in range(3):
        call("signature", PLAIN)
    assert call.times == 1


def test_another_signature_is():
    call = Described(Engine([ToyBackend()]))
    call("one", PLAIN)
    call("two", request(device=H100))
    assert call.times == 2


def test_every_field_of_a_request_leads_to_its_own_plan():
    """The request as signature: whatever differs is routed anew."""
    toy = ToyBackend()
    engine = Engine([toy])
    variants = [
        PLAIN, request(direction="backward"), request(device=H100), request(scalars=1), request(lse_gradient=True),
        request(deterministic=True), request(arrays=(TensorSpec("f32", (4,)),)), request(needs=(True, False, True)),
        request(program="flexsdpa-ir 1\nscalars 0\nscore\nneg 0\nreturn score 1"),
    ]  # fmt: skip
    for _ in range(2):
        for asked in variants:
            engine.run(asked, lambda: asked)
    assert len(toy.built) == len(variants)


def test_the_backend_that_is_named_is_part_of_the_route():
    engine = Engine([ToyBackend("one"), ToyBackend("two")])
    assert [engine.run(asked, lambda: asked)[0] for asked in (PLAIN, request(backend="two"), PLAIN)] == ["one", "two", "one"]


@pytest.mark.parametrize("asked", [request(backend="nobody"), request(device=H100)])
def test_a_refusal_is_not_remembered(asked):
    """It is asked again at every call, and raised again."""
    engine = Engine([ToyBackend(rules=(only_devices("cpu"),))])
    call = Described(engine)
    for _ in range(2):
        with pytest.raises((UnsupportedError, RequestError)):
            call(asked, asked)
    assert call.times == 2


def test_clear_forgets_routes_plans_and_counters():
    toy = ToyBackend()
    engine = Engine([toy])
    call = Described(engine)
    call("signature", PLAIN)
    engine.clear()
    assert engine.cache.info().size == engine.cache.info().builds == 0
    call("signature", PLAIN)
    assert call.times == 2
    assert len(toy.built) == 2


def test_a_plan_that_was_evicted_is_built_again_for_a_known_route():
    toy = ToyBackend()
    engine = Engine([toy])
    other = request(device=H100)
    with config.options(plan_cache_size=1):
        for asked in (PLAIN, other, PLAIN):
            engine.run(asked, lambda: asked)
    assert len(toy.built) == 3


def test_routes_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "SIGNATURES_KEPT", 10)
    engine = Engine([ToyBackend()])
    for n in range(35):
        engine.run(n, lambda: PLAIN)
        assert len(engine._routes) <= 10


def test_threads_may_route_at_once():
    toy = ToyBackend()
    engine = Engine([toy])
    start = threading.Barrier(8)
    errors = []

    def work(n):
        start.wait()
        try:
            for i in range(50):
                asked = request(scalars=(n + i) % 7)
                assert engine.run(asked, lambda: asked)[0] == "toy"
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(toy.built) == 7
