"""The backends, in order of preference. A tuple, not a registry: nothing registers itself on import."""

from __future__ import annotations

from flexsdpa.backends.cudnn.backend import CudnnBackend
from flexsdpa.backends.protocol import Backend
from flexsdpa.backends.reference.backend import ReferenceBackend
from flexsdpa.backends.sdpa.backend import SdpaBackend

BACKENDS: tuple[Backend, ...] = (SdpaBackend(), CudnnBackend(), ReferenceBackend())
