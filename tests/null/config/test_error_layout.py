"""Errors: each is one of ours and the builtin that people expect, and its text is laid out in columns."""

import pytest

import flexsdpa
from flexsdpa import errors


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("RequestError", ValueError),
        ("TraceError", TypeError),
        ("TraceAttributeError", AttributeError),
        ("ReadError", IndexError),
        ("UnsupportedError", NotImplementedError),
        ("BuildError", RuntimeError),
        ("ProgramError", ValueError),
    ],
)
def test_an_error_is_ours_and_a_builtin(name, builtin):
    error = getattr(errors, name)
    assert issubclass(error, errors.FlexSDPAError)
    assert issubclass(error, builtin)


def test_the_package_exports_every_error_that_users_catch():
    assert {name for name in dir(errors) if name.endswith("Error")} - {"TraceAttributeError"} <= set(flexsdpa.__all__)


def test_everything_that_the_package_exports_exists():
    assert all(hasattr(flexsdpa, name) for name in flexsdpa.__all__)


class TestLayout:
    def test_labels_are_padded_to_one_column(self):
        assert errors.layout_message("no", [("at", "here"), ("instead", "do that")]) == "no\n  at       here\n  instead  do that"

    def test_a_row_without_text_is_left_out(self):
        assert errors.layout_message("no", [("at", ""), ("try", "that")]) == "no\n  try  that"

    def test_a_headline_stands_alone(self):
        assert errors.layout_message("no") == "no"

    @pytest.mark.parametrize(("name", "expected"), [("bshd", ""), ("bhsd ", " (did you mean 'bhsd'?)"), ("xyz", "")])
    def test_the_nearest_name(self, name, expected):
        known = ["bhsd"] if name != "bshd" else []
        assert errors.nearest(name, known) == expected
