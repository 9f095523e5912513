"""Memory is O(S): measured as the peak of a child process beyond inputs, result and gradients.

The child first runs a small call, so that code and thread pools are loaded, then makes its inputs and reads its resident
memory; the peak (VmHWM of /proc/self/status, reset by writing 5 to /proc/self/clear_refs where that is allowed) minus that, minus
out, LSE, dq, dk and dv, is what attention itself needed. H = 4 and D = 64, as in the claim.
"""

import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

SCRIPT = """
import torch
from flexsdpa import mods
from flexsdpa.torch import attention

torch.set_num_threads(2)
CALLS = {{
    "window": dict(mask_mod=mods.sliding_window(512)),
    "captured": dict(mask_mod=mods.sliding_window(512), score_mod=mods.alibi(torch.rand(4, requires_grad=True))),
    "documents": dict(mask_mod=mods.and_masks(mods.causal, mods.document(torch.arange({S}) // 300))),
}}
def resident(field):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field))
def train(S, **options):
    inputs = [torch.randn(1, 4, S, 64, requires_grad=True) for _ in range(3)]
    try:
        open("/proc/self/clear_refs", "w").write("5")
    except OSError:
        pass
    before = resident("VmRSS")
    attention(*inputs, **options).sum().backward()
    results = 4 * inputs[0].numel() * 4 + 4 * S * 4  # out, dq, dk, dv; LSE. The gradient of sum() is one number, expanded
    return resident("VmHWM") - before - results
options = CALLS["{what}"]
train(64, **options)
print(train({S}, **options))
"""


@pytest.mark.parametrize("what", ["window", "captured", "documents"])
def test_long_sequences_train_in_linear_memory(what, fresh_process):
    short, long = (int(fresh_process(SCRIPT.format(S=S, what=what))) for S in (8192, 32768))
    assert long < 64e6, f"{long / 1e6:.0f} MB beyond inputs, result and gradients"
    assert long < 4.5 * max(short, 4e6), f"{short / 1e6:.0f} MB at 8192, {long / 1e6:.0f} MB at 32768"


MASKS = """
import torch
from flexsdpa import mods
from flexsdpa.torch import attention
def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
def decode(S, mask):
    x = torch.zeros(1, 1, S, 1)
    attention(x, x, x, mask_mod=mask)
decode(640, mods.sliding_window(64))
before = peak()
decode({S}, mods.sliding_window(64))
print(peak() - before)
"""


def test_finding_the_blocks_of_a_long_window_needs_no_square_mask(fresh_process):
    grown = int(fresh_process(MASKS.format(S=60_000)))
    assert grown < 100e6  # the mask alone would be 3.6 GB
