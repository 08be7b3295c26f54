"""Models that tests/python/model_test.py gives to `shardproof model` as module:function."""

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
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


def cut(model, layout):
    if layout.sizes["tp"] > 1:
        mesh = init_device_mesh("cpu", (layout.sizes["tp"],), mesh_dim_names=("tp",))
        for layer in model.layers:
            parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model


def cut_for(layout):
    return cut(Parts(), layout)


class Centered(nn.Module):
    """Subtracts the mean of all columns. On a shard of the columns that is another mean."""

    def forward(self, hidden):
        return torch.tanh(hidden - hidden.mean(-1, keepdim=True))


class CenteredInInference(Centered):
    """Only a pass without gradients subtracts the mean."""

    def forward(self, hidden):
        return torch.tanh(hidden) if torch.is_grad_enabled() else super().forward(hidden)


def cut_with(activation, layout):
    torch.manual_seed(0)
    model = Parts()
    for layer in model.layers:
        layer[1] = activation()
    return cut(model, layout)


def cut_with_statistic(layout):
    return cut_with(Centered, layout)


def cut_with_statistic_in_inference(layout):
    return cut_with(CenteredInInference, layout)


class Saved(Parts):
    """Saves and loads itself, as a model of transformers does."""

    config = None
    tp_plan = {}

    def forward(self, input_ids, use_cache=False):
        return super().forward(input_ids)

    def save_pretrained(self, folder):
        full = {name: getattr(one, "full_tensor", lambda one=one: one)() for name, one in self.state_dict().items()}
        if dist.get_rank() == 0:
            Path(folder).mkdir(parents=True, exist_ok=True)
            torch.save(self.to_be_saved(full), Path(folder) / "weights.pt")

    def to_be_saved(self, full):
        return full

    @classmethod
    def from_pretrained(cls, folder, **_):
        model = cls().double()
        model.load_state_dict(torch.load(Path(folder) / "weights.pt"))
        return model


class SavedInParts(Saved):
    """Where a weight is cut, the parts of the ranks change places on the way to the file."""

    def to_be_saved(self, full):
        if dist.get_world_size() > 1:
            full["layers.1.0.weight"] = full["layers.1.0.weight"].roll(12, 0)
        return full


class SavedOnRank0(Saved):
    def save_pretrained(self, folder):
        super().save_pretrained(folder)
        if dist.get_world_size() > 1 and dist.get_rank() == 1:
            raise OSError("no room")


def saved_on_rank_0(layout):
    return cut(SavedOnRank0(), layout)


def saved(layout):
    return cut(Saved(), layout)


def saved_in_parts(layout):
    return cut(SavedInParts(), layout)


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
