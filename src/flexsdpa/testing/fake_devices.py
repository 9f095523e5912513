"""Described cards: devices that a test can plan for without owning one. No framework."""

from __future__ import annotations

from flexsdpa.spec.device import CPU, Device

A100 = Device("cuda", 0, "GPU-fake-a100-0", "A100", (8, 0))
RTX_4090 = Device("cuda", 0, "GPU-fake-rtx4090-0", "RTX 4090", (8, 9))
H100 = Device("cuda", 0, "GPU-fake-h100-0", "H100", (9, 0))
H100_SECOND = Device("cuda", 1, "GPU-fake-h100-1", "H100", (9, 0))
"""The same model in the next slot: equal in all that a kernel needs, yet another card."""
B200 = Device("cuda", 0, "GPU-fake-b200-0", "B200", (10, 0))
B300 = Device("cuda", 0, "GPU-fake-b300-0", "B300", (10, 3))
RTX_5090 = Device("cuda", 0, "GPU-fake-rtx5090-0", "RTX 5090", (12, 0))
GB10 = Device("cuda", 0, "GPU-fake-gb10-0", "GB10", (12, 1))

CARDS: tuple[Device, ...] = (A100, RTX_4090, H100, H100_SECOND, B200, B300, RTX_5090, GB10)
"""One or two cards of every family that has a kernel, no two alike."""

DEVICES: tuple[Device, ...] = (CPU, *CARDS)


def cards_of(family: str) -> tuple[Device, ...]:
    """The described cards of a family, for example ``sm_12x``."""
    return tuple(card for card in CARDS if card.family is not None and card.family.name == family)
