"""A tiny Gemma 2 (soft-cap and sliding window) with random weights: flexsdpa against eager attention."""

import copy

import torch
import transformers

from flexsdpa.torch.integrations.transformers import register

register()
torch.manual_seed(0)
config = transformers.Gemma2Config(
    vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, sliding_window=8, attn_logit_softcapping=5.0,
)  # fmt: skip
eager = transformers.Gemma2ForCausalLM._from_config(copy.deepcopy(config), attn_implementation="eager").eval()
ours = transformers.Gemma2ForCausalLM._from_config(copy.deepcopy(config), attn_implementation="flexsdpa").eval()
ours.load_state_dict(eager.state_dict())

tokens = torch.randint(3, 97, (2, 40))
mask = torch.ones_like(tokens)
mask[0, :12] = 0  # left padding
difference = (eager(tokens, attention_mask=mask).logits - ours(tokens, attention_mask=mask).logits)[mask.bool()]
print("largest difference of logits:", difference.abs().max().item())
print("generated:", ours.generate(tokens, attention_mask=mask, max_new_tokens=8, do_sample=False)[0, -8:].tolist())
