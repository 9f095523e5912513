"""Recorded results: what ran, on what, with which versions, and the numbers. JSON for programs, a table for people."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flexsdpa.version import __version__


def machine() -> dict[str, Any]:
    """Processor, cores, and versions of everything that a number depends on."""
    info: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "flexsdpa": __version__,
    }
    for name in ("numpy", "torch", "triton", "nvidia-cudnn-frontend", "transformers"):
        try:
            info[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return info


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def write(folder: Path, name: str, method: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], **extra: Any) -> Path:
    """Writes ``name.md`` and ``name.json`` under ``folder``; returns the markdown file."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = machine() | extra
    record = {"name": name, "method": method, "machine": facts, "columns": list(columns), "rows": [list(row) for row in rows]}
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    page = folder / f"{name}.md"
    page.write_text(_markdown(name, method, facts, columns, rows))
    return page


def _markdown(name: str, method: str, facts: Mapping[str, Any], columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [f"# {name}", "", method, "", ", ".join(f"{key} {value}" for key, value in facts.items()), ""]
    lines.append("| " + " | ".join(columns) + " |")
    lines.append("|" + " --- |" * len(columns))
    lines += ["| " + " | ".join(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
