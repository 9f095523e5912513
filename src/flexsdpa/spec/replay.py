"""Requests as text: one JSON object a line, to be logged on one machine and explained on another."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from flexsdpa.errors import RequestError, nearest
from flexsdpa.spec.device import Device
from flexsdpa.spec.request import AttentionRequest, check_tensors
from flexsdpa.spec.tensors import TensorSpec

NAMES = tuple(field.name for field in fields(AttentionRequest))
FORMAT = "flexsdpa request 1"


def dumps(request: AttentionRequest) -> str:
    """One line of JSON with every field of a request. It holds shapes and the program, never data."""
    return json.dumps({"format": FORMAT, **asdict(request)})


def loads(text: str) -> AttentionRequest:
    """The request that ``dumps`` wrote. Raises RequestError that names what is missing, unknown or not valid."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise RequestError(f"no JSON of a request: {error}", field="from") from None
    if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
        raise RequestError(f"no request: expected a JSON object with format {FORMAT!r}", field="format")
    for name in found:
        if name not in NAMES:
            raise RequestError(f"unknown field {name!r} of a request{nearest(name, NAMES)}", field=name)
    for name in NAMES:
        if name not in found:
            raise RequestError(f"field {name!r} of the request is missing", field=name)
    made = AttentionRequest(**{name: _value(name, found[name]) for name in NAMES})
    check_tensors(made.q, made.k, made.v)
    if made.direction not in ("forward", "backward"):
        raise RequestError(f"direction: expected forward or backward, got {made.direction!r}", field="direction")
    return made


def _value(name: str, value: Any) -> Any:
    try:
        return READERS.get(name, _plain)(value)
    except (TypeError, KeyError, ValueError) as error:
        raise RequestError(f"field {name!r} of the request is not valid: {error}", field=name, got=value) from None


def _plain(value: Any) -> Any:
    if not isinstance(value, str | int | bool):
        raise TypeError(f"expected a word, a number or a truth value, got {value!r}")
    return value


def _tensor(value: Any) -> TensorSpec:
    return TensorSpec(str(value["dtype"]), _ints(value["shape"]), _ints(value["strides"]))


def _ints(value: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in value)


def _device(value: Any) -> Device:
    capability = value["capability"]
    if capability is not None:
        major, minor = _ints(capability)
        capability = (major, minor)
    libraries = tuple((str(name), str(version)) for name, version in value["libraries"])
    return Device(str(value["kind"]), int(value["index"]), str(value["uuid"]), str(value["name"]), capability, libraries)


READERS: dict[str, Any] = {
    "device": _device,
    "q": _tensor,
    "k": _tensor,
    "v": _tensor,
    "arrays": lambda value: tuple(_tensor(one) for one in value),
    "needs": lambda value: tuple(bool(one) for one in value),
}
