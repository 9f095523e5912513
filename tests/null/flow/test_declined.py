"""A plan that declines at run time: the next backend serves, and a named backend's refusal becomes an UnsupportedError."""

import pytest

from flexsdpa.engine import Engine
from flexsdpa.errors import UnsupportedError
from flexsdpa.testing.fake_devices import H100
from null.toy_backend import PLAIN, ToyBackend, request


def run(engine, asked, *tensors):
    return engine.run(asked, lambda: asked, *tensors)


def picky(name="picky"):
    """Serves any value but 13."""
    return ToyBackend(name, declines=13)


class TestAuto:
    def test_the_next_backend_serves(self):
        assert run(Engine([picky(), ToyBackend("any")]), PLAIN, 13) == ("any", (13,))

    def test_other_values_still_go_to_the_first(self):
        engine = Engine([picky(), ToyBackend("any")])
        assert [run(engine, PLAIN, value)[0] for value in (7, 13, 8)] == ["picky", "any", "picky"]

    def test_a_plan_that_declines_for_good_is_not_asked_again(self):
        first = ToyBackend("first", declines=13, lasting=True)
        engine = Engine([first, ToyBackend("any")])
        assert [run(engine, PLAIN, 13)[0] for _ in range(3)] == ["any"] * 3
        assert len(first.plans[0].asked) == 1
        assert engine.cache.info().fallbacks == 3

    def test_where_a_later_one_declines_for_now_the_first_is_asked_again(self):
        first, second = ToyBackend("first", declines=13, lasting=True), picky("second")
        engine = Engine([first, second, ToyBackend("any")])
        assert [run(engine, PLAIN, value)[0] for value in (13, 13)] == ["any", "any"]
        assert len(first.plans[0].asked) == 1  # for good, whatever the others say
        assert len(second.plans[0].asked) == 2

    def test_on_a_card_it_is_said_once(self, caplog, monkeypatch):
        monkeypatch.setattr("flexsdpa.engine._said", set())
        asked = request(device=H100)
        engine = Engine([picky(), ToyBackend("any", universal=True)])
        for _ in range(3):
            run(engine, asked, 13)
        (record,) = caplog.records
        assert "no fused kernel serves this request" in record.getMessage()
        assert "picky: value: 13 asked, any other value served" in record.getMessage()

    def test_both_plans_are_kept(self):
        first, second = picky(), ToyBackend("any")
        engine = Engine([first, second])
        for value in (13, 13, 7):
            run(engine, PLAIN, value)
        assert (len(first.built), len(second.built)) == (1, 1)

    def test_it_counts_as_a_fallback(self):
        engine = Engine([picky(), ToyBackend("any")])
        run(engine, PLAIN, 7)
        assert engine.cache.info().fallbacks == 0
        run(engine, PLAIN, 13)
        assert engine.cache.info().fallbacks == 1

    def test_nobody_left(self):
        with pytest.raises(UnsupportedError) as raised:
            run(Engine([picky()]), PLAIN, 13)
        (verdict,) = raised.value.decision.verdicts
        (refusal,) = verdict.refusals
        assert (refusal.rule, refusal.field, refusal.got, refusal.source) == ("picky.value", "value", "13", "found at run time")
        assert "picky    value: 13 asked, any other value served" in str(raised.value)

    def test_the_one_after_the_next_serves(self):
        assert run(Engine([picky("one"), picky("two"), ToyBackend("any")]), PLAIN, 13) == ("any", (13,))

    def test_all_decline(self):
        with pytest.raises(UnsupportedError) as raised:
            run(Engine([picky("one"), picky("two")]), PLAIN, 13)
        assert [len(verdict.refusals) for verdict in raised.value.decision.verdicts] == [1, 1]


class TestNamed:
    def test_a_named_backend_that_declines_is_an_error(self):
        with pytest.raises(UnsupportedError) as raised:
            run(Engine([picky(), ToyBackend("any")]), request(backend="picky"), 13)
        assert str(raised.value).split("\n") == [
            "backend 'picky' cannot serve this attention request, and a named backend never falls back",
            f"  request  {PLAIN.summary()}",
            "  picky    value: 13 asked, any other value served",
            "  try      flexsdpa explain, or backend='auto'",
        ]

    def test_it_counts_as_a_refusal(self):
        engine = Engine([picky(), ToyBackend("any")])
        with pytest.raises(UnsupportedError):
            run(engine, request(backend="picky"), 13)
        assert engine.cache.info().refusals == 1

    def test_other_values_are_served(self):
        assert run(Engine([picky(), ToyBackend("any")]), request(backend="picky"), 7)[0] == "picky"
