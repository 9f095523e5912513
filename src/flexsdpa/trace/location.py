"""Where in the user's code a trace went wrong, and which construct did it. Runs only when an error is raised."""

from __future__ import annotations

import ast
import linecache
import os
import sys
from types import FrameType

PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
OWN_FOLDERS = ("ir", "trace", "torch", "mods", "structure", "engine.py", "ops.py")


def user_frame() -> FrameType | None:
    """The innermost frame that belongs neither to flexsdpa's own machinery nor to a framework."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        module = str(frame.f_globals.get("__name__", ""))
        ours = path.startswith(PACKAGE_ROOT) and path[len(PACKAGE_ROOT) :].startswith(OWN_FOLDERS)
        if not ours and module.split(".")[0] not in ("torch", "numpy", "functools", "jax"):
            return frame
        frame = frame.f_back
    return None


def where_text(frame: FrameType | None) -> str:
    """``file.py:12, in softcap:  return cap if score else 0`` or an empty string."""
    if frame is None:
        return ""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"
    return f"{place}:  {line}" if line else place


CONSTRUCTS: dict[str, tuple[str, str]] = {
    "and": ("`and`", "use `&` with parentheses: (a >= b) & (c == d)"),
    "or": ("`or`", "use `|` with parentheses: (a >= b) | (c == d)"),
    "not": ("`not`", "use `~`: ~(a >= b)"),
    "chained": ("a chained comparison", "write it as two: (a <= b) & (b < c)"),
    "if": ("`if`", "use where(cond, a, b)"),
    "while": ("`while`", "a mod is one expression per position: no loops over traced values"),
    "assert": ("`assert`", "check sizes before the call; a mod cannot test positions"),
    "in": ("`in`", "use == and `|`: (x == 1) | (x == 2)"),
    "min": ("min()", "use minimum(a, b)"),
    "max": ("max()", "use maximum(a, b)"),
    "any": ("any()", "use `|`"),
    "all": ("all()", "use `&`"),
    "bool": ("bool()", "use `!= 0`, or .bool()"),
    "unknown": ("a branch", "use `&`, `|`, `~`, where(cond, a, b), minimum and maximum"),
}


def construct_at(frame: FrameType | None) -> str:
    """Which construct of the user's asked for the truth of a traced value: a key of CONSTRUCTS."""
    if frame is None:
        return "unknown"
    source = "".join(linecache.getlines(frame.f_code.co_filename))
    position = _position(frame)
    if not source or position is None:
        return "unknown"
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return "unknown"
    found: list[tuple[int, bool, str]] = []
    for node in ast.walk(tree):
        name = _name_of(node)
        if name and _encloses(node, position):
            found.append((_extent(node), isinstance(node, ast.stmt), name))
    return min(found)[2] if found else "unknown"


def _position(frame: FrameType) -> tuple[int, int] | None:
    """Line and column of the instruction that the frame is at."""
    for n, (line, _, column, _) in enumerate(frame.f_code.co_positions()):
        if n == frame.f_lasti // 2 and line is not None and column is not None:
            return line, column
    return None


def _name_of(node: ast.AST) -> str:
    if isinstance(node, ast.BoolOp):
        return "and" if isinstance(node.op, ast.And) else "or"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return "not"
    if isinstance(node, ast.Compare):
        if any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            return "in"
        return "chained" if len(node.ops) > 1 else ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id if node.func.id in CONSTRUCTS else ""
    kinds = {ast.If: "if", ast.IfExp: "if", ast.While: "while", ast.Assert: "assert"}
    return next((name for kind, name in kinds.items() if isinstance(node, kind)), "")


def _encloses(node: ast.AST, position: tuple[int, int]) -> bool:
    test = node.test if isinstance(node, ast.If | ast.While | ast.Assert) else node
    if not isinstance(test, ast.expr):
        return False
    start = (test.lineno, test.col_offset)
    end = (test.end_lineno or test.lineno, test.end_col_offset or 0)
    return start <= position <= end


def _extent(node: ast.AST) -> int:
    test = node.test if isinstance(node, ast.If | ast.While | ast.Assert) else node
    assert isinstance(test, ast.expr)
    return ((test.end_lineno or 0) - test.lineno) * 10_000 + (test.end_col_offset or 0) - test.col_offset
