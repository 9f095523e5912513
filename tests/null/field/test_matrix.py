"""flexsdpa matrix: every cell is the rows' answer, in every form; the page in docs/ is up to date."""

import json
from pathlib import Path

import pytest

typer_testing = pytest.importorskip("typer.testing")
from flexsdpa.cli.main import app  # noqa: E402
from flexsdpa.cli.matrix import arguments_of, markdown  # noqa: E402
from flexsdpa.eligibility.field.matrix import CARDS, FEATURES, RELEASES, cells  # noqa: E402

PAGE = Path(__file__).parents[3] / "docs" / "cudnn.md"


def run(*arguments, code=0):
    result = typer_testing.CliRunner().invoke(app, ["matrix", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exit_code == code, result.output
    return result.output


def test_there_is_a_cell_for_every_feature_card_and_direction():
    found = list(cells(("9.28.1",)))
    assert len({(cell.feature, cell.card, cell.direction) for cell in found}) == len(found) == 2 * len(FEATURES) * len(CARDS)
    assert all(bool(cell.rules) == (cell.answer != "eligible") for cell in found)


def test_another_backend_is_named():
    text = run("--backend", "fa4", "--format", "markdown", "--card", "sm_80", "--direction", "forward")
    assert text.startswith("# What FlashAttention 4 serves")
    assert "`flexsdpa matrix --release 9.28.1 --card sm_80 --direction forward --backend fa4 --format markdown`" in text
    assert "## FlashAttention 4, beside cuDNN 9.28.1, forward" in text
    assert "| plain | - |" in text
    (cell, *_) = json.loads(run("--backend", "fa4", "--format", "json", "--card", "sm_80"))
    assert (cell["backend"], cell["answer"], cell["rules"]) == ("fa4", "declined", ["FA4-ARCH-01"])


def test_every_feature_is_served_somewhere():
    assert {cell.feature for cell in cells() if cell.answer == "eligible"} == set(FEATURES)


def test_cards_of_sm_12x_differ_only_where_there_is_evidence():
    found = {(c.feature, c.cudnn, c.direction, c.card): c for c in cells(cards=("12.0", "12.1"))}
    for (feature, cudnn, direction, card), cell in found.items():
        if card == "12.1":
            other = found[feature, cudnn, direction, "12.0"]
            assert set(cell.rules) ^ set(other.rules) <= {"CUDNN-PLAN-02", "CUDNN-PLAN-12"}


def test_the_terminal_shows_the_newest_release():
    text = run()
    assert "cuDNN 9.28.1, forward" in text
    assert "cuDNN 9.28.1, backward" in text
    assert "121" in text
    assert "head dims 192 and 128 (MLA)" in text


def test_json_names_the_rules():
    found = json.loads(run("--format", "json", "--card", "12.1", "--direction", "backward", "--release", "9.28.1"))
    (ragged,) = [cell for cell in found if cell["feature"] == "ragged (thd)"]
    assert (ragged["answer"], ragged["rules"]) == ("unsure", ["CUDNN-PLAN-02"])


def test_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "matrix.png"
    assert run("--out", str(file)).strip() == f"wrote {file}"
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("arguments", "text"), [
    (("--format", "html"), "unknown format 'html'"), (("--direction", "up"), "unknown direction 'up'"),
    (("--card", "h200"), "cc: expected a compute capability"), (("--release", "9"), "cudnn: expected three numbers with points"),
])  # fmt: skip
def test_mistakes_are_named(arguments, text):
    assert text in run(*arguments, code=1)


def test_the_page_is_what_the_command_prints():
    """To renew it: flexsdpa matrix --format markdown with every release, as below, into docs/cudnn.md."""
    assert (
        PAGE.read_text(encoding="utf-8")
        == markdown(list(cells(RELEASES)), arguments_of(RELEASES, (), "both", "cudnn", "torch")) + "\n"
    )
