"""Programs of PyTorch run through the backend unchanged and give what they give on plain Gloo."""

import logging
import unittest

import torch
import torch._dynamo  # each rank would import it at its first optimizer step
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ranks import RanksTest


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16, dtype=torch.float64)
        self.up = nn.Linear(16, 32, dtype=torch.float64)
        self.down = nn.Linear(32, 16, dtype=torch.float64)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def model():
    torch.manual_seed(5)
    return nn.Sequential(Block(), Block())


def train(module, batch, steps=2):
    """The losses of `steps` AdamW steps with a clipped gradient."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = module(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def batch(index):
    return torch.randn(4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(index))


def fsdp2_and_tensor_parallel(rank, size):
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    module = model()
    for block in module:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(module, mesh=mesh["dp"])
    losses = train(module, batch(rank // 2))
    return losses, {name: value.full_tensor().tolist()
                    for name, value in module.state_dict().items()}


def data_parallel(rank, size):
    module = nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.01)
    losses = train(module, batch(rank))
    return losses, {name: value.tolist() for name, value in module.state_dict().items()}


class Training(RanksTest):
    def same_as_gloo(self, size, function):
        golden = self.values(size, function, backend="gloo", limit=90)
        actual = self.values(size, function, limit=90, environment={"SHARDPROOF_DIGESTS": "1"})
        self.assertEqual(actual, golden)
        return golden

    def test_fsdp2_and_tensor_parallel(self):
        golden = self.same_as_gloo(4, fsdp2_and_tensor_parallel)
        self.assertNotEqual(golden[0][0], golden[2][0])  # the dp ranks have batches of their own
        self.assertLess(golden[0][0][1], golden[0][0][0])

    def test_cpu_only(self):
        golden = self.values(2, data_parallel, backend="cpu:gloo", limit=90)
        self.assertEqual(self.values(2, data_parallel, backend="cpu:shardproof", limit=90), golden)

    def test_data_parallel(self):
        golden = self.same_as_gloo(2, data_parallel)
        self.assertEqual(golden[0][1], golden[1][1])


if __name__ == "__main__":
    unittest.main()
