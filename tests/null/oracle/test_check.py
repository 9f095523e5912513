"""The rules against what the library said: the recorded answers, and contradictions planted among them."""

from dataclasses import replace

import pytest

from flexsdpa.oracle import check as checks
from flexsdpa.oracle.check import check, judge, unknown_ids
from flexsdpa.oracle.explained import EXPLAINED, Explained
from flexsdpa.oracle.records import NUMBERS, Cell, Records, load_all
from flexsdpa.spec.families import CARDS

NO = "no engine takes it"
RELEASES = {"9.19.0", "9.23.2", "9.28.1"}


@pytest.fixture(scope="module")
def report():
    return check(load_all())


def said(question, direction, card, reason="", cudnn="9.28.1"):
    return judge(Cell(cudnn, question, direction, card, reason))


def test_no_recorded_answer_is_unexplained(report):
    cells = [one.cell for one in report.judged]
    assert report.good
    assert len(cells) >= 3000
    assert {cell.cudnn for cell in cells} == RELEASES
    assert {cell.card for cell in cells} == {card.number for card in CARDS} == set(NUMBERS)
    assert not any(cell.broken for cell in cells)
    assert report.summary().endswith(" 0 unexplained")
    assert report.summary().startswith(f"{len(cells)} cells, 3 versions of cuDNN, 10 cards: ")


def test_records_hold_both_answers_of_every_family(report):
    for low in (80, 90, 100, 110, 120):
        answers = {one.cell.planned for one in report.judged if low <= one.cell.card < low + 10}
        assert answers == {True, False}


def test_explanations_are_few_and_name_rules_that_exist(report):
    assert not list(unknown_ids())
    assert len(report.of("explained")) < len(report.judged) / 50
    assert not report.unused


@pytest.mark.parametrize(("question", "direction", "card"), [
    ("causal", "forward", 90), ("plain", "backward", 120), ("mod: softcap", "forward", 90), ("ragged", "backward", 120),
])  # fmt: skip
def test_a_refusal_that_no_rule_makes_is_unexplained(question, direction, card):
    assert said(question, direction, card).outcome == "agrees"
    assert said(question, direction, card, NO).outcome == "unexplained"


@pytest.mark.parametrize(("question", "direction", "card", "rule"), [
    ("head dim 100", "forward", 90, "CUDNN-F16-HEADDIM-01"), ("ragged", "backward", 121, "CUDNN-PLAN-02"),
    ("fp8_delayed, plain", "forward", 86, "CUDNN-FP8-02"),
    ("mod: softcap, head dim 192", "backward", 80, "cudnn.backward-head-dims"),
])  # fmt: skip
def test_a_plan_that_a_rule_of_the_library_refuses_is_unexplained(question, direction, card, rule):
    judged = said(question, direction, card)
    assert judged.outcome == "unexplained"
    assert rule in judged.refusing
    assert said(question, direction, card, NO).outcome == "agrees"


def test_rules_of_callers_neither_contradict_nor_predict_the_library():
    """CUDNN-12X-04 is TransformerEngine's gate: the library plans it, and if it refused, that would need a row of its own."""
    assert said("deterministic", "backward", 120).outcome == "agrees"
    assert said("deterministic", "backward", 120, NO).outcome == "unexplained"


def test_the_backends_own_rules_must_know_what_the_library_refuses_of_its_calls(monkeypatch):
    assert said("one by one", "backward", 90, NO).outcome == "agrees"
    monkeypatch.setattr(checks, "RULES", tuple(rule for rule in checks.RULES if rule.id != "cudnn.one-by-one"))
    assert said("one by one", "backward", 90, NO).outcome == "unexplained"


def test_a_question_that_could_not_be_put_is_unexplained():
    assert said("causal", "forward", 90, "broken: the child died").outcome == "unexplained"


def test_an_explanation_covers_what_it_names_and_no_more():
    row = Explained("ragged*", "backward", "CUDNN-PLAN-02", "", cards=(121,), releases=("9.28.1",))
    cell = Cell("9.28.1", "ragged, sink", "backward", 121, "")
    assert row.covers(cell, ("CUDNN-PLAN-02",))
    assert not row.covers(cell, ())
    for change in ({"cudnn": "9.19.0"}, {"question": "plain"}, {"direction": "forward"}, {"card": 120}):
        assert not row.covers(replace(cell, **change), ("CUDNN-PLAN-02",))
    assert not replace(row, rule="").covers(cell, ("CUDNN-PLAN-02",))


def test_an_explanation_that_explains_nothing_is_told(monkeypatch):
    extra = Explained("plain", "forward", "CUDNN-NO-SUCH-ROW", "")
    monkeypatch.setattr(checks, "EXPLAINED", (*EXPLAINED, extra))
    records = Records("9.28.1", "1.32.0")
    records.add(Cell("9.28.1", "plain", "forward", 90, ""))
    found = check([records])
    assert extra in found.unused
    assert not found.good
    assert list(unknown_ids()) == ["CUDNN-NO-SUCH-ROW"]


def test_stale_records_are_not_good():
    records = Records("9.28.1", "1.32.0")
    records.add(Cell("9.28.1", "plain", "forward", 90, ""))
    records.rows["plain", "forward"] = ("another", {90: ""})
    found = check([records])
    assert found.stale == ("9.28.1: plain",)
    assert not found.good


def test_records_that_lack_answers_are_not_good():
    whole = load_all()
    (question, direction), (digest, answers) = next(iter(whole[0].rows.items()))
    whole[0].rows[question, direction] = (digest, {card: reason for card, reason in answers.items() if card != 121})
    found = check(whole)
    assert found.missing == ((whole[0].cudnn, 1),)
    assert not found.good
    assert not found.of("unexplained")
