"""verify(): every rule of its table can object, and names what is wrong."""

from dataclasses import replace

import pytest

from flexsdpa.errors import ProgramError
from flexsdpa.ir.program import Instr
from flexsdpa.ir.text import print_program
from flexsdpa.ir.verify import RULES, verify
from null.helpers import program

GOOD = program("score", "scalar 0", "mul 0 1", "round_f f16 2", "q", "read 0 4", arrays=["f32 1"], scalars=1, score=3, bias=5)


def broken(n, **changes):
    """GOOD with one instruction changed, and with the text of its fields."""
    instrs = list(GOOD.instrs)
    instrs[n] = replace(instrs[n], **changes)
    return reprinted(replace(GOOD, instrs=tuple(instrs)))


def reprinted(changed):
    return replace(changed, text=print_program(changed))


BROKEN = {
    "_order": (broken(2, args=(0, 2)), "instruction 2 refers to itself or to a later one"),
    "_kinds": (broken(2, kind="i"), "instruction 2: mul of 'ff' is not 'i'"),
    "_attrs": (broken(1, attr="1"), "instruction 1: scalar 1 of 1"),
    "_numbering": (broken(1, op="score", attr=""), "instructions 0 and 1 are the same value"),
    "_results": (reprinted(replace(GOOD, results=(("score", 4),))), "result 'score' has kind 'i'"),
    "_text": (replace(GOOD, text=GOOD.text + " "), "the text is not the text of the fields"),
}


def test_a_well_formed_program_is_returned():
    assert verify(GOOD) is GOOD


def test_every_rule_is_tested():
    assert set(BROKEN) == {rule.__name__ for rule in RULES}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_program_is_refused_by_the_rule(rule):
    bad, problem = BROKEN[rule]
    assert problem in list(next(r for r in RULES if r.__name__ == rule)(bad))
    with pytest.raises(ProgramError) as raised:
        verify(bad)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (broken(5, args=(0,)), "read 5 of a rank 1 f32 tensor has kinds 'f' -> 'f'"),
        (broken(5, kind="i"), "read 5 of a rank 1 f32 tensor has kinds 'i' -> 'i'"),
        (broken(2, attr="x"), "instruction 2: mul with attribute 'x'"),
        (broken(3, attr="f8"), "instruction 3: unknown dtype 'f8'"),
        (reprinted(replace(GOOD, results=(("score", 9),))), "result 'score' is not an instruction"),
        (reprinted(replace(GOOD, results=(("keep", 0),))), "result 'keep' has kind 'f'"),
    ],
)
def test_each_problem_is_named(bad, problem):
    with pytest.raises(ProgramError) as raised:
        verify(bad)
    assert problem in str(raised.value)


def test_all_problems_are_listed_at_once():
    bad = broken(2, kind="i")
    bad = replace(bad, instrs=(*bad.instrs[:5], Instr("read", (4,), "0", "b")))
    with pytest.raises(ProgramError) as raised:
        verify(bad)
    assert str(raised.value).count("; ") >= 2


def test_an_operand_that_does_not_exist_is_reported_and_not_a_crash():
    with pytest.raises(ProgramError, match="instruction 2 refers to itself or to a later one"):
        verify(broken(2, args=(0, 99)))
