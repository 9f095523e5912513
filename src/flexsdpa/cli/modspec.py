"""Mods named on a command line: ``softcap:30``, ``causal``, ``package.module:function``, ``path/to/file.py:function``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from flexsdpa import mods
from flexsdpa.errors import RequestError, nearest
from flexsdpa.trace.recorder import Frontend
from flexsdpa.trace.run import Trace, trace


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a described call."""

    B: int
    Hq: int
    Sq: int
    D: int
    Hkv: int
    Skv: int
    Dv: int

    @staticmethod
    def parse(shape: str, kv_heads: int = 0, kv_len: int = 0, v_head_dim: int = 0) -> Sizes:
        """From ``batch,heads,q_len,head_dim`` and what may differ for k and v."""
        parts = shape.replace("x", ",").split(",")
        if len(parts) != 4 or not all(part.strip().isdigit() for part in parts):
            raise RequestError(f"--shape must be batch,heads,q_len,head_dim, got {shape!r}", field="shape", got=shape)
        b, h, s, d = (int(part) for part in parts)
        found = Sizes(b, h, s, d, kv_heads or h, kv_len or s, v_head_dim or d)
        if not all(0 < size < 2**31 for size in astuple(found)):
            given = ", ".join(map(str, astuple(found)))
            raise RequestError(f"sizes must be at least 1 and below 2**31, got {given}", field="shape", got=shape)
        return found


@dataclass(frozen=True, slots=True)
class Sample:
    """One of ours, with what it needs filled in for a described call."""

    role: str
    make: Callable[[Sizes, str], Any]
    argument: str


def _int(text: str, default: int) -> int:
    return int(text) if text else default


def _documents(sizes: Sizes, count: int) -> Any:
    if count < 1:
        raise RequestError(f"document needs at least one document, got {count}", field="mask_mod", got=count)
    length = max(sizes.Sq, sizes.Skv)
    return np.repeat(np.arange(count), -(-length // count))[:length].astype(np.int64)


SAMPLES: dict[str, Sample] = {
    "softcap": Sample("score_mod", lambda s, a: mods.softcap(float(a or 30)), "cap (30)"),
    "alibi": Sample("score_mod", lambda s, a: mods.alibi(np.array(mods.alibi_slopes(s.Hq), np.float32)), ""),
    "relative_bias": Sample(
        "score_mod",
        lambda s, a: mods.relative_bias(np.zeros((s.Hq, s.Sq + s.Skv - 1), np.float32), center=s.Skv - 1),
        "",
    ),
    "t5_bias": Sample("score_mod", lambda s, a: mods.t5_bias(np.zeros((_int(a, 32), s.Hq), np.float32)), "buckets (32)"),
    "causal": Sample("mask_mod", lambda s, a: mods.causal(offset=_int(a, 0)), "offset (0)"),
    "sliding_window": Sample("mask_mod", lambda s, a: mods.sliding_window(_int(a, 512)), "keys (512)"),
    "document": Sample("mask_mod", lambda s, a: mods.document(_documents(s, _int(a, 4))), "how many, of equal length (4)"),
    "prefix_lm": Sample("mask_mod", lambda s, a: mods.prefix_lm(_int(a, s.Skv // 4)), "length (a quarter)"),
    "padding": Sample(
        "mask_mod", lambda s, a: mods.padding(np.full(s.B, _int(a, 3 * s.Skv // 4), np.int64)), "length (three quarters)"
    ),
}


def load(name: str, role: str, sizes: Sizes) -> Any:
    """The mod that a name stands for. Raises RequestError for one that cannot be found."""
    head, _, argument = name.partition(":")
    if head in SAMPLES and SAMPLES[head].role == role:
        try:
            return SAMPLES[head].make(sizes, argument)
        except ValueError as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(
                f"{head} takes {SAMPLES[head].argument or 'no argument'}, got {argument!r}", field=role, got=name
            ) from None
    if not argument:
        known = [n for n, sample in SAMPLES.items() if sample.role == role]
        raise RequestError(
            f"unknown {role} {name!r}{nearest(name, known)}: give one of {', '.join(known)}, or module:function",
            field=role,
            got=name,
        )
    try:
        value = _module(head)
        for part in argument.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError, OSError) as error:
        hint = nearest(head, [n for n, sample in SAMPLES.items() if sample.role == role])
        if head in SAMPLES:
            hint = f" ({head} is a {SAMPLES[head].role})"
        raise RequestError(f"cannot load {role} {name!r}{hint}: {error}", field=role, got=name) from None
    return value


def _module(name: str) -> Any:
    if name.endswith(".py"):
        spec = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(name))[0], name)
        if spec is None or spec.loader is None or not os.path.exists(name):
            raise ImportError(f"no file {name}")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return importlib.import_module(name)


def trace_named(score_mods: Sequence[str], mask_mods: Sequence[str], sizes: Sizes, dtype: str = "f32") -> Trace:
    """Traces mods by name: several score mods one after the other, several masks joined by and."""
    scores = [load(name, "score_mod", sizes) for name in score_mods]
    masks = [load(name, "mask_mod", sizes) for name in mask_mods]
    score = mods.chain(*scores) if len(scores) > 1 else next(iter(scores), None)
    mask = mods.and_masks(*masks) if len(masks) > 1 else next(iter(masks), None)
    if "torch" not in sys.modules:
        return trace(score, mask, Frontend())
    import torch

    from flexsdpa.torch.functions import ReadMode, TorchFrontend

    class Both(TorchFrontend):
        """Captured tensors of the user's are torch's, those of our samples NumPy's."""

        def array_dtype(self, value: Any) -> str | None:
            return super().array_dtype(value) or Frontend.array_dtype(self, value)

    with ReadMode():
        return trace(score, mask, Both(torch.float64 if dtype == "f64" else torch.float32, torch.device("cpu"), False))


def array_spec(array: Any) -> tuple[str, tuple[int, ...]]:
    """(dtype name, shape) of a captured tensor of either kind."""
    name = str(array.dtype).removeprefix("torch.")
    short = {"float": "f32", "double": "f64", "half": "f16", "long": "i64", "int": "i32"}.get(name)
    from flexsdpa.trace.recorder import NUMPY_NAMES

    return short or NUMPY_NAMES[name], tuple(array.shape)
