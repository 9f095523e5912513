"""cuDNN handles: one per device and thread, on torch's current stream at every call."""

from __future__ import annotations

import threading
from typing import Any

import cudnn
import torch


class _Handles(threading.local):
    def __init__(self) -> None:
        self.by_device: dict[int, Any] = {}


_HANDLES = _Handles()


def handle_on(device: torch.device) -> Any:
    """This thread's handle on a device, set to torch's current stream there. The device must be the current one."""
    index = torch.cuda.current_device() if device.index is None else device.index
    handle = _HANDLES.by_device.get(index)
    if handle is None:
        handle = _HANDLES.by_device[index] = cudnn.create_handle()
    cudnn.set_stream(handle, torch._C._cuda_getCurrentRawStream(index))
    return handle
