"""Requests as lines of JSON: every field survives, nonsense is named, the log is written by the engine and read by explain."""

import json
import logging
from dataclasses import fields, replace

import pytest

import flexsdpa
from flexsdpa.eligibility.rule import Refusal
from flexsdpa.engine import Engine
from flexsdpa.errors import RequestError
from flexsdpa.ir.canonical import program_of
from flexsdpa.spec.device import Device
from flexsdpa.spec.replay import FORMAT, dumps, load, loads
from flexsdpa.spec.tensors import TensorSpec
from null.toy_backend import ToyBackend, request

FULL = replace(
    request(direction="backward"), device=Device.describe((12, 1), cudnn="9.28.1"), arrays=(TensorSpec("f32", (4, 7), (7, 1)),),
    program="flexsdpa-ir 1\narray f32 2\nscalars 2\nscore\nreturn score 0", scalars=2,
    needs=(True, False, True, True), lse_gradient=True, deterministic=True, backend="cudnn",
)  # fmt: skip


@pytest.mark.parametrize("asked", [request(), FULL], ids=["plain", "full"])
def test_a_request_comes_back_equal(asked):
    text = dumps(asked)
    assert "\n" not in text
    assert loads(text) == asked


def test_every_field_travels():
    assert set(json.loads(dumps(FULL))) == {field.name for field in fields(FULL)} | {"format"}


NONSENSE = {
    "no JSON": ("{", "no JSON of a request"),
    "another thing": ('{"direction": "forward"}', "no request: expected a JSON object with format"),
    "deep": ("[" * 200_000, "no JSON of a request"),
    "a list": ("[]", "no request: expected a JSON object with format"),
    "another version": (json.dumps({"format": "flexsdpa request 99"}), "no request: expected a JSON object with format"),
    "too little": (json.dumps({"format": FORMAT}), "field 'direction' of the request is missing"),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_named(name):
    text, words = NONSENSE[name]
    with pytest.raises(RequestError) as caught:
        loads(text)
    assert str(caught.value).startswith(words)


CHANGED = {
    "unknown field": ({"scalar": 3}, "unknown field 'scalar' of a request (did you mean 'scalars'?)"),
    "shape": ({"q": {"dtype": "f32", "shape": "wide", "strides": []}}, "field 'q' of the request is not valid"),
    "heads": ({"k": {"dtype": "f32", "shape": [2, 3, 24, 64], "strides": []}}, "k and v must have the same number of heads"),
    "device": ({"device": {"kind": "cuda"}}, "field 'device' of the request is not valid: expected kind, index, uuid"),
    "direction": ({"direction": "sideways"}, "field 'direction' of the request is not valid: expected forward or backward"),
    "a word for a truth value": ({"deterministic": "no"}, "field 'deterministic' of the request is not valid: expected true or"),
    "a word for a count": ({"scalars": "x"}, "field 'scalars' of the request is not valid: expected a whole number, got 'x'"),
    "words for truth values": ({"needs": "abc"}, "field 'needs' of the request is not valid: expected a list, got 'abc'"),
    "needs of a forward": ({"needs": [True, True, True]}, "needs: expected 0 truth values, got 3"),
    "a negative size": (
        {"q": {"dtype": "f32", "shape": [-2, 4, 24, 64], "strides": []}},
        "field 'q' of the request is not valid: expected a size",
    ),
    "short strides": (
        {"q": {"dtype": "f32", "shape": [2, 4, 24, 64], "strides": [64, 1]}},
        "field 'q' of the request is not valid: 4",
    ),
    "a dtype": (
        {"q": {"dtype": "f31", "shape": [2, 4, 24, 64], "strides": []}},
        "field 'q' of the request is not valid: unknown",
    ),
    "a number for a tensor": (
        {"arrays": [3]},
        "field 'arrays' of the request is not valid: expected dtype, shape, strides, got 3",
    ),
    "an array too many": (
        {"arrays": [{"dtype": "f32", "shape": [4], "strides": []}]},
        "the program reads arrays [] (dtype, rank) and 0 scalars, the request",
    ),
    "an unknown key of a tensor": (
        {"q": {"dtype": "f32", "shape": [2, 4, 24, 64], "strides": [], "layout": 1}},
        "field 'q' of the request is not valid: expected",
    ),
    "a kind of device": (
        {"device": {"kind": "toaster", "index": 0, "uuid": "", "name": "", "capability": None, "libraries": []}},
        "field 'device' of the request is not valid: unknown kind 'toaster'",
    ),
    "a capability": (
        {"device": {"kind": "cuda", "index": 0, "uuid": "", "name": "", "capability": [9, 10], "libraries": []}},
        "field 'device' of the request is not valid: no capability: 9, 10",
    ),
    "declined": ({"declined": {"sdpa": 3}}, "field 'declined' of the request is not valid: expected refusals by backend"),
    "a program": ({"program": "flexsdpa-ir 1\nnonsense"}, "field 'program' of the request is not valid"),
    "another language": ({"program": "def f(score): ..."}, "field 'program' of the request is not valid"),
    "program": ({"program": None}, "field 'program' of the request is not valid: expected a word"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_field_that_is_not_valid_is_named(name):
    changes, words = CHANGED[name]
    with pytest.raises(RequestError) as caught:
        loads(json.dumps(json.loads(dumps(request())) | changes))
    assert str(caught.value).startswith(words)


def test_the_engine_logs_each_new_request_once(tmp_path):
    file, asked = tmp_path / "requests.json", request()
    engine = Engine((ToyBackend("toy"),))
    with flexsdpa.options(request_log=str(file)):
        for _ in range(3):
            engine.run(("signature",), lambda: asked)
    (line,) = file.read_text().splitlines()
    assert loads(line) == replace(asked, program=program_of(asked.program).text)


def test_what_a_plan_declines_is_logged_once_and_replayed(tmp_path):
    file, asked = tmp_path / "requests.jsonl", request()
    engine = Engine((ToyBackend("picky", declines=13.0), ToyBackend("toy")))
    with flexsdpa.options(request_log=str(file)):
        for _ in range(3):
            engine.run(("signature",), lambda: asked, 13.0)
    first, second = (load(line) for line in file.read_text().splitlines())
    assert first[1] == {}
    assert second[0] == first[0]
    refusals = {name: Refusal(**said) for name, said in second[1].items()}
    assert refusals == {"picky": Refusal("picky.value", "value", "13.0", "any other value", "", "found at run time")}
    assert engine.decide(first[0]).backend == "picky"
    assert engine.decide(second[0], refusals).backend == "toy"


def test_a_log_that_cannot_be_written_is_said_once_and_no_call_fails(tmp_path, caplog):
    engine = Engine((ToyBackend("toy"),))
    with caplog.at_level(logging.WARNING, "flexsdpa"), flexsdpa.options(request_log=str(tmp_path)):
        for n in range(3):
            engine.run((n,), request)
    assert [record.message for record in caplog.records if "not logged" in record.message] == [
        f"requests are not logged: [Errno 21] Is a directory: '{tmp_path}'"
    ]
