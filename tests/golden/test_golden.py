"""Programs and lowered texts as files: a refactor changes none, a change of lowering shows here and says why.

To accept a change: UPDATE_GOLDEN=1 python -m pytest tests/golden, and look at the difference before committing it.
"""

import difflib
import os
from pathlib import Path

import pytest

from flexsdpa.backends.reference.lower import lower
from flexsdpa.ir.canonical import derivative_of, program_of
from flexsdpa.ir.pretty import pretty
from flexsdpa.structure.analyse import analyse, describe
from flexsdpa.trace.recorder import Frontend
from flexsdpa.trace.run import trace
from golden.golden_mods import MODS

TEXTS = Path(__file__).parent / "texts"
UPDATE = os.environ.get("UPDATE_GOLDEN") == "1"
HOW = "if this change is meant, accept it with: UPDATE_GOLDEN=1 python -m pytest tests/golden"


def sections(score_mod, mask_mod):
    """Everything that is derived from a mod, as titled texts. What is lowered together is what the plans lower together."""
    found = trace(score_mod, mask_mod, Frontend())
    program = program_of(found.text)
    slots = frozenset(n for n, array in enumerate(found.arrays) if array.dtype.kind == "f")
    derivative = derivative_of(found.text, slots)
    gradients = [name for name, _ in derivative.program.results if name != "keep"]
    yield "program", program.text
    yield "in words", pretty(program)
    yield "structure", "\n".join(describe(program, analyse(program)))
    yield from lowered("score", program, ["score"])
    if program.result("keep") is not None:
        yield from lowered("keep", program, ["keep"])
    yield "derivative", derivative.program.text
    yield "gradients of reads", "\n".join(map(str, derivative.reads)) or "none"
    yield from lowered("gradients", derivative.program, gradients)


def lowered(what, program, wanted):
    for mode in ("fast", "careful"):
        result = lower(program, wanted, careful=mode == "careful")
        yield f"{what}, lowered, {mode}", "\n".join([result.text.rstrip("\n"), *(f"# needs {need}" for need in result.needs)])


def document(name):
    return "".join(f"==== {title} ====\n{text}\n\n" for title, text in sections(*MODS[name]))


@pytest.mark.parametrize("name", MODS)
def test_the_texts_of_a_mod_are_those_of_its_file(name):
    assert_kept(TEXTS / f"{name}.txt", document(name))


def assert_kept(file, actual):
    if UPDATE:
        file.write_text(actual)
    expected = file.read_text() if file.exists() else ""
    difference = difflib.unified_diff(
        expected.splitlines(), actual.splitlines(), f"{file.name}, kept", f"{file.name}, now", lineterm=""
    )
    assert actual == expected, "\n".join([*difference, "", HOW])


def test_every_file_belongs_to_a_mod():
    assert {file.stem for file in TEXTS.iterdir()} == set(MODS)


@pytest.mark.parametrize("name", MODS)
def test_the_lowered_texts_compile(name):
    for title, text in sections(*MODS[name]):
        if "lowered" in title:
            compile(text, name, "exec")


@pytest.mark.parametrize("name", MODS)
def test_lowering_twice_gives_the_same_text(name):
    assert document(name) == document(name)
