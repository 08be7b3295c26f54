"""Muon under FSDP2, saved and loaded at another number of ranks, over Gloo on the CPU. README.md has the commands.

--bug shard    each rank makes its own rows orthogonal alone
--bug rate     the last rank moves twice as far
--bug lost     what is loaded lacks the momentum
--bug rows     what is loaded has two rows in each other's place
"""

import argparse
import gc
import os

import shardproof
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

BLOCKS = (16, 8, 8)  # q, k and v in one matrix


def orthogonal(matrix):
    x = matrix.bfloat16() if len(matrix) <= matrix.shape[1] else matrix.bfloat16().T
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x if len(matrix) <= matrix.shape[1] else x.T).to(matrix.dtype)


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Muon(torch.optim.Optimizer):
    def __init__(self, named, lr, bug):
        super().__init__([{"params": [parameter], "blocks": BLOCKS if name == "qkv.weight" else (len(parameter),)}
                          for name, parameter in named], {"lr": lr})
        self.bug = bug

    @torch.no_grad()
    def step(self, closure=None):
        is_last = self.bug == "rate" and dist.get_rank() == dist.get_world_size() - 1
        for group in self.param_groups:
            for parameter in group["params"]:
                buffer = self.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
                buffer.lerp_(parameter.grad, 0.05)
                update = parameter.grad.lerp(buffer, 0.95)
                if not isinstance(update, DTensor):
                    made = torch.cat([orthogonal(part) for part in update.split(group["blocks"])])
                elif self.bug == "shard":
                    made = orthogonal(local(update))
                else:
                    parts = [orthogonal(part) for part in update.full_tensor().split(group["blocks"])]
                    made = local(distribute_tensor(torch.cat(parts), update.device_mesh, update.placements))
                local(parameter).sub_(made, alpha=group["lr"] * (2 if is_last else 1))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = nn.Linear(16, 32, bias=False), nn.Linear(32, 8, bias=False)

    def forward(self, inputs):
        return self.out(torch.tanh(self.qkv(inputs)))


def train(model, optimizer, options, first):
    mesh = {"fsdp": dist.get_world_size()}
    for step in range(first, first + options.steps):
        rows = shardproof.batch((torch.arange(32.0 * 16).reshape(32, 16) ** 1.5 * (0.7 + step)).sin(), mesh=mesh)
        optimizer.zero_grad()
        (model(rows) - rows[:, 3:11]).square().mean().backward()
        optimizer.step()


def load(model, optimizer, options):
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.load(states, checkpoint_id=options.load)
    set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    weight = local(model.qkv.weight).data
    if options.bug == "rows":
        weight[[0, 1]] = weight[[1, 0]]
    if options.bug == "lost":
        local(optimizer.state[model.qkv.weight]["momentum_buffer"]).zero_()


def options_of(words=None):
    parser = argparse.ArgumentParser()
    for name, default in (("out", "run"), ("golden", ""), ("save", ""), ("load", ""), ("bug", ""), ("steps", 2), ("from-step", 0)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--coded", action="store_true", help="save, or load and check, codes in the place of values")
    return parser.parse_args(words)


def main(options):
    with shardproof.float64():
        model = Model()
        if dist.get_world_size() > 1:  # on one rank its gradients are wrong (examples/upstream)
            fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",)))
        optimizer = Muon(model.named_parameters(), 0.02, options.bug)
        if options.golden:
            shardproof.load(model, options.golden)
        if options.coded and options.save:
            train(model, optimizer, options, 0)
            shardproof.coded(model, optimizer)
        if options.load:
            load(model, optimizer, options)
        if options.coded and options.load:
            shardproof.check_coded(model, optimizer)
        if not options.coded:
            rules = {"qkv.weight": shardproof.Muon(blocks=BLOCKS), "*": shardproof.Muon()}
            with shardproof.record(model, optimizer, out=options.out, matrices=rules, from_step=options.from_step):
                train(model, optimizer, options, options.from_step)
        if options.save:
            dcp.save(dict(zip(("model", "optimizer"), get_state_dict(model, optimizer))), checkpoint_id=options.save)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    dist.init_process_group("gloo")
    main(options_of())
    gc.collect()  # the groups of FSDP2 end with it here, and not while Python ends: torch 2.11 may abort then
    dist.destroy_process_group()
