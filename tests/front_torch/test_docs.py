"""What the documents say is true: examples run, tables are complete, named tests exist."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flexsdpa.trace.functions import ALIASES, FUNCTIONS, REVERSED

ROOT = Path(__file__).resolve().parents[2]


EXAMPLES = ("flexsdpa.torch.api", "flexsdpa.torch.explaining", "flexsdpa.eligibility.field.decide", "flexsdpa.spec.device")


def test_every_example_is_run():
    written = {path for path in (ROOT / "src").rglob("*.py") if ">>> " in path.read_text(encoding="utf-8")}
    assert written == {ROOT / "src" / f"{name.replace('.', '/')}.py" for name in EXAMPLES}


@pytest.mark.parametrize("module", EXAMPLES)
def test_examples_in_docstrings_run(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_example_scripts_run(script):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, ROOT / "examples" / script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_integrators_example_says_what_it_gives():
    page = (ROOT / "docs" / "eligibility.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    scope: dict[str, object] = {}
    exec(block, scope)
    assert scope["decision"].answer == "declined"  # type: ignore[attr-defined]
    for line in block.splitlines():
        if "# ['" in line or "# 'CUDNN" in line:
            code, said = line.split("  # ", 1)
            assert repr(eval(code.strip(), scope)) == said.strip()


def test_the_readme_example_is_python_that_runs():
    import torch

    from flexsdpa import mods
    from flexsdpa.torch import attention

    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", readme, re.S)
    heads, S = 4, 32
    q, k, v = (torch.randn(2, heads, S, 8) for _ in range(3))
    scope = {"q": q, "k": k, "v": v, "heads": heads, "S": S, "docs": torch.arange(S).div(8, rounding_mode="floor").expand(2, S)}
    scope |= {"torch": torch, "mods": mods, "attention": attention}
    for block in blocks:
        if "score_mod(score, b, h, q_idx, kv_idx) -> score" not in block:
            exec(block, scope)
    assert scope["out"].shape == q.shape


def test_the_page_of_mods_names_every_function():
    words = set(re.findall(r"[a-z_0-9]+", (ROOT / "docs" / "mods.md").read_text()))
    missing = [name for name in FUNCTIONS if name not in words and name not in ALIASES and name not in REVERSED]
    assert missing == []


def test_every_test_that_the_page_of_pains_names_exists():
    page = (ROOT / "docs" / "pains.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) >= 30
    for path, test in named:
        source = (ROOT / path).read_text()
        assert not test or re.search(rf"def {test}\b", source) or re.search(rf"class {test}\b", source), f"{path}::{test}"


def test_the_page_of_pains_has_every_class_of_the_first_tier_that_a_cpu_can_show():
    page = (ROOT / "docs" / "pains.md").read_text()
    wanted = [1, 2, 3, 5, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33]
    assert [n for n in wanted if f"B{n:02d}" not in page] == []
