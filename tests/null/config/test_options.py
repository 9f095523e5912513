"""Options: context over environment over default; bad values are named; threads and tasks do not see each other's.

A keyword argument of a call is above all of these; it is the front end's, and tested there.
"""

import asyncio
import contextvars
import threading

import pytest

import flexsdpa
from flexsdpa import config
from flexsdpa.errors import RequestError

NAMES = list(config.OPTIONS)
TEXTS = ("backend", "cache_dir", "request_log")
INTEGERS = [name for name in NAMES if name not in TEXTS]
OTHER = {"backend": "toy", "cache_dir": "kept", "request_log": "requests.json", **dict.fromkeys(INTEGERS, 77)}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for option in config.OPTIONS.values():
        monkeypatch.delenv(option.env, raising=False)


class TestPrecedence:
    @pytest.mark.parametrize("name", NAMES)
    def test_the_default(self, name):
        assert config.get(name) == config.OPTIONS[name].default
        assert config.source(name) == "default"

    @pytest.mark.parametrize("name", NAMES)
    def test_the_environment_is_above_the_default(self, name, monkeypatch):
        monkeypatch.setenv(f"FLEXSDPA_{name.upper()}", str(OTHER[name]))
        assert config.get(name) == OTHER[name] != config.OPTIONS[name].default
        assert config.source(name) == "environment"

    @pytest.mark.parametrize("name", NAMES)
    def test_the_context_is_above_the_environment(self, name, monkeypatch):
        monkeypatch.setenv(f"FLEXSDPA_{name.upper()}", "99" if name not in TEXTS else "other")
        with config.options(**{name: OTHER[name]}):
            assert config.get(name) == OTHER[name]
            assert config.source(name) == "context"
        assert config.source(name) == "environment"

    def test_the_environment_is_read_at_every_call(self, monkeypatch):
        monkeypatch.setenv("FLEXSDPA_TILE_Q", "5")
        assert config.get("tile_q") == 5
        monkeypatch.setenv("FLEXSDPA_TILE_Q", "6")
        assert config.get("tile_q") == 6

    def test_an_inner_context_is_above_an_outer_one(self):
        with config.options(tile_q=5, tile_kv=50):
            with config.options(tile_q=6):
                assert (config.get("tile_q"), config.get("tile_kv")) == (6, 50)
            assert config.get("tile_q") == 5
        assert config.get("tile_q") == config.OPTIONS["tile_q"].default

    def test_an_error_inside_ends_the_context(self):
        with pytest.raises(KeyError), config.options(tile_q=5):
            raise KeyError
        assert config.source("tile_q") == "default"

    def test_the_package_exports_the_context(self):
        with flexsdpa.options(tile_q=5):
            assert config.get("tile_q") == 5


class TestBadValues:
    @pytest.mark.parametrize("value", [0, -1, "many", "", 1.5, None, True])
    @pytest.mark.parametrize("name", INTEGERS)
    def test_in_the_context(self, name, value):
        with pytest.raises(RequestError) as raised, config.options(**{name: value}):
            pass
        assert str(raised.value) == f"{name}={value!r} is not valid: expected an integer >= 1"
        assert (raised.value.field, raised.value.got) == (name, value)

    @pytest.mark.parametrize("value", ["0", "-1", "many", "", "1.5"])
    @pytest.mark.parametrize("name", INTEGERS)
    def test_in_the_environment(self, name, value, monkeypatch):
        monkeypatch.setenv(f"FLEXSDPA_{name.upper()}", value)
        with pytest.raises(RequestError) as raised:
            config.get(name)
        assert str(raised.value) == f"FLEXSDPA_{name.upper()}={value!r} is not valid: expected an integer >= 1"
        assert raised.value.field == name

    def test_a_backend_that_is_no_word(self):
        with pytest.raises(RequestError) as raised, config.options(backend="two words"):
            pass
        assert str(raised.value) == "backend='two words' is not valid: expected auto, or a backend's name"

    def test_nothing_changes_when_one_of_several_is_bad(self):
        with pytest.raises(RequestError), config.options(tile_kv=5, tile_q=0):
            pass
        assert config.source("tile_kv") == "default"

    @pytest.mark.parametrize(
        ("name", "guess"), [("tile_k", " (did you mean 'tile_q'?)"), ("bakend", " (did you mean 'backend'?)"), ("xyz", "")]
    )
    def test_an_unknown_option(self, name, guess):
        with pytest.raises(RequestError) as raised, config.options(**{name: 1}):
            pass
        text = str(raised.value)
        assert text.startswith(f"unknown option {name!r}")
        assert text.endswith(f"; known: {', '.join(NAMES)}")
        assert ("did you mean" in text) == bool(guess)


class TestIsolation:
    def test_a_thread_does_not_see_another_threads_context(self):
        seen = []
        with config.options(tile_q=5):
            thread = threading.Thread(target=lambda: seen.append((config.get("tile_q"), config.source("tile_q"))))
            thread.start()
            thread.join()
        assert seen == [(config.OPTIONS["tile_q"].default, "default")]

    def test_threads_with_contexts_of_their_own(self):
        together = threading.Barrier(4)
        seen = {}

        def work(n):
            with config.options(tile_q=n):
                together.wait(20)
                seen[n] = config.get("tile_q")
                together.wait(20)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == {1: 1, 2: 2, 3: 3, 4: 4}

    def test_tasks_with_contexts_of_their_own(self):
        async def work(n):
            with config.options(tile_q=n):
                await asyncio.sleep(0.001)
                return config.get("tile_q")

        async def both():
            return await asyncio.gather(work(3), work(4))

        assert asyncio.run(both()) == [3, 4]

    def test_a_copied_context_keeps_its_options(self):
        with config.options(tile_q=5):
            copied = contextvars.copy_context()
        assert config.get("tile_q") == config.OPTIONS["tile_q"].default
        assert copied.run(config.get, "tile_q") == 5


class TestTheTable:
    @pytest.mark.parametrize("name", NAMES)
    def test_every_row_is_complete(self, name):
        option = config.OPTIONS[name]
        assert option.name == name
        assert option.env == f"FLEXSDPA_{name.upper()}"
        assert option.valid
        assert option.doc

    @pytest.mark.parametrize("name", NAMES)
    def test_every_default_is_valid(self, name):
        option = config.OPTIONS[name]
        assert option.parse(str(option.default)) == option.default
