"""torch.device -> Device."""

from __future__ import annotations

import functools

import torch

from flexsdpa.spec.device import CPU, Device


@functools.lru_cache(maxsize=64)
def device_of(device: torch.device) -> Device:
    """The description of a torch device; of a CUDA card with index, uuid, name and capability."""
    if device.type == "cpu":
        return CPU
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        properties = torch.cuda.get_device_properties(index)
        return Device("cuda", index, str(getattr(properties, "uuid", "")), properties.name, (properties.major, properties.minor))
    return Device(device.type, device.index or 0)
