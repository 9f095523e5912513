"""Which of the eligible is chosen, by family of card and direction, as data with evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CPU = ""
"""The family of what is no NVIDIA card, and of cards that no family covers."""
EVERY = ("sm_7x", "sm_8x", "sm_9x", "sm_10x", "sm_11x", "sm_12x", CPU)
BOTH = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Preference:
    """An order of backends, best first. Who is not named comes last, in the order given."""

    families: tuple[str, ...]
    directions: tuple[str, ...]
    order: tuple[str, ...]
    evidence: str


RUN: tuple[Preference, ...] = (
    Preference(("sm_9x",), BOTH, ("cudnn", "sdpa", "reference"),
        "H200, cuDNN 9.19, benchmarks/results/gpu-speed.md: cuDNN is ahead of every peer under a mod and level with torch's kernels on "
        "causal; sdpa serves CPU tensors only"),
    Preference(("sm_8x", "sm_10x", "sm_11x", "sm_12x"), BOTH, ("cudnn", "sdpa", "reference"),
        "not measured here: the order of sm_9x; the oracle's records say that cuDNN plans these calls; the tiled reference is the last resort"),
    Preference(("sm_7x", CPU), BOTH, ("sdpa", "reference", "cudnn"),
        "benchmarks/results/cpu-speed.md: torch's fused CPU attention where it serves the call, else the tiled reference; cuDNN needs Ampere"),
)  # fmt: skip
"""What flexsdpa's engine runs."""
FIELD: tuple[Preference, ...] = (
    Preference(("sm_8x",), BOTH, ("fa2", "cudnn", "fa4", "interval", "flex", "reference"),
        "TransformerEngine's table prefers FlashAttention below compute capability 9.0"),
    Preference(("sm_9x",), BOTH, ("cudnn", "fa3", "fa4", "fa2", "interval", "flex", "reference"),
        "TransformerEngine's table; FlashAttention 4 is off where 3 is installed"),
    Preference(("sm_10x", "sm_11x", "sm_12x"), BOTH, ("cudnn", "fa4", "fa2", "interval", "flex", "reference"),
        "TransformerEngine's table; FlashAttention 3 is for Hopper alone"),
)  # fmt: skip
"""What other frameworks would choose among the backends of field/."""


def order_of(table: Sequence[Preference], family: str, direction: str, names: Sequence[str]) -> tuple[str, ...]:
    """``names`` in the table's order for a family and a direction."""
    row = next((row for row in table if family in row.families and direction in row.directions), None)
    order = row.order if row is not None else ()
    return tuple(sorted(names, key=lambda name: order.index(name) if name in order else len(order)))


def field_order(family: str, names: Sequence[str]) -> tuple[str, ...]:
    return order_of(FIELD, family, "forward", names)
