"""Text -> canonical program and derivative, remembered by text. Text is the identity, so the memory cannot be stale."""

from __future__ import annotations

import functools

from flexsdpa.ir.derivative import Derivative, derivative
from flexsdpa.ir.program import Program
from flexsdpa.ir.simplify import simplify
from flexsdpa.ir.text import parse


@functools.lru_cache(maxsize=1024)
def program_of(text: str) -> Program:
    """Traced or canonical text -> canonical program."""
    return simplify(parse(text))


@functools.lru_cache(maxsize=1024)
def derivative_of(text: str, slots: frozenset[int]) -> Derivative:
    """The derivative with respect to the score and to the captured tensors in ``slots``."""
    return derivative(program_of(text), slots)
