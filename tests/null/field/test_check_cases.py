"""flexsdpa check-cases: counts, disagreements with both rules, exit status."""

from pathlib import Path

import pytest

typer_testing = pytest.importorskip("typer.testing")
from flexsdpa.cli.main import app  # noqa: E402

FILE = Path(__file__).parents[2] / "data" / "eligibility_cases.csv"
MORE = FILE.with_name("eligibility_more_cases.csv")


def run(file, code):
    result = typer_testing.CliRunner().invoke(app, ["check-cases", str(file)])
    assert result.exit_code == code, result.output
    return result.output.splitlines()


def test_the_recorded_file_agrees():
    assert run(FILE, 0) == ["agree 387, disagree 0, unsure 14"]


def test_both_sides_of_every_boundary_agree():
    """Two cases a rule, one on each side of what it names."""
    assert run(MORE, 0) == ["agree 409, disagree 0, unsure 15"]


def test_a_disagreement_shows_both_rules(tmp_path):
    changed = tmp_path / "cases.csv"
    lines = FILE.read_text(encoding="utf-8").splitlines()[:4]
    changed.write_text("\n".join(lines).replace(",declined,CUDNN-ARCH-01", ",eligible,CUDNN-ARCH-01"), encoding="utf-8")
    first, second, last = run(changed, 1)
    assert first.startswith("C001: the file says eligible, CUDNN-ARCH-01 (both)")
    assert second.startswith("  flexsdpa says declined: CUDNN-ARCH-01: fused attention needs an Ampere card or newer")
    assert last == "agree 2, disagree 1, unsure 0"


def test_nonsense_names_the_line(tmp_path):
    changed = tmp_path / "cases.csv"
    changed.write_text(FILE.read_text(encoding="utf-8").replace(",bf16,", ",bf17,", 1), encoding="utf-8")
    first, last = run(changed, 1)
    assert first.startswith("C001: line 2 is no call that can be asked about: dtype: unknown 'bf17'")
    assert last == "agree 386, disagree 1, unsure 14"


UNREADABLE = {
    "nothing": (b"", "column 'framework' is missing; it has none"),
    "other columns": (b"a,b\n1,2\n", "column 'framework' is missing; it has a, b"),
    "no answers": (FILE.read_bytes().replace(b",expected,", b",expect,", 1), "column 'expected' is missing"),
    "a column twice": (FILE.read_bytes().replace(b"case_id,", b"cc,", 1), "column 'cc' is there twice"),
    "no text": (b"\xff\xfe\x00\xd8", "is no CSV text"),
    "another answer": (
        FILE.read_bytes().replace(b",declined,CUDNN-ARCH-01", b",no,CUDNN-ARCH-01", 1),
        "line 2: expected is one of",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_is_no_file_of_cases(tmp_path, name):
    data, words = UNREADABLE[name]
    file = tmp_path / "cases.csv"
    file.write_bytes(data)
    assert words in "".join(run(file, 1))


def test_what_spreadsheets_write_is_read(tmp_path):
    """A byte-order mark, CRLF, empty lines, and rows whose last cells are left out or have a comma too many."""
    head, first, second, third, *_ = FILE.read_text(encoding="utf-8").splitlines()
    file = tmp_path / "cases.csv"
    lines = [head, "", first, second.rsplit(",", 1)[0], f"{third},and more"]
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n\r\n")
    assert run(file, 0) == ["agree 3, disagree 0, unsure 0"]


def test_a_file_that_is_not_there(tmp_path):
    assert "Is a directory" in "".join(run(tmp_path, 1))
    assert "No such file" in "".join(run(tmp_path / "none.csv", 1))
