"""Records: what is written is read back; a question that changed makes its rows stale; a broken file is named."""

import pytest

from flexsdpa.errors import RequestError
from flexsdpa.oracle.questions import QUESTIONS
from flexsdpa.oracle.records import Cell, Records, load, load_all
from flexsdpa.oracle.wheels import COMMON

NO = 'Num hidden_dim should be less than or equal to 128, "and" a multiple of 8'


def some():
    records = Records("9.28.1", "1.32.0")
    for card, reason in ((80, ""), (90, NO), (121, "")):
        records.add(Cell("9.28.1", "causal", "forward", card, reason))
    records.add(Cell("9.28.1", "mod: softcap", "backward", 90, NO))
    return records


def test_what_is_written_is_read_back(tmp_path):
    records = some()
    file = records.save(tmp_path)
    assert file.name == "9.28.1.csv"
    assert load(file) == records
    assert sorted(load(file).cells(), key=str) == sorted(records.cells(), key=str)
    assert [path.name for path in tmp_path.iterdir()] == ["9.28.1.csv"]


def test_a_reason_is_written_once(tmp_path):
    assert some().save(tmp_path).read_text().count("Num hidden_dim") == 1


def test_known_answers_are_not_asked_again():
    records = some()
    assert records.known("causal", "forward", 90)
    assert not records.known("causal", "forward", 100)
    assert not records.known("causal", "backward", 90)


def test_a_question_that_changed_is_stale_and_its_old_answers_go():
    records = some()
    records.rows["causal", "forward"] = ("old digest", records.rows["causal", "forward"][1])
    assert records.stale() == ["causal"]
    assert not records.known("causal", "forward", 90)
    records.add(Cell("9.28.1", "causal", "forward", 100, ""))
    assert records.rows["causal", "forward"] == (QUESTIONS["causal"].digest(), {100: ""})
    assert records.stale() == []


def test_a_question_that_is_gone_is_stale_until_the_file_is_written_anew(tmp_path):
    records = some()
    records.rows["no more", "forward"] = ("digest", {90: ""})
    assert records.stale() == ["no more"]
    assert load(records.save(tmp_path)).stale() == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cudnn,9.28.1\n",
        "cudnn,9.28.1,frontend,1.32.0\nquestion,direction,digest,card\n",
        "cudnn,9.28.1,frontend,1.32.0\nquestion,direction,digest,80\ncausal,forward,abc,n7\nyes,\n",
    ],
)
def test_a_file_that_holds_no_records_is_named(tmp_path, text):
    file = tmp_path / "9.28.1.csv"
    file.write_text(text)
    with pytest.raises(RequestError, match=r"9\.28\.1\.csv holds no records of the oracle"):
        load(file)


def test_releases_come_oldest_first(tmp_path):
    for release in ("9.28.1", "9.9.0", "9.19.0"):
        Records(release, "1.32.0").save(tmp_path)
    assert [records.cudnn for records in load_all(tmp_path)] == ["9.9.0", "9.19.0", "9.28.1"]


BROKEN = {
    "a column too many": lambda text: text.replace("causal,forward,", "causal,forward,x,", 1),
    "a column too few": lambda text: text.replace(",yes", "", 1),
    "a question twice": lambda text: text.replace("mod: softcap,backward", "causal,forward", 1),
    "no direction": lambda text: text.replace("causal,forward", "causal,sideways", 1),
    "no release": lambda text: text.replace("cudnn,9.28.1", "cudnn,nine", 1),
    "a reason that is nowhere": lambda text: text.replace(",n1", ",n7", 1),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_row_that_does_not_fit_is_no_record(tmp_path, name):
    file = some().save(tmp_path)
    text = file.read_text()
    file.write_text(BROKEN[name](text))
    assert file.read_text() != text
    with pytest.raises(RequestError, match="holds no records of the oracle"):
        load(file)


def test_what_is_missing_is_told():
    missing = some().missing()
    assert ("causal", "forward", 80) not in missing
    assert {("causal", "forward", 86), ("causal", "backward", 80), ("mod: softcap", "forward", 90)} <= set(missing)


def test_the_recorded_answers_are_complete_and_of_the_frontend_that_is_pinned():
    for records in load_all():
        assert records.missing() == []
        assert f"nvidia-cudnn-frontend=={records.frontend}" in COMMON
