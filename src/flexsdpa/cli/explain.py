"""``flexsdpa explain``."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from flexsdpa import config
from flexsdpa.cli.modspec import Sizes, array_spec, trace_named
from flexsdpa.dtypes import ALIASES, DTYPES
from flexsdpa.eligibility.rule import Refusal
from flexsdpa.errors import RequestError
from flexsdpa.explain import explain
from flexsdpa.spec.device import Device
from flexsdpa.spec.replay import load
from flexsdpa.spec.request import AttentionRequest, check_tensors
from flexsdpa.spec.tensors import TensorSpec, contiguous_strides


def run_explain(
    score_mods: Sequence[str],
    mask_mods: Sequence[str],
    sizes: Sizes,
    dtype: str,
    device: Device,
    backend: str,
    show_text: bool,
    learned: bool,
) -> None:
    """Prints the explanation of both directions of a described call. learned: gradients of float captured tensors are wanted."""
    dtype = ALIASES.get(dtype, dtype)
    backend = backend or config.get("backend")
    traced = trace_named(score_mods, mask_mods, sizes, dtype)
    arrays = tuple(_spec(*array_spec(array)) for array in traced.arrays)
    q = _spec(dtype, (sizes.B, sizes.Hq, sizes.Sq, sizes.D))
    k = _spec(dtype, (sizes.B, sizes.Hkv, sizes.Skv, sizes.D))
    v = _spec(dtype, (sizes.B, sizes.Hkv, sizes.Skv, sizes.Dv))
    check_tensors(q, k, v)
    if device.kind == "cuda" and device.capability is None:
        device = _owned(device)
    forward = AttentionRequest("forward", device, q, k, v, traced.text, arrays, len(traced.scalars), backend=backend)
    floats = [DTYPES[spec.dtype].kind == "f" for spec in arrays]
    wanted = [learned or getattr(array, "requires_grad", False) for array in traced.arrays]
    needs = (True, True, True, *(is_float and want for is_float, want in zip(floats, wanted, strict=True)))
    fixed = sum(floats) - sum(needs[3:])
    for request in (forward, replace(forward, direction="backward", needs=needs)):
        _print(request, show_text)
    if fixed:
        Console(highlight=False).print(
            f"{fixed} captured float tensor{'s' * (fixed > 1)} taken as fixed; --learned asks for gradients"
        )


def _owned(device: Device) -> Device:
    """A card of this machine with what is known of it. Raises RequestError where there is none."""
    try:
        import torch

        from flexsdpa.torch.devices import device_of

        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    except ImportError:
        found = 0
    if device.index >= found:
        raise RequestError(
            f"this machine has {found} CUDA cards, no {device}: describe one instead, such as sm_90",
            field="device",
            got=str(device),
        )
    return device_of(torch.device("cuda", device.index))


def run_replay(file: Path, device: str, cudnn: str, backend: str, show_text: bool) -> None:
    """Explains every request of a file that ``FLEXSDPA_REQUEST_LOG`` wrote, on its own device or on another.

    Another card keeps the libraries of the logged one, unless cudnn names a release. What backends said at run time holds for the
    logged device only.
    """
    other = Device.parse(device, cudnn) if device else None
    if cudnn and other is None:
        raise RequestError("--cudnn belongs to a described card: give --device too, such as sm_121", field="cudnn", got=cudnn)
    try:
        text = file.read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line.strip()]
    except OSError as error:
        raise RequestError(f"{file}: {error.strerror}", field="from", got=str(file)) from None
    except UnicodeDecodeError:
        raise RequestError(f"{file} is no text", field="from", got=str(file)) from None
    if not lines:
        raise RequestError(f"{file} holds no requests", field="from", got=str(file))
    for n, line in enumerate(lines, 1):
        try:
            request, said = load(line)
            declined = {name: Refusal(**fields) for name, fields in said.items()}
        except (RequestError, TypeError) as error:
            hint = " (a log holds one request a line)" if line.strip() in ("{", "[") else ""
            raise RequestError(f"{file}, line {n}: {error}{hint}", field="from", got=str(file)) from None
        if other is not None:
            kept = request.device.libraries if request.device.kind == other.kind == "cuda" and not cudnn else other.libraries
            request, declined = replace(request, device=replace(other, libraries=kept)), {}
        _print(replace(request, backend=backend) if backend else request, show_text, declined)


def _print(request: AttentionRequest, show_text: bool, declined: dict[str, Refusal] | None = None) -> None:
    console = Console(highlight=False)
    explanation = explain(request, declined=declined)
    text = str(explanation)
    console.print(_coloured(fitted(text, console.width) if console.is_terminal else text), soft_wrap=True)
    if explanation.decision.backend is None:
        console.print("  [red]this call would raise UnsupportedError with these reasons[/]")
    if show_text:
        console.print(Text("\n".join(f"    {line}" for line in explanation.request.program.split("\n")), style="dim"))
    console.print()


def _spec(dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(dtype, shape, contiguous_strides(shape))


LABEL = 14
"""Where the text of an explanation's line begins, behind its label."""


def fitted(text: str, width: int) -> str:
    """Lines broken to a terminal's width, what follows indented below the line's own text. A pipe gets whole lines."""
    lines = []
    for line in text.split("\n"):
        indent = max(len(line) - len(line.lstrip()), LABEL if line.startswith("  ") else 0) + 2
        wrapped = textwrap.wrap(line, max(width, 40), subsequent_indent=" " * indent, break_on_hyphens=False)
        lines += wrapped if len(line) > width else [line]
    return "\n".join(lines)


def _coloured(text: str) -> Text:
    rich = Text(text)
    for word, style in (("chosen", "bold green"), ("refused", "red"), ("eligible", "yellow")):
        rich.highlight_words([f"  {word}"], style)
    return rich
