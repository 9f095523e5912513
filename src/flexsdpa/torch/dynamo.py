"""Comparisons of traced values with numbers that torch.compile keeps symbolic.

Dynamo answers ``x == n`` by itself where n is symbolic and x an object: False, without asking x, and it refuses
``x < n``. A mask such as ``kv_idx == n`` would lose its meaning in silence from the second value of n on.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

COMPARISONS = {
    operator.eq: ("__eq__", "__eq__"), operator.ne: ("__ne__", "__ne__"), operator.lt: ("__lt__", "__gt__"),
    operator.le: ("__le__", "__ge__"), operator.gt: ("__gt__", "__lt__"), operator.ge: ("__ge__", "__le__"),
}  # fmt: skip
"""The method that is asked of the left side, and the one that is asked of the right."""


@functools.cache
def _ask_objects() -> bool:
    """Makes Dynamo ask the object, as Python does; False where this torch has no place to say so."""
    try:
        from torch._dynamo.variables.builtin import BuiltinVariable
        from torch._dynamo.variables.tensor import SymNodeVariable
        from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

        tables = BuiltinVariable._binop_handlers()
        rows = [tables[op] for op in COMPARISONS]
        cache = BuiltinVariable.call_function_handler_cache
    except (ImportError, AttributeError, KeyError):
        return False
    for (ours, reflected), row in zip(COMPARISONS.values(), rows, strict=True):
        row.insert(0, ((SymNodeVariable, UserDefinedObjectVariable), functools.partial(_ask_right, reflected)))
        row.insert(0, ((UserDefinedObjectVariable, SymNodeVariable), functools.partial(_ask_left, ours)))
    for key in [key for key in cache if key[0] in COMPARISONS]:
        del cache[key]
    return True


def _ask_left(method: str, tx: Any, left: Any, right: Any) -> Any:
    return left.call_method(tx, method, [right], {})


def _ask_right(method: str, tx: Any, left: Any, right: Any) -> Any:
    return right.call_method(tx, method, [left], {})


def comparisons_are_asked() -> bool:
    """Called while Dynamo traces ``attention``, and run for real at that moment: its answer is a constant to Dynamo."""
    return _ask_objects()


comparisons_are_asked._dynamo_marked_constant = True  # type: ignore[attr-defined]
