"""Lowered text of random programs: it compiles, and no value is read after another has been written over it."""

import ast

import pytest
from hypothesis import given

from flexsdpa.backends.reference.lower import lower
from flexsdpa.ir.derivative import derivative
from flexsdpa.ir.program import ArraySlot
from flexsdpa.ir.simplify import simplify
from flexsdpa.testing.strategies import programs
from null.helpers import program

ARGUMENTS = {"score", "b", "h", "q", "kv", "at", "T", "C", "F", "K"}
NAMESPACE = {"torch", "INF", "NAN", "int_floordiv", "int_mod", "int_shl", "int_shr", "careful_read"}
"""What the text may use besides its arguments."""

SOURCE = programs(slots=(ArraySlot("f32", 1), ArraySlot("i64", 2), ArraySlot("bool", 1)), steps=20)


def overwritten(call):
    """The name behind ``out=`` anywhere in an expression."""
    return [k.value.id for part in ast.walk(call) if isinstance(part, ast.Call) for k in part.keywords if k.arg == "out"]


def assert_sound(text):
    """Names are defined before use; a value that was written over is dead."""
    (function,) = ast.parse(text).body
    known, dead = ARGUMENTS | NAMESPACE, set()
    for statement in function.body:
        used = [node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
        assert not set(used) - known, f"unknown names in: {ast.unparse(statement)}\n{text}"
        assert not set(used) & dead, f"overwritten values in: {ast.unparse(statement)}\n{text}"
        dead |= set(overwritten(statement))
        known |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    assert isinstance(function.body[-1], ast.Return)


@pytest.mark.parametrize("careful", [False, True])
@given(drawn=SOURCE)
def test_a_random_program(drawn, careful):
    simple = simplify(drawn)
    for wanted in (["score"], ["keep"], ["score", "keep"]):
        assert_sound(lower(simple, wanted, careful).text)


@pytest.mark.parametrize("careful", [False, True])
@given(drawn=SOURCE)
def test_a_random_derivative(drawn, careful):
    found = derivative(simplify(drawn), frozenset((0,))).program
    assert_sound(lower(found, [name for name, _ in found.results if name != "keep"], careful).text)


@given(SOURCE)
def test_lowering_depends_on_the_program_alone(drawn):
    simple = simplify(drawn)
    assert lower(simple, ["score"]) == lower(simple, ["score"])


def test_a_result_that_is_absent_is_left_out():
    assert (
        lower(simplify(program("score", "neg 0", score=1)), ["keep"]).text
        == "def tile(score, b, h, q, kv, at, T, C, F, K):\n    return ()\n"
    )


class TestTheCheckItself:
    HEAD = "def tile(score, b, h, q, kv, at, T, C, F, K):\n    "

    @pytest.mark.parametrize(
        "body",
        ["v1 = torch.exp(score, out=score)\n    return (score,)", "v1 = torch.exp(v0)\n    return (v1,)",
         "v1 = torch.exp(score)\n    v2 = torch.neg(v1, out=v1)\n    return (v1,)"],
    )  # fmt: skip
    def test_unsound_text_is_seen(self, body):
        with pytest.raises(AssertionError):
            assert_sound(self.HEAD + body)

    def test_sound_text_is_fine(self):
        assert_sound(self.HEAD + "v1 = torch.exp(score, out=score)\n    return (v1,)")
