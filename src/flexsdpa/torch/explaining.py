"""flexsdpa.torch.explain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flexsdpa import config
from flexsdpa.explain import Explanation
from flexsdpa.explain import explain as explain_request
from flexsdpa.spec.device import Device
from flexsdpa.torch.api import WORKING, autocast_inputs, offset_tensor
from flexsdpa.torch.contracts import check_arrays, check_layout, check_qkv, request_of, signature_of, to_bhsd
from flexsdpa.torch.functions import ReadMode, TorchFrontend
from flexsdpa.trace.capture import capture_name
from flexsdpa.trace.run import trace


@dataclass(frozen=True, slots=True)
class CallExplanation:
    """Both directions of a call. ``print`` it."""

    forward: Explanation
    backward: Explanation

    def __str__(self) -> str:
        return f"{self.forward}\n\n{self.backward}"


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    layout: str = "bhsd",
    return_lse: bool = False,
    q_offset: int | Tensor | None = None,
    backend: str | None = None,
    device: str = "",
    cudnn: str = "",
) -> CallExplanation:
    """What ``attention`` would do with these arguments: program, derivative, structure, keys, and each backend's reasons.

    Runs nothing, and works on meta tensors. Arguments as for ``attention``. device, cudnn: explain the call as if its tensors
    were on another card, ``"sm_121"``, with a release of cuDNN, ``"9.28.1"``; no GPU is needed. The backward is explained for
    gradients of q, k, v and of captured tensors that require one, and of the LSE where return_lse is set.

    Raises: RequestError and TraceError, as attention does.

    Example:
        >>> import torch
        >>> from flexsdpa.torch import explain
        >>> q = k = v = torch.empty(1, 2, 16, 8, device="meta")
        >>> print(explain(q, k, v, mask_mod=lambda b, h, i, j: i >= j).forward.structure)
        ('causal',)
        >>> explain(q, k, v, device="sm_90").forward.decision.backend
        'reference'
    """
    described = Device.parse(device, cudnn) if device or cudnn else None
    check_layout(layout, q, k, v)
    q, k, v = to_bhsd(q, layout), to_bhsd(k, layout), to_bhsd(v, layout)
    if q.device.type != "meta" and torch.is_autocast_enabled(q.device.type):
        q, k, v = autocast_inputs(q, k, v)
    check_qkv(q, k, v)
    with ReadMode():
        frontend = TorchFrontend(WORKING[q.dtype], q.device, False)
        traced = trace(score_mod, mask_mod, frontend, offset_tensor(q_offset, q.shape[0], q.device))
    check_arrays(traced.arrays, q.device, (score_mod, mask_mod))
    names = [capture_name((score_mod, mask_mod), array) or f"t{n}" for n, array in enumerate(traced.arrays)]
    needs = (True, True, True, *(a.is_floating_point() and a.requires_grad for a in traced.arrays))
    chosen = backend or config.get("backend")
    count = len(traced.scalars)
    requests = [
        request_of(signature_of("forward", q, k, v, traced.arrays, traced.text, chosen), count),
        request_of(signature_of("backward", q, k, v, traced.arrays, traced.text, chosen, needs, return_lse), count),
    ]
    if described is not None:
        requests = [replace(request, device=described) for request in requests]
    return CallExplanation(*(explain_request(request, names) for request in requests))
