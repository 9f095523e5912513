"""A soft-capped, causal attention layer, trained for a few steps. The cap is learned."""

import torch

from flexsdpa import mods
from flexsdpa.torch import attention

torch.manual_seed(0)
B, H, S, D = 2, 4, 128, 32
x = torch.randn(B, H, S, D)
target = torch.randn(B, H, S, D).cumsum(2) / torch.arange(1, S + 1)[:, None]
qkv = torch.nn.Linear(D, 3 * D)
cap = torch.nn.Parameter(torch.tensor(5.0))
optimizer = torch.optim.Adam([*qkv.parameters(), cap], lr=1e-2)

for step in range(20):
    q, k, v = qkv(x).chunk(3, dim=-1)
    out = attention(q, k, v, score_mod=mods.softcap(cap), mask_mod=mods.causal)
    loss = (out - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(f"step {step:2d}  loss {loss.item():.4f}  cap {cap.item():.3f}  d(loss)/d(cap) {cap.grad.item():+.2e}")
