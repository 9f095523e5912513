"""torch.device -> Device."""

from __future__ import annotations

import functools

import torch

from flexsdpa.spec.device import CPU, Device


def _libraries() -> tuple[tuple[str, str], ...]:
    """cuDNN as its frontend and as torch see it: two answers if the process holds two copies."""
    found = [("cudnn of torch", _dotted(torch.backends.cudnn.version()))] if torch.backends.cudnn.is_available() else []
    try:
        import cudnn
    except ImportError:
        return tuple(found)
    return (("cudnn", _dotted(cudnn.backend_version())), ("cudnn-frontend", str(cudnn.__version__)), *found)


def _dotted(version: int | None) -> str:
    """91900 -> 9.19.0, as cuDNN counts from 9.0 on."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}" if version else ""


@functools.lru_cache(maxsize=64)
def device_of(device: torch.device) -> Device:
    """The description of a torch device; of a CUDA card with index, uuid, name and capability."""
    if device.type == "cpu":
        return CPU
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        properties = torch.cuda.get_device_properties(index)
        capability = (properties.major, properties.minor)
        return Device("cuda", index, str(getattr(properties, "uuid", "")), properties.name, capability, _libraries())
    return Device(device.type, device.index or 0)
