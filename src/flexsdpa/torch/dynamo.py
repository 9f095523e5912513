"""Comparisons of traced values with numbers that torch.compile keeps symbolic.

Dynamo answers ``x == n`` by itself where n is symbolic and x an object: False, without asking x, and it refuses
``x < n``. A mask such as ``kv_idx == n`` would lose its meaning in silence from the second value of n on.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

COMPARISONS = {
    operator.eq: "__eq__", operator.ne: "__ne__", operator.lt: "__lt__",
    operator.le: "__le__", operator.gt: "__gt__", operator.ge: "__ge__",
}  # fmt: skip


@functools.cache
def _ask_objects() -> bool:
    """Makes Dynamo ask the object, as Python does; False where this torch has no place to say so."""
    try:
        from torch._dynamo.variables.builtin import BuiltinVariable
        from torch._dynamo.variables.object_protocol import generic_richcompare
        from torch._dynamo.variables.tensor import SymNodeVariable
        from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

        tables = BuiltinVariable._binop_handlers()
        rows = [tables[op] for op in COMPARISONS]
        cache = BuiltinVariable.call_function_handler_cache
    except (ImportError, AttributeError, KeyError):
        return False
    for op, row in zip(COMPARISONS, rows, strict=True):
        handler = functools.partial(_compare, generic_richcompare, COMPARISONS[op])
        row.insert(0, ((SymNodeVariable, UserDefinedObjectVariable), handler))
        row.insert(0, ((UserDefinedObjectVariable, SymNodeVariable), handler))
    for key in [key for key in cache if key[0] in COMPARISONS]:
        del cache[key]
    return True


def _compare(compare: Any, dunder: str, tx: Any, a: Any, b: Any) -> Any:
    return compare(tx, a, b, dunder)


def comparisons_are_asked() -> bool:
    """Called while Dynamo traces ``attention``, and run for real at that moment: its answer is a constant to Dynamo."""
    return _ask_objects()


comparisons_are_asked._dynamo_marked_constant = True  # type: ignore[attr-defined]
