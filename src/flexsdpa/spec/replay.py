"""Requests as text: one JSON object a line, to be logged on one machine and explained on another."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

from flexsdpa.dtypes import DTYPES
from flexsdpa.errors import FlexSDPAError, RequestError, nearest
from flexsdpa.ir.text import parse
from flexsdpa.spec.device import KINDS, Device
from flexsdpa.spec.request import AttentionRequest, check_tensors
from flexsdpa.spec.tensors import TensorSpec

NAMES = tuple(field.name for field in fields(AttentionRequest))
FORMAT = "flexsdpa request 1"
DECLINED = "declined"


def dumps(request: AttentionRequest, declined: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """One line of JSON with every field of a request. It holds shapes and the program, never data.

    declined: what backends said of it at run time, by backend: the fields of their refusals.
    """
    said = {DECLINED: declined} if declined else {}
    return json.dumps({"format": FORMAT, **asdict(request), **said})


def loads(text: str) -> AttentionRequest:
    """The request that ``dumps`` wrote. Raises RequestError that names what is missing, unknown or not valid."""
    return load(text)[0]


def load(text: str) -> tuple[AttentionRequest, dict[str, dict[str, str]]]:
    """The request, and what backends said of it at run time. Raises RequestError as ``loads`` does."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"no JSON of a request: {error}", field="from") from None
    if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
        raise RequestError(f"no request: expected a JSON object with format {FORMAT!r}", field="format")
    declined = _value(DECLINED, found.pop(DECLINED, {}))
    for name in found:
        if name not in NAMES:
            raise RequestError(f"unknown field {name!r} of a request{nearest(name, NAMES)}", field=name)
    for name in NAMES:
        if name not in found:
            raise RequestError(f"field {name!r} of the request is missing", field=name)
    made = AttentionRequest(**{name: _value(name, found[name]) for name in NAMES})
    check_tensors(made.q, made.k, made.v)
    _check_counts(made)
    return made, declined


def _check_counts(request: AttentionRequest) -> None:
    """The program's arrays and scalars are those that the request lists."""
    try:
        program = parse(request.program)
    except (FlexSDPAError, ValueError, IndexError) as error:
        raise RequestError(f"field 'program' of the request is not valid: {error}", field="program") from None
    read, listed = ([(x.dtype, x.rank) for x in arrays] for arrays in (program.arrays, request.arrays))
    if read != listed or program.scalars != request.scalars:
        raise RequestError(
            f"the program reads arrays {read} (dtype, rank) and {program.scalars} scalars, the request lists {listed} and "
            f"{request.scalars}",
            field="arrays",
        )
    wanted = 0 if request.direction == "forward" else 3 + len(request.arrays)
    if len(request.needs) != wanted:
        raise RequestError(f"needs: expected {wanted} truth values, got {len(request.needs)}", field="needs", got=request.needs)


def _value(name: str, value: Any) -> Any:
    try:
        return READERS[name](value)
    except KeyError as error:
        raise RequestError(f"field {name!r} of the request is not valid: {error} is missing", field=name, got=value) from None
    except (TypeError, ValueError) as error:
        raise RequestError(f"field {name!r} of the request is not valid: {error}", field=name, got=value) from None


def _of(kind: type, words: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"expected {words}, got {value!r}")
        return value

    return read


_text, _count, _flag = _of(str, "a word"), _of(int, "a whole number"), _of(bool, "true or false")


def _direction(value: Any) -> str:
    if value not in ("forward", "backward"):
        raise ValueError(f"expected forward or backward, got {value!r}")
    return str(value)


def _list(value: Any, read: Callable[[Any], Any]) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {value!r}")
    return tuple(read(one) for one in value)


def _size(value: Any) -> int:
    if _count(value) < 0:
        raise ValueError(f"expected a size of at least 0, got {value}")
    return int(value)


def _object(value: Any, *names: str) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != set(names):
        raise TypeError(f"expected {', '.join(names)}, got {value!r}")
    return value


def _tensor(value: Any) -> TensorSpec:
    value = _object(value, "dtype", "shape", "strides")
    made = TensorSpec(_text(value["dtype"]), _list(value["shape"], _size), _list(value["strides"], _count))
    if made.dtype not in DTYPES:
        raise ValueError(f"unknown dtype {made.dtype!r}")
    if made.strides and len(made.strides) != made.rank:
        raise ValueError(f"{made.rank} sizes with {len(made.strides)} strides")
    return made


def _device(value: Any) -> Device:
    value = _object(value, "kind", "index", "uuid", "name", "capability", "libraries")
    if value["kind"] not in KINDS:
        raise ValueError(f"unknown kind {value['kind']!r}")
    capability = value["capability"]
    if capability is not None:
        major, minor = _list(capability, _size)
        if major < 1 or minor > 9:
            raise ValueError(f"no capability: {major}, {minor}")
        capability = (major, minor)
    libraries = _list(value["libraries"], lambda pair: _list(pair, _text))
    if any(len(pair) != 2 for pair in libraries):
        raise ValueError("libraries are pairs of name and version")
    return Device(_text(value["kind"]), _size(value["index"]), _text(value["uuid"]), _text(value["name"]), capability, libraries)


def _declined(value: Any) -> dict[str, dict[str, str]]:
    if not isinstance(value, dict) or not all(isinstance(said, dict) for said in value.values()):
        raise TypeError(f"expected refusals by backend, got {value!r}")
    return {name: {_text(key): _text(text) for key, text in said.items()} for name, said in value.items()}


READERS: dict[str, Callable[[Any], Any]] = {
    "declined": _declined,
    "direction": _direction,
    "device": _device,
    "q": _tensor,
    "k": _tensor,
    "v": _tensor,
    "program": _text,
    "arrays": lambda value: _list(value, _tensor),
    "scalars": _size,
    "needs": lambda value: _list(value, _flag),
    "lse_gradient": _flag,
    "deterministic": _flag,
    "backend": _text,
}
