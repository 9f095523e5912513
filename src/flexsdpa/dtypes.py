"""The dtypes that tensors may have, and the three kinds of value that a program computes with.

A program does not know fp16 or int32: every value is a bool, a 64-bit integer or a float in the
working precision (fp64 when the inputs are fp64, else fp32). Storage dtypes matter where a captured
tensor is read and where a mod casts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["b", "i", "f"]
KIND_NAMES: dict[str, str] = {"b": "bool", "i": "integer", "f": "float"}


@dataclass(frozen=True, slots=True)
class DType:
    """One storage dtype: its short name, kind and size in bits."""

    name: str
    kind: Kind
    bits: int


DTYPES: dict[str, DType] = {
    row.name: row
    for row in (
        DType("bool", "b", 8),
        DType("u8", "i", 8),
        DType("i8", "i", 8),
        DType("i16", "i", 16),
        DType("i32", "i", 32),
        DType("i64", "i", 64),
        DType("f16", "f", 16),
        DType("bf16", "f", 16),
        DType("f32", "f", 32),
        DType("f64", "f", 64),
    )
}

ALIASES = {
    "fp16": "f16", "half": "f16", "float16": "f16", "bfloat16": "bf16", "fp32": "f32", "float": "f32", "float32": "f32",
    "fp64": "f64", "double": "f64", "float64": "f64",
}  # fmt: skip
"""What people call the dtypes of inputs, besides our names."""
INPUT_DTYPES = ("f16", "bf16", "f32", "f64")
"""What q, k and v may be."""


def working_dtype(name: str) -> str:
    """The dtype in which scores and mods are computed for inputs of dtype ``name``."""
    return "f64" if name == "f64" else "f32"
