"""The runner: asks only what is not known, survives a child that dies, leaves records whole where something is missing."""

import subprocess
import sys

import pytest

from flexsdpa.errors import BuildError, RequestError
from flexsdpa.oracle import run as runner
from flexsdpa.oracle import standin, wheels
from flexsdpa.oracle.questions import QUESTIONS
from flexsdpa.oracle.records import load

CHILD = """
import json, sys
print(json.dumps({"cudnn": "9.28.1", "frontend": "1.32.0"}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    assert set(asked) == {"id", "card", "direction", "case", "statistics", "program"}
    if asked["id"] == "head dim 100":
        sys.exit(7)
    verdict = {"verdict": "yes", "reason": ""}
    if asked["card"] == 80:
        verdict = {"verdict": "no", "reason": "not on " + str(asked["card"])}
    if asked["id"] == "plain":
        verdict = {"verdict": "broken", "reason": "TypeError: x"}
    print(json.dumps({"id": asked["id"], **verdict}), flush=True)
"""


@pytest.fixture
def child(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(runner, "COMMAND", (sys.executable, "-c", CHILD))
    monkeypatch.setattr(runner, "prepare", lambda release, folder: runner.Site((folder,), folder))
    ask = runner.Child.ask
    monkeypatch.setattr(runner.Child, "ask", lambda self, question: (asked.append(question), ask(self, question))[1])
    return asked


def ask(tmp_path, names, cards=(80, 90), **more):
    return runner.run("9.28.1", tmp_path, names, cards, workers=2, records_folder=tmp_path, **more)


def test_answers_are_kept_in_the_librarys_words(child, tmp_path):
    steps = []
    records = ask(tmp_path, ["causal"], progress=lambda done, total: steps.append((done, total)))
    answers = {(cell.direction, cell.card): cell.reason for cell in records.cells()}
    assert answers == {("forward", 80): "not on 80", ("forward", 90): "", ("backward", 80): "not on 80", ("backward", 90): ""}
    assert records.frontend == "1.32.0"
    assert load(tmp_path / "9.28.1.csv") == records
    assert steps[0] == (0, 4)
    assert steps[-1] == (4, 4)


def test_only_what_is_not_known_is_asked(child, tmp_path):
    ask(tmp_path, ["causal"])
    child.clear()
    ask(tmp_path, ["causal", "fp16"], cards=(80, 90, 121))
    found = {(question["id"], question["direction"], question["card"]) for question in child}
    assert found == {
        ("causal", "forward", 121), ("causal", "backward", 121),
        *(("fp16", direction, card) for direction in ("forward", "backward") for card in (80, 90, 121)),
    }  # fmt: skip


def test_a_child_that_dies_is_an_answer_and_the_next_question_gets_a_new_one(child, tmp_path):
    records = ask(tmp_path, ["head dim 100", "causal"])
    broken = {cell.question for cell in records.cells() if cell.broken}
    assert broken == {"head dim 100"}
    assert {cell.reason for cell in records.cells() if cell.broken} == {
        "broken: the child process died or took too long (exit status 7)"
    }


def test_a_question_that_cannot_be_put_is_not_a_refusal(child, tmp_path):
    (cell, *_) = ask(tmp_path, ["plain"]).cells()
    assert cell.broken
    assert cell.reason == "broken: TypeError: x"


def test_what_could_not_be_put_is_tried_again(child, tmp_path):
    ask(tmp_path, ["head dim 100"])
    child.clear()
    ask(tmp_path, ["head dim 100"])
    assert len(child) == 4


def test_answers_before_an_interruption_are_kept(child, tmp_path):
    def stop(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(tmp_path, ["causal", "fp16"], progress=stop)
    assert len(list(load(tmp_path / "9.28.1.csv").cells())) == 3


def test_a_question_that_is_asked_no_more_is_dropped(child, tmp_path):
    records = ask(tmp_path, ["causal"])
    records.rows["no more", "forward"] = ("digest", {90: ""})
    text = records.save(tmp_path).read_text().replace("causal,forward", "no more,forward")
    (tmp_path / "9.28.1.csv").write_text(text)
    assert load(tmp_path / "9.28.1.csv").stale() == ["no more"]
    ask(tmp_path, ["causal"])
    assert load(tmp_path / "9.28.1.csv").stale() == []


def test_a_refusal_without_words_is_a_refusal(monkeypatch, child, tmp_path):
    monkeypatch.setattr(runner, "COMMAND", (sys.executable, "-c", CHILD.replace('"not on " + str(asked["card"])', '""')))
    answers = {cell.card: cell.reason for cell in ask(tmp_path, ["causal"]).cells()}
    assert answers == {80: "refused without a word", 90: ""}


def test_a_child_that_does_not_start_says_why(child, monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "COMMAND", (sys.executable, "-c", "import no_such_module"))
    with pytest.raises(BuildError, match=r"does not start: .*no_such_module"):
        ask(tmp_path, ["causal"])
    assert not (tmp_path / "9.28.1.csv").exists()


def test_the_stand_in_is_on_the_childs_path_alone(monkeypatch, tmp_path):
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    site = runner.Site((tmp_path / "driver", tmp_path / "cudnn"), tmp_path / "common")
    assert site.environment()["LD_LIBRARY_PATH"] == f"{tmp_path / 'driver'}:{tmp_path / 'cudnn'}"
    import os

    assert "LD_LIBRARY_PATH" not in os.environ


def test_no_compiler_is_told_and_leaves_records_whole(monkeypatch, tmp_path):
    monkeypatch.setattr(standin.shutil, "which", lambda name: None)
    with pytest.raises(BuildError, match=r"needs a C compiler .* and none of cc, gcc, clang is on the path"):
        ask(tmp_path, ["causal"])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_download_is_told_in_pips_words(monkeypatch, tmp_path):
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: slow\nERROR: No matching distribution found for nvidia-cudnn-cu13")
    monkeypatch.setattr(wheels.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(BuildError, match="cannot be fetched, records stay as they were: ERROR: No matching distribution"):
        wheels.fetched(tmp_path / "9.28.1", ("nvidia-cudnn-cu13==9.28.1.4",))


def test_a_folder_that_is_whole_is_not_fetched_again(monkeypatch, tmp_path):
    calls = []
    done = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(
        wheels.subprocess, "run", lambda command, **_: (calls.append(command), (tmp_path / "a").mkdir(), done)[-1]
    )
    for _ in range(2):
        assert wheels.fetched(tmp_path / "a", ("x==1",)) == tmp_path / "a"
    assert len(calls) == 1
    assert calls[0][-1] == "x==1"


def test_releases_are_parsed_strictly(monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "build_standin", lambda folder: pytest.fail("built before the release was looked at"))
    with pytest.raises(RequestError, match=r"cudnn: expected three numbers with points, got '9\.28'"):
        runner.run("9.28", tmp_path, ["causal"], (90,), records_folder=tmp_path)
    assert wheels.wheel_of("9.28.1") == "nvidia-cudnn-cu13==9.28.1.4"
    assert wheels.wheel_of("9.24.0") == "nvidia-cudnn-cu13==9.24.0.*"
    with pytest.raises(RequestError, match="cudnn: expected three numbers with points, got 'newest'"):
        wheels.wheel_of("newest")


@pytest.mark.skipif(not any(map(standin.shutil.which, standin.COMPILERS)), reason="no C compiler")
def test_the_stand_in_reports_no_device(tmp_path):
    import ctypes

    library = ctypes.CDLL(str(standin.build_standin(tmp_path) / standin.SONAME))
    version, count = ctypes.c_int(), ctypes.c_int(9)
    assert (library.cuInit(0), library.cuDeviceGetCount(ctypes.byref(count)), count.value) == (100, 0, 0)
    assert (library.cuDriverGetVersion(ctypes.byref(version)), version.value) == (0, 13000)
    assert library.cuLaunchKernel() != 0


def test_every_question_travels_as_json():
    import json

    from flexsdpa.eligibility.field.case import FieldCase

    for name, question in QUESTIONS.items():
        for direction in question.directions:
            asked = json.loads(json.dumps(runner.as_asked("9.28.1", (name, direction, 121))))
            assert FieldCase.of(**asked["case"]) == question.case(121, "9.28.1", direction)
