"""The sources of the package, and what each file imports."""

import ast
from pathlib import Path

import flexsdpa

ROOT = Path(flexsdpa.__file__).parent
FRAMEWORKS = ("torch", "jax", "triton", "cudnn", "cutlass")
"""What a core module must never load."""


def files():
    return sorted(
        path for path in ROOT.rglob("*") if path.is_file() and path.suffix != ".pyc" and "__pycache__" not in path.parts
    )


def modules():
    return [path for path in files() if path.suffix == ".py"]


def short(path):
    return path.relative_to(ROOT).as_posix()


def imported(path):
    """Dotted names of all that a file imports, wherever the import stands; of ``from x import y`` both x and x.y."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            names |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
    return names


def module_name(path):
    """``ir/ops.py`` -> ``flexsdpa.ir.ops``."""
    parts = ["flexsdpa", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = frozenset(module_name(path) for path in modules())
