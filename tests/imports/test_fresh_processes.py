"""Importing the core, in a fresh process, loads no framework."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from imports.sources import FRAMEWORKS, ROOT, imported, module_name, modules, short

LIGHT = [
    "flexsdpa",
    "flexsdpa.mods",
    "flexsdpa.ops",
    "flexsdpa.engine",
    "flexsdpa.explain",
    "flexsdpa.testing.fake_devices",
    *(["flexsdpa.testing.strategies"] if importlib.util.find_spec("hypothesis") else []),
    *(["flexsdpa.cli.main"] if importlib.util.find_spec("typer") else []),
]
CORE = ("ir", "structure", "trace", "spec", "eligibility", "plans", "backends", "mods")


def loaded_by(*names, path=ROOT.parent):
    """The frameworks that a fresh process has loaded after some imports."""
    script = f"import sys\nfor name in {names!r}:\n    __import__(name)\nprint(*[m for m in {FRAMEWORKS!r} if m in sys.modules])"
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={"PYTHONPATH": str(path)})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("name", LIGHT)
def test_importing_a_core_module_loads_no_framework(name):
    assert loaded_by(name) == []


def test_the_check_sees_a_framework(tmp_path):
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "heavy.py").write_text("import torch")
    assert loaded_by("heavy", path=tmp_path) == ["torch"]


def test_every_module_of_the_core_together_loads_none():
    """Layers 0 to 5, but for the files of a backend that build and run."""
    heavy = ("build.py", "handles.py")
    names = [
        module_name(path)
        for path in modules()
        if (short(path).split("/")[0] in CORE or "/" not in short(path))
        and path.name not in (*heavy, "__main__.py")
        and not path.name.startswith("torch_")
    ]
    assert len(names) > 40
    assert loaded_by(*names) == []


def test_tests_without_a_framework_import_none():
    folder = Path(__file__).parents[1] / "null"
    for path in sorted(folder.rglob("*.py")):
        assert not {name.split(".")[0] for name in imported(path)} & set(FRAMEWORKS), path.name
        assert not {name for name in imported(path) if name.startswith(("flexsdpa.torch", "flexsdpa.jax"))}, path.name
