"""The whole flow without a framework: text -> request -> decision -> key -> cache -> build -> run."""

import logging

import pytest

from flexsdpa import config
from flexsdpa import engine as module
from flexsdpa.eligibility.rule import Rule
from flexsdpa.engine import Engine, derivative_for, versions
from flexsdpa.errors import BuildError, UnsupportedError
from flexsdpa.ir.canonical import derivative_of, program_of
from flexsdpa.spec.tensors import TensorSpec
from flexsdpa.testing.fake_devices import CARDS, GB10, H100, H100_SECOND, RTX_5090
from flexsdpa.version import __version__
from null.toy_backend import PLAIN, ToyBackend, only_devices, request, up_to_head_dim

SCALED = "flexsdpa-ir 1\nscalars 1\nscore\nscalar 0\nmul 0 1\nreturn score 2"


def run(engine, asked, *tensors):
    """One call: the request is its own signature."""
    return engine.run(asked, lambda: asked, *tensors)


class TestACall:
    def test_the_plan_gets_the_tensors(self):
        assert run(Engine([ToyBackend()]), PLAIN, "q", "k", "v") == ("toy", ("q", "k", "v"))

    def test_a_plan_is_built_once_and_found_again(self):
        toy = ToyBackend()
        engine = Engine([toy])
        for _ in range(3):
            run(engine, PLAIN)
        info = engine.cache.info()
        assert len(toy.built) == 1
        assert (info.builds, info.hits, info.size) == (1, 2, 1)

    def test_a_backend_builds_from_canonical_program_and_request(self):
        toy = ToyBackend()
        raw = "flexsdpa-ir 1\nscalars 0\nscore\nq\nneg 0\nneg 2\nreturn score 3"
        run(Engine([toy]), request(program=raw))
        (spec,) = toy.built
        assert spec.program.text == program_of(raw).text == PLAIN.program
        assert spec.request.program == PLAIN.program
        assert spec.derivative is None

    def test_two_texts_of_one_program_share_a_plan(self):
        toy = ToyBackend()
        engine = Engine([toy])
        run(engine, PLAIN)
        run(engine, request(program="flexsdpa-ir 1\nscalars 0\nscore\nneg 0\nneg 1\nreturn score 2"))
        assert len(toy.built) == 1

    def test_two_programs_do_not(self):
        toy = ToyBackend()
        engine = Engine([toy])
        run(engine, PLAIN)
        run(engine, request(program=SCALED, scalars=1))
        assert len(toy.built) == 2

    def test_a_shape_that_the_backend_bakes_in_makes_a_new_plan(self):
        toy = ToyBackend()
        engine = Engine([toy])
        run(engine, PLAIN)
        run(engine, request(q=TensorSpec("f32", (2, 4, 99, 64))))
        assert len(toy.built) == 1
        run(engine, request(q=TensorSpec("f32", (2, 4, 16, 32)), k=TensorSpec("f32", (2, 2, 24, 32))))
        assert len(toy.built) == 2

    def test_forward_and_backward_are_two_decisions(self):
        engine = Engine([ToyBackend("forward", (forward_only(),)), ToyBackend("any", universal=True)])
        assert run(engine, PLAIN)[0] == "forward"
        assert run(engine, request(direction="backward", needs=(True, True, True)))[0] == "any"

    def test_the_versions_of_the_backend_are_in_the_key(self):
        engine = Engine([ToyBackend()])
        assert engine.route(PLAIN).key.versions == (("flexsdpa", __version__), ("toy", "1.0")) == versions(ToyBackend(), PLAIN)


def forward_only():
    refuses = lambda asked: asked.direction if asked.direction == "backward" else None
    return Rule("forward.direction", "direction", refuses, "forward", "", "a test")


class TestDerivatives:
    BIASED = "flexsdpa-ir 1\narray f32 1\narray f32 1\nscalars 0\nscore\nh\nread 0 1\nread 1 1\nadd 0 2\nadd 4 3\nreturn score 5"

    def test_forward_has_none(self):
        assert derivative_for(PLAIN) is None

    def test_backward_has_that_of_the_score(self):
        asked = request(direction="backward", program=SCALED, needs=(True, True, True))
        assert derivative_for(asked) is derivative_of(SCALED, frozenset())

    @pytest.mark.parametrize(("needs", "slots"), [((False, True), [1]), ((True, False), [0]), ((True, True), [0, 1]), ((), [])])
    def test_captured_tensors_that_need_gradients_are_differentiated(self, needs, slots):
        asked = request(direction="backward", program=self.BIASED, needs=(True, True, True, *needs))
        assert sorted(read.slot for read in derivative_for(asked).reads) == slots


class TestDevices:
    def test_no_two_cards_share_a_plan(self):
        toy = ToyBackend()
        engine = Engine([toy])
        plans = {id(engine.plan(engine.route(request(device=card)))) for card in CARDS}
        assert len(plans) == len(toy.built) == len(CARDS)

    @pytest.mark.parametrize("pair", [(H100, H100_SECOND), (RTX_5090, GB10)])
    def test_nor_do_two_cards_of_one_family(self, pair):
        engine = Engine([ToyBackend()])
        one, two = (engine.plan(engine.route(request(device=card))) for card in pair)
        assert one is not two
        assert engine.plan(engine.route(request(device=pair[0]))) is one


class TestRefusals:
    BACKENDS = (ToyBackend("fast", (only_devices("cuda", name="fast"),)), ToyBackend("small", (up_to_head_dim(32, "small"),)))

    def test_an_unsupported_request_lists_all_reasons_and_is_counted(self):
        engine = Engine(self.BACKENDS)
        with pytest.raises(UnsupportedError, match="no backend can serve"):
            run(engine, PLAIN)
        assert engine.cache.info().refusals == 1
        assert engine.cache.info().builds == 0

    def test_a_named_backend_never_falls_back(self):
        with pytest.raises(UnsupportedError, match=r"^backend 'fast' cannot serve"):
            run(Engine([*self.BACKENDS, ToyBackend("any")]), request(backend="fast"))

    def test_the_reasons_are_those_of_the_canonical_program(self):
        """A mask that is always True is no mask."""
        seen = []

        def look(asked):
            seen.append(asked.program)

        engine = Engine([ToyBackend("toy", (Rule("toy.look", "program", look, "", "", ""),))])
        run(engine, request(program="flexsdpa-ir 1\nscalars 0\nscore\nconst_b True\nreturn score 0\nreturn keep 1"))
        assert seen == [PLAIN.program]

    def test_a_failed_build_is_an_error_and_is_not_kept(self):
        toy = ToyBackend(fails=BuildError("no compiler"))
        engine = Engine([toy])
        with pytest.raises(BuildError, match=r"^no compiler$"):
            run(engine, PLAIN)
        toy.fails = None
        assert run(engine, PLAIN)[0] == "toy"

    def test_a_build_error_is_a_runtime_error(self):
        assert issubclass(BuildError, RuntimeError)


class TestLogs:
    def test_a_build_is_logged_once_with_its_digest(self, caplog):
        engine = Engine([ToyBackend()])
        with caplog.at_level(logging.INFO, "flexsdpa"):
            run(engine, PLAIN)
            run(engine, PLAIN)
        digest = engine.route(PLAIN).key.digest()
        assert caplog.messages == [f"building toy plan {digest}: {PLAIN.summary()}"]

    def test_a_gpu_without_a_fused_kernel_is_told_once(self, caplog, monkeypatch):
        monkeypatch.setattr(module, "_said", set())
        engine = Engine([ToyBackend("small", (up_to_head_dim(32, "small"),)), ToyBackend("any", universal=True)])
        asked = request(device=H100)
        with caplog.at_level(logging.WARNING, "flexsdpa"):
            run(engine, asked)
            run(engine, asked)
            run(engine, request(device=H100_SECOND))
        (message,) = caplog.messages
        assert message.startswith("no fused kernel serves this request, the tiled reference does (small: head_dim: 64 asked")
        assert engine.cache.info().fallbacks == 3

    def test_the_cpu_is_not(self, caplog):
        with caplog.at_level(logging.WARNING, "flexsdpa"):
            run(Engine([ToyBackend("any", universal=True)]), PLAIN)
        assert not caplog.messages

    def test_the_library_adds_no_handler_and_sets_no_level(self):
        logger = logging.getLogger("flexsdpa")
        assert not logger.handlers
        assert logger.level == logging.NOTSET


def test_the_capacity_follows_the_options():
    toy = ToyBackend()
    engine = Engine([toy])
    with config.options(plan_cache_size=1):
        run(engine, PLAIN)
        run(engine, request(program=SCALED, scalars=1))
        run(engine, PLAIN)
    assert len(toy.built) == 3
    assert engine.cache.info().evictions == 2
