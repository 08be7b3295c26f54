"""Models that tests/python/model_test.py gives to `shardproof model` as module:function."""

import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 16)) for _ in range(2))
        self.head = nn.Linear(16, 32)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return self.head(hidden)


def whole():
    return Parts()


class PartlyUsed(Parts):
    """A parameter gets no gradient, as that of an indexer does."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(16, 16)


def partly_used():
    return PartlyUsed()


def cut_for(layout):
    model = Parts()
    if layout.sizes["tp"] > 1:
        mesh = init_device_mesh("cpu", (layout.sizes["tp"],), mesh_dim_names=("tp",))
        for layer in model.layers:
            parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model


class Centered(nn.Module):
    """Subtracts the mean of all columns. On a shard of the columns that is another mean."""

    def forward(self, hidden):
        return torch.tanh(hidden - hidden.mean(-1, keepdim=True))


def cut_with_statistic(layout):
    torch.manual_seed(0)
    model = Parts()
    for layer in model.layers:
        layer[1] = Centered()
    if layout.sizes["tp"] > 1:
        mesh = init_device_mesh("cpu", (layout.sizes["tp"],), mesh_dim_names=("tp",))
        for layer in model.layers:
            parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model


def raises():
    raise ValueError("no such size")


def killed(layout):
    """A rank that another process kills, as the system does when memory ends."""
    if layout.world_size > 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return Parts()


def loses_the_program():
    Path(os.environ["SHARDPROOF_PROGRAM"]).unlink(missing_ok=True)
    return Parts()
