"""Limits of the reference backend. There are two: what q, k and v may be is checked before any backend is asked."""

from __future__ import annotations

from flexsdpa.eligibility.rule import Rule
from flexsdpa.spec.request import AttentionRequest

DEVICES = ("cpu", "cuda")


def _other_device(request: AttentionRequest) -> str | None:
    return None if request.device.kind in DEVICES else request.device.kind


def _program_too_large(request: AttentionRequest) -> str | None:
    lines = request.program.count("\n")
    return f"{lines} instructions" if lines > MAX_INSTRUCTIONS else None


MAX_INSTRUCTIONS = 20_000

RULES: tuple[Rule, ...] = (
    Rule("reference.device", "device", _other_device, "cpu or cuda", "move q, k and v", "tests/front_torch, tests/gpu"),
    Rule("reference.program-size", "program", _program_too_large, f"up to {MAX_INSTRUCTIONS} instructions",
         "move constant work out of the mod, into a captured tensor", "Python's compiler, which compiles the lowered text"),
)  # fmt: skip
