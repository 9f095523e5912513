"""DistributedDataParallel over two processes, with a buffer and a parameter captured by a mod; simulated context parallel."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from flexsdpa import mods
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.torch import attention


class Block(torch.nn.Module):
    """Attention with an ALiBi buffer and a learned bias."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48)
        self.bias = torch.nn.Parameter(torch.zeros(2, 9))
        self.register_buffer("slopes", torch.tensor(mods.alibi_slopes(2)))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 8)) for t in self.qkv(x).chunk(3, -1))

        def score_mod(score, b, h, q_idx, kv_idx):
            return score - self.slopes[h] * (q_idx - kv_idx) + self.bias[h, (q_idx - kv_idx).clamp(0, 8)]

        return attention(q, k, v, score_mod=score_mod, mask_mod=mods.causal, layout="bshd").flatten(2)


def rank_of(rank, store, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(Block())
    batch = random_tensor(4, 12, 16, seed=7)[2 * rank : 2 * rank + 2]
    for _ in range(2):
        model.zero_grad()
        model(batch).square().sum().backward()
    if rank == 0:
        torch.save([p.grad for p in model.parameters()], results)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo")
def test_data_parallel_gradients_are_the_mean_over_processes(tmp_path):
    store, results = tmp_path / "store", tmp_path / "grads.pt"
    multiprocessing.spawn(rank_of, (str(store), str(results)), nprocs=2)
    torch.manual_seed(0)
    model = Block()
    model(random_tensor(4, 12, 16, seed=7)).square().sum().backward()
    seen = torch.load(results)
    assert len(seen) == 3
    for grad, parameter in zip(seen, model.parameters(), strict=True):
        torch.testing.assert_close(grad, parameter.grad / 2, rtol=1e-4, atol=1e-5)


def test_shards_of_the_queries_with_offsets_make_the_whole():
    q, k, v = random_qkv(2, 4, 64, 8, Hkv=2)
    options = {"score_mod": lambda s, b, h, i, j: s - 0.05 * (i - j), "mask_mod": mods.sliding_window(20)}
    whole = attention(q, k, v, **options)
    shards = [attention(q[:, :, n : n + 16], k, v, q_offset=n, **options) for n in range(0, 64, 16)]
    torch.testing.assert_close(torch.cat(shards, 2), whole, rtol=1e-5, atol=1e-6)


def test_shards_of_the_keys_merge_by_their_lse():
    q, k, v = (x.requires_grad_() for x in random_qkv(2, 4, 64, 8, Hkv=2))
    whole, whole_lse = attention(q, k, v, mask_mod=mods.causal, return_lse=True)
    parts = [
        attention(q, k[:, :, n : n + 16], v[:, :, n : n + 16], mask_mod=lambda b, h, i, j: j + n <= i, return_lse=True)
        for n in range(0, 64, 16)
    ]
    lse = torch.stack([part[1] for part in parts]).logsumexp(0)
    merged = sum(out * torch.exp(part - lse)[..., None] for out, part in parts)
    torch.testing.assert_close(lse, whole_lse, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(merged, whole, rtol=1e-5, atol=1e-6)
    seen, expected = (torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (merged, whole))
    torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-5)
