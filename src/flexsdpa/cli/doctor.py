"""``flexsdpa doctor``: what is installed, what this machine has, what is in force."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from flexsdpa import config
from flexsdpa.engine import ENGINE
from flexsdpa.errors import RequestError, nearest
from flexsdpa.spec.device import Device
from flexsdpa.version import __version__

LIBRARIES = (
    "numpy", "torch", "triton", "jax", "jaxlib", "transformers", "nvidia-cudnn-frontend", "nvidia-cudnn-cu13",
    "nvidia-cudnn-cu12", "flash-attn-4", "typer", "rich", "matplotlib",
)  # fmt: skip


def run_doctor() -> None:
    """Prints the tables."""
    console = Console()
    console.print(_table("Libraries", ("name", "version"), _libraries()))
    console.print(_table("Devices", ("device", "name", "family", "memory", "kernel libraries"), _devices()))
    bad = list(_known_bad())
    if bad:
        columns = ("backend", "releases", "cards", "what they get wrong", "here", "source")
        console.print(_table("Releases known to be bad: such requests go elsewhere", columns, iter(bad)))
    console.print(_table("Backends; flexsdpa explain shows their order for a call", ("name", "rules", "depends on"), _backends()))
    console.print(_table("Options", ("environment variable", "value", "from", "what it does"), _options()))
    for text in _unknown_options():
        console.print(text, style="red")


def _table(title: str, columns: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left")
    for n, column in enumerate(columns):
        table.add_column(column, no_wrap=n == 0)
    for row in rows:
        table.add_row(*row)
    return table


def _libraries() -> Iterator[tuple[str, str]]:
    yield "flexsdpa", __version__
    yield "python", platform.python_version()
    for name in LIBRARIES:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name, "not installed"
    cudnn = _loaded_cudnn()
    if cudnn:
        yield "cuDNN that torch loads", cudnn


def _loaded_cudnn() -> str:
    try:
        import torch
    except ImportError:
        return ""
    if not torch.backends.cudnn.is_available():
        return ""
    number = torch.backends.cudnn.version() or 0
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def _devices() -> Iterator[tuple[str, str, str, str, str]]:
    yield "cpu", platform.processor() or platform.machine(), f"{os.cpu_count()} threads", "", ""
    try:
        import torch
    except ImportError:
        return
    from flexsdpa.torch.devices import device_of

    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        device = device_of(torch.device("cuda", index))
        family = device.family
        memory = torch.cuda.get_device_properties(index).total_memory
        name = family.name if family else "unknown family"
        yield str(device), device.name, name, f"{memory / 2**30:.0f} GiB", libraries_text(device)


def libraries_text(device: Device) -> str:
    """What kernels on a device depend on, and whether the process holds two copies of cuDNN."""
    text = ", ".join(f"{name} {version}" for name, version in device.libraries)
    mine, torchs = device.library("cudnn"), device.library("cudnn of torch")
    return f"{text}: TWO COPIES of cuDNN in one process" if mine and torchs and mine != torchs else text


def _known_bad() -> Iterator[tuple[str, ...]]:
    for backend in ENGINE.backends:
        for row in getattr(backend, "known_bad", ()):
            yield backend.name, row.versions, row.family or "all", row.what, "yes" if _loaded(row) else "no", row.source


def _loaded(row: Any) -> bool:
    """Whether torch loads such a release, on a card that it concerns."""
    version = tuple(int(part) for part in _loaded_cudnn().split(".") if part)
    return bool(version) and bool(row.covers(version)) and (not row.family or row.family in _families())


def _families() -> set[str]:
    """Families of this machine's cards."""
    return {family for _, _, family, *_ in _devices() if family}


def _backends() -> Iterator[tuple[str, str, str]]:
    for backend in ENGINE.backends:
        versions = ", ".join(f"{name} {version}" for name, version in backend.versions())
        yield backend.name, str(len(backend.rules)), versions


def _unknown_options() -> Iterator[str]:
    """Environment variables that look like options and are none."""
    known = [option.env for option in config.OPTIONS.values()]
    for name in os.environ:
        if name.startswith("FLEXSDPA_") and name not in known:
            yield f"{name} is no option{nearest(name, known)}"


def _options() -> Iterator[tuple[str, ...]]:
    for option in config.OPTIONS.values():
        try:
            value = str(config.get(option.name))
            if option.name == "backend" and value not in (names := ["auto", *(backend.name for backend in ENGINE.backends)]):
                value = f"NOT VALID: no backend is called {value!r}{nearest(value, names)}; known: {', '.join(names)}"
        except RequestError as error:
            value = f"NOT VALID: {error}"
        yield option.env, value, config.source(option.name), f"{option.doc} ({option.valid})"
