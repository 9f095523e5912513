"""``flexsdpa explain``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from flexsdpa import config
from flexsdpa.cli.modspec import Sizes, array_spec, trace_named
from flexsdpa.dtypes import DTYPES
from flexsdpa.explain import explain
from flexsdpa.spec.device import Device
from flexsdpa.spec.request import AttentionRequest, check_tensors
from flexsdpa.spec.tensors import TensorSpec, contiguous_strides


def run_explain(
    score_mods: Sequence[str], mask_mods: Sequence[str], sizes: Sizes, dtype: str, device: Device, backend: str, show_text: bool
) -> None:
    """Prints the explanation of both directions of a described call."""
    backend = backend or config.get("backend")
    traced = trace_named(score_mods, mask_mods, sizes, dtype)
    arrays = tuple(_spec(*array_spec(array)) for array in traced.arrays)
    q = _spec(dtype, (sizes.B, sizes.Hq, sizes.Sq, sizes.D))
    k = _spec(dtype, (sizes.B, sizes.Hkv, sizes.Skv, sizes.D))
    v = _spec(dtype, (sizes.B, sizes.Hkv, sizes.Skv, sizes.Dv))
    check_tensors(q, k, v)
    forward = AttentionRequest("forward", device, q, k, v, traced.text, arrays, len(traced.scalars), backend=backend)
    needs = (True, True, True, *(DTYPES[spec.dtype].kind == "f" for spec in arrays))
    console = Console(highlight=False)
    for request in (forward, replace(forward, direction="backward", needs=needs)):
        explanation = explain(request)
        console.print(_coloured(str(explanation)), soft_wrap=True)
        if show_text:
            console.print(Text("\n".join(f"    {line}" for line in explanation.request.program.split("\n")), style="dim"))
        console.print()


def _spec(dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(dtype, shape, contiguous_strides(shape))


def _coloured(text: str) -> Text:
    rich = Text(text)
    for word, style in (("chosen", "bold green"), ("refused", "red"), ("eligible", "yellow")):
        rich.highlight_words([f"  {word}"], style)
    return rich
