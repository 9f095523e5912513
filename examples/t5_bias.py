"""T5's learned relative bias, with its gradient, under torch.compile."""

import torch

from flexsdpa import mods
from flexsdpa.torch import attention

torch.manual_seed(0)
B, H, S, D = 1, 4, 256, 32
q, k, v = (torch.randn(B, H, S, D) for _ in range(3))
table = torch.nn.Parameter(torch.zeros(32, H))


@torch.compile(fullgraph=True, backend="aot_eager")
def layer(q, k, v, table):
    return attention(q, k, v, score_mod=mods.t5_bias(table), scale=1.0)


layer(q, k, v, table).square().sum().backward()
print("bucket with the largest gradient, per head:", table.grad.abs().argmax(0).tolist())
