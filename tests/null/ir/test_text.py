"""Program text: it round-trips, and the strict parser refuses everything that Builder would not write."""

import pytest
from hypothesis import given

from flexsdpa.errors import ProgramError
from flexsdpa.ir.builder import Builder, const_text
from flexsdpa.ir.text import parse, print_program
from flexsdpa.ir.verify import verify
from flexsdpa.testing.strategies import programs
from null.helpers import program

HEAD = "flexsdpa-ir 1\n"


class TestRoundTrip:
    @given(programs())
    def test_printing_a_parsed_program_gives_its_text(self, random_program):
        assert print_program(parse(random_program.text)) == random_program.text

    @given(programs())
    def test_parsing_gives_equal_fields(self, random_program):
        again = parse(random_program.text)
        assert (again.arrays, again.scalars, again.instrs, again.results) == (
            random_program.arrays, random_program.scalars, random_program.instrs, random_program.results,
        )  # fmt: skip

    @given(programs())
    def test_what_the_builder_writes_is_well_formed(self, random_program):
        verify(random_program)

    def test_programs_are_equal_when_their_texts_are(self):
        one, two = program("score", "neg 0", score=1), program("score", "neg 0", score=1)
        assert one == two
        assert hash(one) == hash(two)
        assert one != program("score", "abs 0", score=1)

    @pytest.mark.parametrize("pair", [(0.0, -0.0), (1.0, 1.0000000000000002), (1e308, float("inf"))])
    def test_floats_that_differ_in_bits_differ_in_text(self, pair):
        assert const_text(pair[0]) != const_text(pair[1])

    def test_one_integer_float_and_bool_are_three_constants(self):
        texts = {program(line, value=0).text for line in ("const_i 1", "const_f 1.0", "const_b True")}
        assert len(texts) == 3


class TestBuilder:
    def test_a_value_is_written_once(self):
        builder = Builder()
        score = builder.op("score")
        assert builder.op("neg", score) == builder.op("neg", score)
        assert builder.lines == ["score", "neg 0"]

    def test_an_op_of_the_wrong_kinds_is_refused(self):
        builder = Builder()
        with pytest.raises(ProgramError, match=r"^op 'tanh' does not take kinds 'i'$"):
            builder.op("tanh", builder.op("q"))


BAD = {
    "": ("program text", "must start with 'flexsdpa-ir 1', not ''"),
    "flexsdpa-ir 2\nscalars 0\nscore\nreturn score 0": ("program text", "must start with 'flexsdpa-ir 1', not 'flexsdpa-ir 2'"),
    "flexsdpa-ir 1": ("program text", "ends early: 'scalars' and 'return' lines are needed"),
    HEAD + "scalars 0": ("program text", "ends early: 'scalars' and 'return' lines are needed"),
    HEAD + "scalars 0\nscore": ("program text", "ends early: 'scalars' and 'return' lines are needed"),
    HEAD + "scalars 0\nscore\nreturn score 0\nreturn score 0": ("program text", "names one result twice"),
    HEAD + "score\nscalars 0\nreturn score 0": ("line 2", "no instruction may stand here: 'score'"),
    HEAD + "scalars 0\nscore\nreturn score 0\n": ("line 5", "no instruction may stand here: ''"),
    HEAD + "scalars 0\nscore\nreturn score 0\nneg 0": ("line 5", "no instruction may stand here: 'neg'"),
    HEAD + "scalars 0\nscore\nreturn score": ("line 4", "expected 'return name id'"),
    HEAD + "scalars 0\nscore\nreturn score 1": ("line 4", "operand 1 is not defined yet"),
    HEAD + "scalars 0\nscore\nreturn score -1": ("line 4", "expected a number, not '-1'"),
    HEAD + "scalars 0\nneg 0": ("line 3", "operand 0 is not defined yet"),
    HEAD + "scalars 0\nscore\nneg 00": ("line 4", "expected a number, not '00'"),
    HEAD + "scalars 0\nscore\nneg \u0660": ("line 4", "expected a number, not '\u0660'"),
    HEAD + "scalars 0\nscore\nneg  0": ("line 4", "expected a number, not ''"),
    HEAD + "scalars 0\nscore\nneg 0 ": ("line 4", "expected a number, not ''"),
    HEAD + "scalars 0\nscore\nneg": ("line 4", "neg does not take kinds ''"),
    HEAD + "scalars 0\nscore\nadd 0": ("line 4", "add does not take kinds 'f'"),
    HEAD + "scalars 0\nscore\nq\nadd 0 1": ("line 5", "add does not take kinds 'fi'"),
    HEAD + "scalars 0\nscore\nscore 0": ("line 4", "score does not take kinds 'f'"),
    HEAD + "scalars 0\nsoftmax": ("line 3", "unknown op 'softmax'"),
    HEAD + "scalars 0\nscore\r": ("line 3", "unknown op 'score\\r'"),
    HEAD + "scalars 0\nscalars 0": ("line 3", "unknown op 'scalars'"),
    HEAD + "scalars 0\narray f32 1": ("line 3", "unknown op 'array'"),
    HEAD + "scalars one": ("line 2", "expected a number, not 'one'"),
    HEAD + "scalars 1 2": ("line 2", "expected one number after 'scalars'"),
    HEAD + "scalars 1\nscalar 1": ("line 3", "scalar 1 of 1"),
    HEAD + "array f8 1\nscalars 0": ("line 2", "unknown dtype 'f8'"),
    HEAD + "array f32 -1\nscalars 0": ("line 2", "expected a number, not '-1'"),
    HEAD + "array f32 2\nscalars 0\nq\nread 0 0": ("line 5", "2 integer indices needed, got kinds 'i'"),
    HEAD + "array f32 1\nscalars 0\nscore\nread 0 0": ("line 5", "1 integer indices needed, got kinds 'f'"),
    HEAD + "scalars 0\nconst_f 1": ("line 3", "expected a float as repr writes it"),
    HEAD + "scalars 0\nconst_f 1e0": ("line 3", "expected a float as repr writes it"),
    HEAD + "scalars 0\nconst_f Infinity": ("line 3", "expected a float as repr writes it"),
    HEAD + "scalars 0\nconst_i 1.0": ("line 3", "invalid literal for int() with base 10: '1.0'"),
    HEAD + "scalars 0\nconst_i +1": ("line 3", "expected a 64-bit integer"),
    HEAD + "scalars 0\nconst_i 9223372036854775808": ("line 3", "expected a 64-bit integer"),
    HEAD + "scalars 0\nconst_b 1": ("line 3", "expected True or False"),
    HEAD + "scalars 0\nscore\nround_f i32 0": ("line 4", "unknown dtype 'i32'"),
    HEAD + "scalars 0\nq\nwrap_i f32 0": ("line 4", "unknown dtype 'f32'"),
}  # fmt: skip
"""Text -> the place that its error names, and what the error says about it."""


class TestTheParserIsStrict:
    @pytest.mark.parametrize("text", BAD, ids=repr)
    def test_malformed_text_is_refused_with_its_line(self, text):
        place, problem = BAD[text]
        with pytest.raises(ProgramError) as raised:
            parse(text)
        message = str(raised.value)
        assert message.startswith(place)
        assert message.endswith(problem)
        if place.startswith("line"):
            line = text.split("\n")[int(place.split()[1]) - 1]
            assert message.startswith(f"{place} of program text, {line!r}: ")

    @pytest.mark.parametrize(
        "text", [t for t, (_, problem) in BAD.items() if problem.startswith(("unknown dtype", "operand", "no instr"))]
    )
    def test_a_problem_is_not_called_expected(self, text):
        with pytest.raises(ProgramError) as raised:
            parse(text)
        assert "expected" not in str(raised.value)

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            (HEAD + "scalars", "line 2 of program text, 'scalars': "),
            (HEAD + "array f32", "line 2 of program text, 'array f32': "),
            (HEAD + "array f32 1 1\nscalars 0", "line 2 of program text, 'array f32 1 1': "),
            (HEAD + "scalars 0\nconst_f", "line 3 of program text, 'const_f': "),
            (HEAD + "scalars 0\nread", "line 3 of program text, 'read': "),
            (HEAD + "scalars 0\nq\nread 0 0", "line 4 of program text, 'read 0 0': "),
            (HEAD + "scalars 0\nscore\nround_f", "line 4 of program text, 'round_f': "),
        ],
    )
    def test_a_line_that_ends_early_is_named(self, text, line):
        with pytest.raises(ProgramError) as raised:
            parse(text)
        assert str(raised.value).startswith(line)

    def test_an_instruction_written_twice_is_refused(self):
        with pytest.raises(ProgramError):
            parse(HEAD + "scalars 0\nscore\nscore\nadd 0 1\nreturn score 2")

    def test_a_result_without_a_name_is_refused(self):
        with pytest.raises(ProgramError):
            parse(HEAD + "scalars 0\nscore\nreturn  0")
