"""What the tracer knows of torch: dtypes, symbolic numbers, and reads of captured tensors by ``table[q_idx]``."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import has_static_value
from torch.overrides import TorchFunctionMode

from flexsdpa.errors import TraceError
from flexsdpa.trace.functions import read
from flexsdpa.trace.recorder import Frontend, Recorder
from flexsdpa.trace.tracer import dispatch_function, first_tracer

DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.bool: "bool", torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64",
}  # fmt: skip

RANDOM = frozenset((
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli", "multinomial",
    "poisson", "dropout", "uniform_", "normal_", "bernoulli_", "random_", "exponential_",
))  # fmt: skip
PYTHON_TYPES: dict[Any, str] = {bool: "bool", int: "i64", float: "f64"}
"""What ``x.to(int)`` means to torch."""


class TorchFrontend(Frontend):
    """The recorder's view of torch, for one call."""

    array_name = "torch tensor"

    def __init__(self, work: torch.dtype, device: torch.device, compiling: bool, trusts_bools: bool = True) -> None:
        self.work = work
        self._device = device
        self.compiling = compiling
        self.trusts_bools = trusts_bools

    def array_dtype(self, value: Any) -> str | None:
        return DTYPE_NAMES.get(value.dtype) if isinstance(value, torch.Tensor) else None

    def is_array(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def dtype_name(self, dtype: Any) -> str | None:
        return DTYPE_NAMES.get(dtype) if isinstance(dtype, torch.dtype) else PYTHON_TYPES.get(dtype)

    def is_device(self, value: Any) -> bool:
        return isinstance(value, torch.device | str | int)

    def kind_dtype(self, kind: str) -> torch.dtype:
        return self.work if kind == "f" else torch.int64 if kind == "i" else torch.bool

    def device(self) -> torch.device:
        return self._device

    def is_static(self, value: Any) -> bool:
        return not self.compiling or has_static_value(value)

    def symbolic_int(self, value: Any) -> torch.Tensor:
        operand: torch.Tensor = torch.ones((), dtype=torch.int64, device=self._device) * value
        return operand


class ReadMode(TorchFunctionMode):
    """Active while a mod is traced: sees ``table[q_idx]`` and torch functions of traced values."""

    def __init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        traced = first_tracer((*args, *kwargs.values()) if kwargs else args)
        if traced is None:
            if getattr(func, "__name__", "") in RANDOM:
                raise TraceError(
                    f"{func.__name__}() in a mod would be drawn once, for all positions and both directions\n"
                    "  instead  draw a tensor before the call, and read it: noise[b, h, q_idx, kv_idx]"
                )
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.__getitem__:
            index = args[1]
            recorder: Recorder = traced._recorder
            return read(recorder, args[0], *(index if isinstance(index, tuple) else (index,)))
        return dispatch_function(func, args, kwargs or {})
