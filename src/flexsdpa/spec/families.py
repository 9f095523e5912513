"""Compute capabilities by family. What a GPU may run is asked of its family, never of one number."""

from __future__ import annotations

import re
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


@dataclass(frozen=True, slots=True)
class Card:
    """One card: ``number`` is 10 * major + minor. shared_bytes: shared memory that a block may ask for. threads and blocks:
    how many a multiprocessor holds. clusters: whether thread blocks form clusters."""

    number: int
    name: str
    multiprocessors: int
    shared_bytes: int
    threads: int
    blocks: int
    clusters: bool


LARGE, MIDDLE, SMALL = 232448, 166912, 101376
CARDS: tuple[Card, ...] = (
    Card(80, "NVIDIA A100", 108, MIDDLE, 2048, 32, False),
    Card(86, "NVIDIA GeForce RTX 3090", 82, SMALL, 1536, 16, False),
    Card(87, "NVIDIA Jetson AGX Orin", 16, MIDDLE, 1536, 16, False),
    Card(89, "NVIDIA GeForce RTX 4090", 128, SMALL, 1536, 24, False),
    Card(90, "NVIDIA H200", 132, LARGE, 2048, 32, True),
    Card(100, "NVIDIA B200", 148, LARGE, 2048, 32, True),
    Card(103, "NVIDIA B300", 148, LARGE, 2048, 32, True),
    Card(110, "NVIDIA Thor", 20, LARGE, 1536, 24, True),
    Card(120, "NVIDIA GeForce RTX 5090", 170, SMALL, 1536, 24, True),
    Card(121, "NVIDIA GB10", 48, SMALL, 1536, 24, True),
)
"""Cards by capability, one for each that we know. Sources: the CUDA C++ programming guide's table of compute capabilities;
multiprocessors from NVIDIA's product pages."""

FLASH_256 = "FlashAttention 2 is tested above head dim 192 on a list of cards; TransformerEngine, attention utils"
INTERVAL_KERNELS = "cudnn-frontend 1.32, cudnn/flex_attention/runtime/arch.py, has kernels for this card"
WIDE = "TransformerEngine's tests run head dim 256 under context parallelism on 10.0 and 10.3 only"
DESCRIBED = (
    "cuDNN 9.19.0, 9.23.2 and 9.28.1 plan none for this card as described, and do for others of its family; oracle/records"
)
EXCEPTIONS: dict[tuple[int, int], dict[str, str]] = {
    (8, 0): {"flash2-head-dim-256": FLASH_256},
    (8, 7): {"no-ragged-backward": DESCRIBED},
    (8, 9): {"kv-cache-bug": "open bug of cuDNN with KV caches; TransformerEngine, attention utils"},
    (9, 0): {"flash2-head-dim-256": FLASH_256, "interval-kernels": INTERVAL_KERNELS},
    (10, 0): {"flash2-head-dim-256": FLASH_256, "interval-kernels": INTERVAL_KERNELS, "wide-context-parallel": WIDE},
    (10, 3): {"interval-kernels": INTERVAL_KERNELS, "wide-context-parallel": WIDE},
    (10, 7): {"mxfp8-one-query": "cudnn-frontend 1.32, sdpa/fwd/backend_guard.py; a described 10.0 and 10.3 end the process too"},
    (12, 0): {"flash2-head-dim-256": FLASH_256},
    (12, 1): {"no-ragged-backward": DESCRIBED, "no-fp8": DESCRIBED},
}
"""What holds of one card and not of its family, by name, with the evidence: measured, or a source's own list of cards."""


def has_exception(capability: tuple[int, int], name: str) -> bool:
    """Whether a measured exception of this name is known of a card."""
    known = EXCEPTIONS.get(capability, {})
    return name in known


BY_NUMBER: dict[int, Card] = {card.number: card for card in CARDS}


def as_number(capability: tuple[int, int]) -> int:
    """(12, 1) -> 121."""
    return 10 * capability[0] + capability[1]


def capability_of(text: str) -> tuple[int, int] | None:
    """``sm_121``, ``SM121``, ``sm_121a``, ``121`` or ``12.1`` -> (12, 1); None for what is written otherwise."""
    found = re.fullmatch(r"(?:sm_?)?([1-9][0-9]?)(?:\.(?=[0-9]$))?([0-9])[af]?", text.strip().lower())
    return (int(found[1]), int(found[2])) if found else None


def cards_with(name: str) -> str:
    """The cards with an exception of this name, for messages."""
    return ", ".join(f"{major}.{minor}" for (major, minor), known in EXCEPTIONS.items() if name in known)


def note_on(capability: tuple[int, int]) -> str:
    """What to know of a capability that no card of the table has; empty for one that has."""
    number = as_number(capability)
    family = family_of(capability)
    if family is None:
        known = ", ".join(family.name for family in FAMILIES)
        text = f"{capability[0]}.{capability[1]}"
        return f"compute capability {text} belongs to no known family ({known}): no fused kernel serves it, the reference does"
    if number in BY_NUMBER or family.high < CARDS[0].number:
        return ""
    return f"sm_{number} is not a known card; it is judged as its family, {family.name} ({family.cards})"


def family_of(capability: tuple[int, int]) -> Family | None:
    """The family of a compute capability; None for one that no row covers."""
    number = as_number(capability)
    return next((family for family in FAMILIES if family.low <= number <= family.high), None)
