"""Compute capabilities by family. What a GPU may run is asked of its family, never of one number."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """Cards that share an instruction set: ``low <= 10 * major + minor <= high``."""

    name: str
    low: int
    high: int
    cards: str


FAMILIES: tuple[Family, ...] = (
    Family("sm_7x", 70, 79, "V100, T4"),
    Family("sm_8x", 80, 89, "A100, A10, RTX 30, RTX 40"),
    Family("sm_9x", 90, 99, "H100, H200"),
    Family("sm_10x", 100, 109, "B200, B300"),
    Family("sm_11x", 110, 119, "Thor"),
    Family("sm_12x", 120, 129, "RTX 50, RTX PRO 6000, GB10"),
)


EXCEPTIONS: dict[tuple[int, int], dict[str, str]] = {
    (8, 9): {"kv-cache-bug": "open bug of cuDNN with KV caches; TransformerEngine, attention utils"},
    (12, 1): {
        "no-ragged-backward": "cuDNN 9.19.0, 9.23.2 and 9.28.1 plan no ragged backward for a described 12.1; they do for 12.0"
    },
}
"""What was measured of one card and does not hold for its family, by name, with the evidence."""


def has_exception(capability: tuple[int, int], name: str) -> bool:
    """Whether a measured exception of this name is known of a card."""
    known = EXCEPTIONS.get(capability, {})
    return name in known


def family_of(capability: tuple[int, int]) -> Family | None:
    """The family of a compute capability; None for one that no row covers."""
    number = 10 * capability[0] + capability[1]
    return next((family for family in FAMILIES if family.low <= number <= family.high), None)
