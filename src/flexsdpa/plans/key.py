"""PlanKey, the name under which a process keeps a plan, and ArtifactKey, the name of a built kernel on disk.

Frozen dataclasses, so that no field can be forgotten.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

from flexsdpa.spec.request import AttentionRequest


@dataclass(frozen=True, slots=True)
class PlanKey:
    """Everything that a plan bakes in. Values of scalars, and names, ids or source of functions, are not in it.

    shape_class is what the backend says it bakes in of shapes and strides; a backend that serves any length says so.
    """

    direction: str
    backend: str
    versions: tuple[tuple[str, str], ...]
    device_kind: str
    device_index: int
    device_uuid: str
    device_capability: tuple[int, int] | None
    program: str
    dtype: str
    operands: tuple[tuple[str, int, str], ...]
    scalars: int
    shape_class: tuple[object, ...]
    needs: tuple[bool, ...]
    lse_gradient: bool
    deterministic: bool

    def digest(self) -> str:
        """A short name of the key, the same in every process."""
        return _digest(self, 12)


@dataclass(frozen=True, slots=True)
class ArtifactKey:
    """The name under which a built kernel is kept on disk: everything that its bytes depend on, the card's model included
    but not its index, so that equal cards share it.

    tensors: name, dtype, shape and strides of every input and output. options: what else the backend bakes in.
    """

    direction: str
    backend: str
    versions: tuple[tuple[str, str], ...]
    device_name: str
    device_capability: tuple[int, int] | None
    program: str
    tensors: tuple[tuple[str, str, tuple[int, ...], tuple[int, ...]], ...]
    options: tuple[tuple[str, str], ...]

    def digest(self) -> str:
        """The file's name. Long, since nothing but it is compared."""
        return _digest(self, 32)


def _digest(key: PlanKey | ArtifactKey, size: int) -> str:
    text = "\n".join(f"{field.name}={getattr(key, field.name)!r}" for field in fields(key))
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


def plan_key(
    request: AttentionRequest, backend: str, versions: tuple[tuple[str, str], ...], shape_class: tuple[object, ...]
) -> PlanKey:
    """The key of a request that ``backend`` serves."""
    device = request.device
    return PlanKey(
        direction=request.direction,
        backend=backend,
        versions=versions,
        device_kind=device.kind,
        device_index=device.index,
        device_uuid=device.uuid,
        device_capability=device.capability,
        program=request.program,
        dtype=request.q.dtype,
        operands=tuple((spec.dtype, spec.rank, spec.stride_class) for spec in request.arrays),
        scalars=request.scalars,
        shape_class=shape_class,
        needs=request.needs,
        lse_gradient=request.lse_gradient,
        deterministic=request.deterministic,
    )
