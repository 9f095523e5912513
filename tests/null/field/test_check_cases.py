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
    """Cases written from the facts, a rule at a time, before the rules were asked."""
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


def test_a_file_that_is_not_there(tmp_path):
    assert "No such file" in "".join(run(tmp_path / "none.csv", 1))
