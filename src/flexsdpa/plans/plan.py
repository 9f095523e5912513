"""Plan: a kernel that is ready to run, for one direction on one device."""

from __future__ import annotations

from typing import Any, Protocol


class Plan(Protocol):
    """What a backend builds. ``run`` takes the tensors of the direction; see backends/protocol.py."""

    def run(self, *tensors: Any) -> Any: ...
