"""decide(): the first backend whose rules all hold, and every reason of every other."""

import pytest

from flexsdpa.eligibility.decide import Verdict, decide
from flexsdpa.eligibility.rule import Refusal
from flexsdpa.errors import RequestError, UnsupportedError
from flexsdpa.testing.fake_devices import H100
from null.toy_backend import ToyBackend, only_devices, request, up_to_head_dim

FAST = ToyBackend("fast", (only_devices("cuda", name="fast"), up_to_head_dim(32, "fast")))
SMALL = ToyBackend("small", (up_to_head_dim(32, "small"),))
ANY = ToyBackend("any", universal=True)

NO_CPU = Refusal("fast.device", "device", "cpu", "cuda", "move the tensors", "a test")
FAST_64 = Refusal("fast.head-dim", "head_dim", "64", "up to 32", "split heads", "a test")
SMALL_64 = Refusal("small.head-dim", "head_dim", "64", "up to 32", "split heads", "a test")
RUN_TIME = Refusal("fast.value", "value", "13", "others", "", "found at run time")


class TestAuto:
    def test_the_first_eligible_backend_is_chosen(self):
        decision = decide(request(), (FAST, SMALL, ANY))
        assert decision.backend == "any"
        assert decision.require() == "any"

    def test_every_reason_of_every_candidate_is_listed(self):
        """All rules run, also after a refusal, and also of candidates behind the chosen one."""
        assert decide(request(), (FAST, ANY, SMALL)).verdicts == (
            Verdict("fast", (NO_CPU, FAST_64)), Verdict("any", ()), Verdict("small", (SMALL_64,)),
        )  # fmt: skip

    def test_preference_is_the_order_of_the_candidates(self):
        assert decide(request(), (ToyBackend("one"), ToyBackend("two"))).backend == "one"
        assert decide(request(), (ToyBackend("two"), ToyBackend("one"))).backend == "two"

    def test_the_order_of_preference_is_that_of_the_cards_family(self):
        """cudnn comes first on a card that it serves, sdpa on a processor, whatever order the candidates come in."""
        pair = ToyBackend("sdpa"), ToyBackend("cudnn")
        for candidates in (pair, pair[::-1]):
            assert decide(request(), candidates).backend == "sdpa"
            assert decide(request(device=H100), candidates).backend == "cudnn"

    def test_nobody_eligible(self):
        decision = decide(request(), (FAST, SMALL))
        assert decision.backend is None
        with pytest.raises(UnsupportedError) as raised:
            decision.require()
        assert raised.value.decision is decision
        assert str(raised.value).split("\n") == [
            "no backend can serve this attention request (2 refused)",
            "  request  q f32 (2, 4, 16, 64)  k (2, 2, 24, 64)  v (2, 2, 24, 32)  kv heads 2  forward  device cpu",
            "  fast     device: cpu asked, cuda served -> move the tensors",
            "  fast     head_dim: 64 asked, up to 32 served -> split heads",
            "  small    head_dim: 64 asked, up to 32 served -> split heads",
            "  try      flexsdpa explain",
        ]

    def test_an_unsupported_request_is_a_not_implemented_error(self):
        assert issubclass(UnsupportedError, NotImplementedError)


class TestFallback:
    """``fallback`` records that the backend of last resort serves a GPU, or that one declined."""

    @pytest.mark.parametrize(("device", "fallback"), [("cpu", False), ("cuda", True)])
    def test_the_universal_backend_on_a_gpu(self, device, fallback):
        asked = request() if device == "cpu" else request(device=H100)
        assert decide(asked, (SMALL, ANY)).fallback is fallback

    def test_a_universal_backend_that_was_named_is_no_fallback(self):
        assert decide(request(device=H100, backend="any"), (SMALL, ANY)).fallback is False

    def test_a_fused_backend_is_none(self):
        assert decide(request(device=H100), (ToyBackend("fused"), ANY)).fallback is False

    def test_a_backend_that_declined_is_passed_over(self):
        decision = decide(request(), (ToyBackend("fast"), ANY), {"fast": RUN_TIME})
        assert decision.backend == "any"
        assert decision.fallback is True
        assert decision.verdicts[0] == Verdict("fast", (RUN_TIME,))


class TestNamed:
    def test_a_named_backend_serves_although_another_is_preferred(self):
        assert decide(request(backend="any"), (ToyBackend("one"), ANY)).backend == "any"

    def test_a_named_backend_never_falls_back(self):
        decision = decide(request(backend="fast"), (ANY, FAST, SMALL))
        assert decision.backend is None
        with pytest.raises(UnsupportedError) as raised:
            decision.require()
        assert str(raised.value).split("\n")[0] == (
            "backend 'fast' cannot serve this attention request, and a named backend never falls back"
        )

    def test_only_its_own_reasons_are_listed(self):
        assert decide(request(backend="fast"), (ANY, FAST, SMALL)).verdicts == (Verdict("fast", (NO_CPU, FAST_64)),)

    def test_a_named_backend_that_declined_is_an_error(self):
        assert decide(request(backend="any"), (FAST, ANY), {"any": RUN_TIME}).backend is None

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("fats", "unknown backend 'fats' (did you mean 'fast'?); known: auto, fast, small, any"),
            ("Auto", "unknown backend 'Auto' (did you mean 'auto'?); known: auto, fast, small, any"),
            ("xyz", "unknown backend 'xyz'; known: auto, fast, small, any"),
        ],
    )
    def test_an_unknown_name_offers_the_nearest(self, name, text):
        with pytest.raises(RequestError) as raised:
            decide(request(backend=name), (FAST, SMALL, ANY))
        assert str(raised.value) == text
        assert (raised.value.field, raised.value.got) == ("backend", name)


def test_a_refusal_without_a_hint_is_one_sentence():
    assert str(RUN_TIME) == "value: 13 asked, others served"
