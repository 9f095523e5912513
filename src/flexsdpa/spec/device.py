"""Devices, described by data, so that a machine without a card can reason about one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flexsdpa.errors import RequestError
from flexsdpa.spec.families import BY_NUMBER, Family, as_number, capability_of, family_of, note_on

KINDS = ("cpu", "cuda", "mps", "xpu", "hpu", "npu", "mtia", "meta")
"""What frameworks call their devices."""
DESCRIBED = "described-"
"""How the uuid of a described card begins."""
VERSION = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")
"""How a release is written."""
ASSUMED_CUDNN, ASSUMED_FRONTEND = "9.28.1", "1.32.0"
"""What a described card is taken to have: the newest that the rules were checked with."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device. Two equal cards differ in index and uuid, so they never share a plan.

    kind: ``cpu``, ``cuda``, ... capability: (major, minor) of a CUDA card, else None. libraries: names and versions of
    the kernel libraries that this process would use on it.
    """

    kind: str
    index: int = 0
    uuid: str = ""
    name: str = ""
    capability: tuple[int, int] | None = None
    libraries: tuple[tuple[str, str], ...] = ()

    def library(self, name: str) -> str:
        """The version of a library; empty if it is not there."""
        return dict(self.libraries).get(name, "")

    @property
    def note(self) -> str:
        """What to know of a card that is not in the table of cards; empty for one that is, and for what is no card."""
        return note_on(self.capability) if self.capability else ""

    @property
    def described(self) -> str:
        """What was assumed of a card that nobody needs to own; empty for others."""
        if not self.uuid.startswith(DESCRIBED):
            return ""
        return f"{self.name} as described, with {', '.join(f'{name} {version}' for name, version in self.libraries)}"

    @property
    def family(self) -> Family | None:
        return family_of(self.capability) if self.capability else None

    @property
    def family_name(self) -> str:
        """Empty for what belongs to no family that is known."""
        return self.family.name if self.family is not None else ""

    def __str__(self) -> str:
        if self.kind == "cpu":
            return "cpu"
        sm = f" sm_{self.capability[0]}{self.capability[1]}" if self.capability else ""
        return f"{self.kind}:{self.index}{sm}"

    @staticmethod
    def describe(capability: tuple[int, int], *, name: str = "", cudnn: str = "", frontend: str = "", index: int = 0) -> Device:
        """A card that nobody needs to own. cudnn, frontend: versions; by default the newest that the rules were checked with.

        Raises RequestError for a version that is not three numbers, or for a minor capability beyond 9.

        Example:
            >>> Device.describe((12, 5), cudnn="9.28.1").note
            'sm_125 is not a known card; it is judged as its family, sm_12x (RTX 50, RTX PRO 6000, GB10)'
        """
        for field, text in (("cudnn", cudnn), ("frontend", frontend)):
            if not isinstance(text, str) or (text and not VERSION.fullmatch(text)):
                raise RequestError(f"{field}: expected three numbers with points, got {text!r}", field=field, got=text)
        pair = capability if isinstance(capability, tuple) else ()
        if tuple(map(type, pair)) != (int, int) or pair[0] not in range(1, 100) or pair[1] not in range(10):
            raise RequestError(
                f"capability: expected a pair such as (12, 1), got {capability!r}", field="capability", got=capability
            )
        number = as_number(capability)
        libraries = (("cudnn", cudnn or ASSUMED_CUDNN), ("cudnn-frontend", frontend or ASSUMED_FRONTEND))
        card = BY_NUMBER.get(number)
        name = name or (card.name if card is not None else f"sm_{number}")
        return Device("cuda", index, f"{DESCRIBED}sm_{number}", name, capability, libraries)

    @staticmethod
    def parse(text: str, cudnn: str = "") -> Device:
        """``cpu``, ``cuda:1`` or ``sm_90`` (a described card that nobody needs to own, with this cuDNN or the assumed one)."""
        if not isinstance(text, str):
            raise RequestError(f"device: expected text such as sm_90, got {text!r}", field="device", got=text)
        described = capability_of(text)
        if described:
            return Device.describe(described, cudnn=cudnn)
        if cudnn:
            raise RequestError(
                f"a cuDNN can be given for a described card such as sm_90, not for {text or 'no card'}", field="cudnn", got=cudnn
            )
        plain = re.fullmatch(r"([a-z]+)(?::(\d+))?", text)
        if plain and plain[1] in KINDS:
            return Device(plain[1], int(plain[2] or 0))
        raise RequestError(
            f"unknown device {text!r}: expected cpu, cuda:0 or a capability such as sm_90",
            field="device",
            got=text,
        )


CPU = Device("cpu")
