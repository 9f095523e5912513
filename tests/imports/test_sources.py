"""Rules of style that a machine can check: sizes of files, no capability by number, no path of one machine."""

import ast
import re

import pytest

from imports.sources import ROOT, files, modules, short

LONGEST = 600

CAPABILITY = re.compile(r"capabilit|(^|_)(cc|sm|major|minor|arch)($|_)", re.IGNORECASE)

BY_NUMBER = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)

MACHINE_PATHS = re.compile(
    r"""(?:^|[\s"'`=(:])(/(?:home|root|work|tmp|usr|opt|mnt|Users|var|data|scratch)/[\w./-]*|[A-Za-z]:\\\\?\w+)"""
)


def words_in(node):
    """Names and attributes in an expression."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


def compared_by_number(source):
    """Comparisons by ``==``, ``!=``, ``in`` or ``match`` that look at a capability, with their lines."""
    for node in ast.walk(ast.parse(source)):
        by_number = isinstance(node, ast.Compare) and any(isinstance(op, BY_NUMBER) for op in node.ops)
        looked_at = node if by_number else node.subject if isinstance(node, ast.Match) else None
        if looked_at is not None and any(CAPABILITY.search(word) for word in words_in(looked_at)):
            yield node.lineno


@pytest.mark.parametrize("path", modules(), ids=short)
def test_no_module_is_too_long(path):
    assert len(path.read_text().splitlines()) <= LONGEST


@pytest.mark.parametrize("path", modules(), ids=short)
def test_no_capability_is_compared_by_number(path):
    assert not list(compared_by_number(path.read_text()))


@pytest.mark.parametrize("path", files(), ids=short)
def test_no_file_holds_a_path_of_one_machine(path):
    found = MACHINE_PATHS.findall(path.read_text(errors="replace"))
    assert not found


class TestTheChecksThemselves:
    @pytest.mark.parametrize(
        "line",
        [
            "device.capability == (9, 0)",
            "cap if capability != (8, 0) else x",
            "device.capability[0] in (9, 10)",
            "major == 9",
            "sm_version == 90",
        ],
    )
    def test_a_comparison_by_number_is_seen(self, line):
        assert list(compared_by_number(line))

    @pytest.mark.parametrize(
        "line", ["device.family.name == 'sm_9x'", "device.capability is None", "low <= capability", "small == 1"]
    )
    def test_others_are_fine(self, line):
        assert not list(compared_by_number(line))

    @pytest.mark.parametrize("line", [f'open("/{"home"}/me/x")', f"see /{'tmp'}/x", f"path = '/{'work'}/x'", r'"C:\\Users\\me"'])
    def test_a_path_is_seen(self, line):
        assert MACHINE_PATHS.findall(line)

    @pytest.mark.parametrize("line", ["https://example.org/usr/lib", "a / b", "tests/front_torch", "n:/m", "x /= 2"])
    def test_other_slashes_are_fine(self, line):
        assert not MACHINE_PATHS.findall(line)


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "py.typed").exists()
