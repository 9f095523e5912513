"""How far from the float64 oracle a result may be. Budgets come from data, not from a table of tolerances. Needs torch.

A kernel may err by FACTOR times what an independent dense computation in the working precision errs, plus one
rounding to the result's dtype. Infinities must match in place, and there must be no nan that the oracle does not have.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from flexsdpa.testing.oracles import Judged

FACTOR = 2.0
FLOOR_ROUNDINGS = 16.0
"""Where the dense computation happens to be exact, some roundings of the largest element are still allowed: sums of a few
hundred terms in another order differ by about that many."""
FLOOR_FP64 = 1024.0
"""The same in fp64, where the dense computation is the oracle itself and tells nothing about rounding."""


def assert_within_budget(judged: Judged, factor: float = FACTOR, absolute: Mapping[str, float] | None = None) -> None:
    """Raises AssertionError that names the first result out of its budget.

    absolute: errors that are allowed besides, by result: kernels that use a card's approximate functions have a floor.
    """
    for name, actual, exact, low in zip(judged.names, judged.actual, judged.exact, judged.low, strict=True):
        assert actual.shape == exact.shape, f"{name}: shape {tuple(actual.shape)}, expected {tuple(exact.shape)}"
        problem = over_budget(actual, exact, low, factor, (absolute or {}).get(name, 0.0))
        assert not problem, f"{name}: {problem}"


def over_budget(actual: Tensor, exact: Tensor, low: Tensor, factor: float = FACTOR, absolute: float = 0.0) -> str:
    """What is wrong with a result; empty if nothing is. Bounds the largest and the root mean square error."""
    found, want, rough = (x.detach().double() for x in (actual, exact, low))
    if not torch.equal(torch.isnan(found), torch.isnan(want)):
        return f"{int(torch.isnan(found).sum())} nan, expected {int(torch.isnan(want).sum())}"
    infinite = torch.isinf(want)
    if not torch.equal(torch.where(infinite, want, 0.0), torch.where(torch.isinf(found), found, 0.0)):
        return "infinities are not where they should be"
    regular = ~infinite & ~torch.isnan(want)
    found, want, rough = found[regular], want[regular], rough[regular]
    if not want.numel():
        return ""
    rounding = torch.finfo(actual.dtype).eps / 2
    working = torch.finfo(torch.float64 if actual.dtype == torch.float64 else torch.float32).eps / 2
    size = float(want.abs().max())
    floor = (FLOOR_FP64 if actual.dtype == torch.float64 else FLOOR_ROUNDINGS) * working * max(size, 1e-30) + absolute
    error, low_error = (found - want).abs(), torch.nan_to_num((rough - want).abs())
    allowed_max = factor * (float(low_error.max()) + rounding * size) + floor
    if float(error.max()) > allowed_max:
        return f"largest error {float(error.max()):.3g}, allowed {allowed_max:.3g} (dense: {float(low_error.max()):.3g})"
    rms, low_rms = float(error.square().mean().sqrt()), float(low_error.square().mean().sqrt())
    allowed_rms = factor * (low_rms + rounding * size) + floor
    return f"rms error {rms:.3g}, allowed {allowed_rms:.3g}" if rms > allowed_rms else ""
