"""The approximate tanh of the GPU benchmark: eagerly it is tanh, with its gradient, also inside FlexAttention."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

FILE = Path(__file__).parents[2] / "benchmarks" / "approximate_tanh.py"


@pytest.fixture(scope="module")
def approximate_tanh():
    spec = importlib.util.spec_from_file_location("approximate_tanh", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "approximate_tanh", module)  # Dynamo imports what it traces
        yield module.approximate_tanh


def test_it_is_tanh_and_its_gradient(approximate_tanh):
    x = torch.linspace(-3, 3, 7, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(approximate_tanh(x), torch.tanh(x))
    assert torch.autograd.gradcheck(approximate_tanh, (x,))


@pytest.mark.filterwarnings("ignore")
def test_it_runs_as_a_score_mod_of_flex_attention(approximate_tanh):
    q, k, v = (torch.randn(1, 2, 16, 8) for _ in range(3))
    capped = lambda tanh: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: 20.0 * tanh(s / 20.0))
    torch.testing.assert_close(capped(approximate_tanh), capped(torch.tanh))
