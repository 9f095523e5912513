"""The command line: every command, on this machine, and its errors."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from flexsdpa.cli.main import app
from flexsdpa.plans.key import ArtifactKey
from flexsdpa.plans.store import STORE
from flexsdpa.torch import attention


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exit_code == code, result.output
    return result.output


def test_explain_prints_program_derivative_structure_key_and_verdicts():
    text = run("explain", "-s", "softcap:30", "-m", "causal", "--shape", "4,32,4096,128", "--kv-heads", "8", "--device", "sm_90")
    assert "score = tanh(score / s0) * s1" in text
    assert "dscore" in text
    assert "structure   causal" in text
    assert re.search(r"sdpa +refused", text)
    assert "score_mod: a score_mod asked, none served  [sdpa.score-mod]" in text
    assert re.search(r"cudnn +chosen", text)
    assert re.search(r"reference +eligible, comes later", text)
    assert "device_capability = (9, 0)" in text
    assert re.search(r"digest = [0-9a-f]{24}", text)
    assert "kv heads 8" in text


def test_explain_takes_a_function_of_the_users(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nTABLE = torch.zeros(8, 2047)\ndef biased(score, b, h, i, j):\n    return score + TABLE[h, i - j + 1023]\n"
    )
    text = run("explain", "-s", f"{tmp_path}/mine.py:biased", "--text")
    assert "t0[h, (q_idx - kv_idx) + 1023]" in text
    assert "operands = (('f32', 2, 'contiguous'),)" in text
    assert "flexsdpa-ir 1" in text


@pytest.mark.parametrize(
    "name",
    ["softcap", "alibi", "relative_bias", "t5_bias", "causal:3", "sliding_window:64", "document:3", "prefix_lm", "padding"],
)
def test_explain_and_draw_know_every_mod_of_ours(name):
    role = "-s" if name.split(":")[0] in ("softcap", "alibi", "relative_bias", "t5_bias") else "-m"
    assert "reference  chosen" in run("explain", role, name, "--shape", "2,8,256,64")
    assert "positions kept" in run("draw", role, name, "--q-len", "64")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain", "-s", "sofcap"), "unknown score_mod 'sofcap' (did you mean 'softcap'?)"),
        (("explain", "-m", "causal:x"), "causal takes offset (0), got 'x'"),
        (("explain", "-s", "nowhere:f"), "cannot load score_mod 'nowhere:f'"),
        (("explain", "--shape", "1,2,3"), "--shape must be batch,heads,q_len,head_dim, got '1,2,3'"),
        (("explain", "--kv-heads", "3"), "must be a multiple of the kv heads"),
        (("explain", "--device", "sm90x"), "unknown device 'sm90x'"),
        (("explain", "--device", "cuda:99"), "CUDA cards, no cuda:99: describe one instead, such as sm_90"),
        (("explain", "--kv-heads", "-8"), "sizes must be at least 1 and below 2**31"),
        (("explain", "--shape", "1,8,99999999999999999999,64"), "sizes must be at least 1 and below 2**31"),
        (("explain", "--backend", "referense"), "unknown backend 'referense' (did you mean 'reference'?)"),
        (
            ("oracle", "show", "cuasal"),
            "no question has 'cuasal' in its name (did you mean 'causal'?); flexsdpa oracle",
        ),
        (("oracle", "run", "--card", "99"), "card: no description of '99'; known: sm_80, sm_86,"),
        (("oracle", "run", "--release", "9.28"), "cudnn: expected three numbers with points, got '9.28'"),
        (("draw", "--head", "9"), "head must be 0 to 7"),
        (("draw", "--q-len", "100000"), "must be 1 to 4096 tokens"),
    ],
)
def test_errors_are_one_message_and_exit_status_1(arguments, message):
    text = run(*arguments, code=1)
    assert message in text
    assert "Traceback" not in text


def test_long_lines_are_broken_below_their_own_text():
    from flexsdpa.cli.explain import fitted

    text = "forward: q f32\n  note        " + "word " * 20 + "\n              ".join(["", "head_dim: 100 asked, " + "more " * 12])
    broken = fitted(text, 60).split("\n")
    assert max(map(len, broken)) <= 60
    assert broken[0] == "forward: q f32"
    assert broken[1].startswith("  note        word word")
    assert broken[2].startswith(" " * 16 + "word")
    assert fitted("short\n\n  line", 60) == "short\n\n  line"
    assert " ".join(fitted(text, 60).split()) == " ".join(text.split())


def test_rules_are_listed_with_their_sources():
    text = run("rules", "ragged")
    assert "CUDNN-LAYOUT-02: ragged inputs need Hopper or newer and 9.1, with grouped heads 9.6 (GATE)" in text
    assert "GATE: TransformerEngine, the policy of its fused attention" in text
    everything = run("rules")
    for row in ("CUDNN-12X-03", "FA4-ARCH-01", "FLEXSDPA-FP8", "cudnn.head-dims", "sdpa.device"):
        assert f"  {row}: " in everything
    assert "no rule has 'raged' in its id, text or source" in run("rules", "raged", code=1)


def test_questions_are_listed():
    assert "mod: softcap, causal\n" in run("oracle", "show", "--names")
    assert run("oracle", "show", "--names", "ALiBi, dropout") == "alibi, dropout\n"


def test_a_logged_request_is_explained_for_its_card_and_for_another(tmp_path, monkeypatch):
    file = tmp_path / "requests.jsonl"
    monkeypatch.setenv("FLEXSDPA_REQUEST_LOG", str(file))
    q = torch.randn(1, 2, 32, 8)
    q[0, 0, -1, 0] = torch.nan
    attention(q, q, q, mask_mod=lambda b, h, i, j: i >= j)
    assert len(file.read_text().splitlines()) == 2  # sdpa declined the nan at run time
    text = run("explain", "--from", str(file))
    assert re.search(r"sdpa +chosen", text)
    assert re.search(r"reference +chosen", text)
    other = run("explain", "--from", str(file), "--device", "sm_90")
    assert "NVIDIA H200 as described, with cudnn 9.28.1" in other
    assert "with cudnn 9.23.2" in run("explain", "--from", str(file), "--device", "sm_90", "--cudnn", "9.23.2")
    for arguments, words in (
        (("--cudnn", "9.23.2"), "--cudnn belongs to a described card"),
        (("-s", "softcap"), "--score-mod has no meaning beside it"),
        (("--shape", "1,1,1,1"), "--shape has no meaning beside it"),
    ):  # fmt: skip
        assert words in run("explain", "--from", str(file), *arguments, code=1)
    file.write_bytes(b"\xff\xfe\x00")
    assert "is no text" in run("explain", "--from", str(file), code=1)
    file.write_text('{\n  "format": 1\n}')
    assert "line 1: no JSON of a request" in run("explain", "--from", str(file), code=1)


def test_another_card_keeps_the_logged_release(tmp_path):
    from flexsdpa.spec.device import Device
    from flexsdpa.spec.replay import dumps
    from flexsdpa.spec.request import AttentionRequest
    from flexsdpa.spec.tensors import TensorSpec

    spec = TensorSpec("bf16", (1, 2, 32, 64), (4096, 2048, 64, 1))
    program = "flexsdpa-ir 1\nscalars 0\nscore\nreturn score 0"
    file = tmp_path / "requests.jsonl"
    file.write_text(dumps(AttentionRequest("forward", Device.describe((12, 0), cudnn="9.23.2"), spec, spec, spec, program)))
    assert "NVIDIA GB10 as described, with cudnn 9.23.2" in run("explain", "--from", str(file), "--device", "sm_121")
    assert "NVIDIA GB10 as described, with cudnn 9.19.0" in run(
        "explain", "--from", str(file), "--device", "12.1", "--cudnn", "9.19.0"
    )


def test_the_oracles_records_are_shown_and_agree_with_the_rules():
    counts = r"cuDNN 9\.28\.1, frontend [\d.]+: \d+ answers to \d+ questions, \d+ planned, \d+ refused"
    assert re.search(counts, run("oracle", "show"))
    shown = run("oracle", "show", "head dim 100")
    assert re.search(r"head dim 100 +backward +9\.28\.1( +1){10}", shown)
    assert "\n1: " in shown
    last = r"\d+ cells, 3 versions of cuDNN, 10 cards: \d+ agree, \d+ explained, 0 unexplained\n$"
    assert re.search(last, run("oracle", "check"))


def test_draw_shows_mask_and_blocks():
    text = run("draw", "-m", "causal", "--q-len", "128", "--block", "32")
    assert "causal" in text
    assert "blocks: # full  + partial  . empty  4 x 4" in text
    assert "  +...\n  #+..\n  ##+.\n  ###+" in text


def test_draw_writes_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "mask.png"
    run("draw", "-m", "sliding_window:32", "-s", "alibi", "--q-len", "96", "--out", str(out))
    assert out.read_bytes().startswith(b"\x89PNG")
    assert out.stat().st_size > 5_000


def test_doctor_lists_libraries_devices_backends_and_options(monkeypatch):
    monkeypatch.setenv("FLEXSDPA_TILE_Q", "64")
    text = run("doctor")
    for part in ("torch", "cpu", "reference", "sdpa", "FLEXSDPA_PLAN_CACHE_SIZE"):
        assert part in text
    assert re.search(r"FLEXSDPA_TILE_Q +│ 64 +│ environment", text)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_demo_runs_and_its_numbers_are_right(monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    text = run("demo", "--quick")
    errors = [float(x) for x in re.findall(r"\d\.\de-\d\d", text.split("MiniLM")[0])]
    assert len(errors) == 14
    assert max(errors) < 1e-5
    cosines = [float(x) for x in re.findall(r"│ ([01]\.\d{7}) +│", text)]
    assert len(cosines) == 8
    assert min(cosines) > 0.99999


def test_version_and_module_entry():
    from flexsdpa import __version__

    assert run("--version").strip() == f"flexsdpa {__version__}"
    done = subprocess.run([sys.executable, "-m", "flexsdpa", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"flexsdpa {__version__}"


def test_explain_takes_a_cudnn_for_a_described_card():
    arguments = ("explain", "-s", "softcap:30", "--shape", "1,8,1024,256", "--device", "sm_121", "--cudnn")
    text = run(*arguments, "9.28.1")
    assert "256 and 256, backward, on sm_12x asked" in text
    assert "9.10.1 asked, 9.10.2 or newer served -> upgrade cuDNN  [cudnn.version]" in run(*arguments, "9.10.1")
    assert "cudnn: expected three numbers with points" in run(*arguments, "new", code=1)
    assert "not for cpu" in run("explain", "--device", "cpu", "--cudnn", "9.28.1", code=1)


def test_explain_asks_the_backend_that_the_environment_names(monkeypatch):
    monkeypatch.setenv("FLEXSDPA_BACKEND", "reference")
    assert re.search(r"reference +chosen", run("explain", "--dtype", "f32"))
    monkeypatch.setenv("FLEXSDPA_BACKEND", "foo")
    assert "unknown backend 'foo'" in run("explain", code=1)


def test_mistakes_on_the_command_line_are_messages(monkeypatch, tmp_path):
    assert "unknown device 'gpu'" in run("explain", "--device", "gpu", code=1)
    assert "did you mean 'softcap'" in run("explain", "-s", "softcp:3", code=1)
    assert "softcap is a score_mod" in run("explain", "-m", "softcap:3", code=1)
    assert "cannot write" in run("draw", "-m", "causal", "--out", str(tmp_path / "none" / "x.png"), code=1)
    monkeypatch.setenv("FLEXSDPA_TILE_Q", "abc")
    assert "NOT VALID: FLEXSDPA_TILE_Q='abc'" in run("doctor")


def test_cache_shows_and_clears_kernels_on_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("FLEXSDPA_CACHE_DIR", str(tmp_path))
    assert run("cache").startswith("0 kernels, 0.0 MB, in ")
    key = ArtifactKey("forward", "cudnn", (), "H200", (9, 0), "text", (), ())
    STORE.save(key, bytes(5000), "q bf16 (1, 2, 3, 4)")
    text = run("cache")
    assert text.startswith("1 kernels, 0.0 MB, in ")
    assert "q bf16 (1, 2, 3, 4)" in text
    assert run("cache", "--clear").startswith("removed 1 kernels from ")
    assert STORE.load(key) is None
    monkeypatch.setenv("FLEXSDPA_CACHE_DIR", "off")
    assert "not kept on disk" in run("cache")


def test_explain_replays_logged_requests_on_another_card(tmp_path, monkeypatch):
    file = tmp_path / "requests.json"
    monkeypatch.setenv("FLEXSDPA_REQUEST_LOG", str(file))
    q = torch.randn(1, 2, 16, 24, requires_grad=True)
    attention(q, q, q, score_mod=lambda s, b, h, i, j: s * 0.37, mask_mod=lambda b, h, i, j: i >= j + 3).sum().backward()
    monkeypatch.delenv("FLEXSDPA_REQUEST_LOG")
    text = run("explain", "--from", str(file))
    assert text.count("score * s0") >= 2
    assert "forward: q f32 (1, 2, 16, 24)" in text
    assert "backward: q f32 (1, 2, 16, 24)" in text
    assert "device cuda:0 sm_121" in run("explain", "--from", str(file), "--device", "sm_121", "--cudnn", "9.28.1")
    file.write_text("nonsense\n")
    assert "requests.json, line 1: no JSON of a request" in run("explain", "--from", str(file), code=1)
    file.write_text("")
    assert "requests.json holds no requests" in run("explain", "--from", str(file), code=1)
    assert "No such file" in run("explain", "--from", str(tmp_path / "none.json"), code=1)


def test_a_fixed_table_is_no_reason_to_refuse_a_backward():
    text = run("explain", "-s", "alibi", "--device", "sm_90")
    assert "cudnn.captured-gradient" not in text
    assert "1 captured float tensor taken as fixed; --learned asks for gradients" in text
    assert "cudnn.captured-gradient" in run("explain", "-s", "alibi", "--device", "sm_90", "--learned")


def test_a_named_backend_that_refuses_says_what_the_call_would_do():
    assert "this call would raise UnsupportedError" in run("explain", "-s", "softcap", "--backend", "sdpa")
    assert "this call would raise" not in run("explain", "-s", "softcap")


def test_dtypes_may_be_called_as_torch_calls_them():
    assert "q bf16" in run("explain", "--dtype", "bfloat16")
    assert "q f32" in run("explain", "--dtype", "fp32")


def test_no_documents_is_an_error_that_says_so():
    assert "document needs at least one document, got 0" in run("draw", "-m", "document:0", code=1)


def test_doctor_names_what_is_no_option(monkeypatch):
    monkeypatch.setenv("FLEXSDPA_BAKEND", "cudnn")
    monkeypatch.setenv("FLEXSDPA_BACKEND", "cudn")
    text = run("doctor")
    assert "FLEXSDPA_BAKEND is no option (did you mean 'FLEXSDPA_BACKEND'?)" in text
    assert "no backend is called 'cudn' (did you mean 'cudnn'?)" in " ".join(text.replace("│", " ").split())
