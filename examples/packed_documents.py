"""Documents of different lengths in one row, three ways that agree: a mask, varlen_attention, a nested tensor."""

import torch

from flexsdpa import mods
from flexsdpa.torch import attention, varlen_attention

torch.manual_seed(0)
lengths = [100, 37, 250, 125]
T, H, D = sum(lengths), 4, 32
q, k, v = (torch.randn(T, H, D) for _ in range(3))
offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])

ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
mask = mods.and_masks(mods.document(ids), mods.causal)
by_mask = attention(*(x[None] for x in (q, k, v)), mask_mod=mask, layout="bshd")[0]

by_offsets = varlen_attention(q, k, v, offsets, mask_mod=mods.causal)

nested = [torch.nested.nested_tensor_from_jagged(x, offsets) for x in (q, k, v)]
by_nested = attention(*nested, mask_mod=mods.causal, layout="bshd").values()

print("mask and offsets differ by", (by_mask - by_offsets).abs().max().item())
print("mask and nested differ by ", (by_mask - by_nested).abs().max().item())
