#!/usr/bin/env python3
"""The Python peer of bench/training.py: PyTorch's DTensor and FSDP2 at dp 2 x tp 2 over Gloo.

A Llama is cut over tp with parallelize_module (sequence parallel), then over dp with fully_shard, one
unit a layer and a root; one rank is one freshly spawned process, as PyTorch's own multi-process tests
start theirs. A step: forward, backward, gradient norm and clipping, AdamW, float32.

  peer_fsdp2.py MODEL step [STEPS]   seconds of a step, bytes held and peak of tensor memory, per rank
  peer_fsdp2.py MODEL check          one step; every gradient compared with a single device in float32
  peer_fsdp2.py MODEL check64        the same with the reference in float64, and the error of the one in
                                     float32 beside it as the measure of rounding

MODEL is a name of peer_model.MODELS. Prints one line of JSON. Where there was a choice the faster way was
taken for the peer: nothing is recorded, golden slices are cut without communication, weights are not
broadcast.
"""

import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

STARTED = time.perf_counter()

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel

from peer_model import Sizes, batch_of, free_port, seeded_model, shard_over_tp, summed_loss

DP = TP = 2
MAX_NORM = 1.0


class Rank:
    """One rank's model, batch and optimizer."""

    def __init__(self, sizes):
        self.sizes = sizes
        mesh = init_device_mesh("cpu", (DP, TP), mesh_dim_names=("dp", "tp"))
        self.model = seeded_model(sizes)
        shard_over_tp(self.model, mesh["tp"], sequence_parallel=True)
        for layer in self.model.layers:
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(self.model, mesh=mesh["dp"])
        self.ids, self.targets = batch_of(sizes, mesh.get_local_rank("dp"), DP)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=False)

    def backward(self):
        with loss_parallel():
            # fully_shard averages over dp.
            (summed_loss(self.model, self.sizes, self.ids, self.targets) * DP).backward()

    def step(self):
        self.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM, foreach=False)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def held_bytes(self):
        """Parameters, gradients and optimizer state between backward and step; what several share once."""
        local = lambda tensor: tensor.to_local() if hasattr(tensor, "to_local") else tensor
        tensors = list(self.model.parameters())
        tensors += [p.grad for p in self.model.parameters() if p.grad is not None]
        for state in self.optimizer.state.values():
            tensors += [state["exp_avg"], state["exp_avg_sq"]]
        storages = [local(tensor).untyped_storage() for tensor in tensors]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def peak_of(work):
    """The most bytes of CPU tensors that `work` holds beyond what there was before it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU],
                                profile_memory=True) as profile:
        work()
    changes = [(event.start_ns(), event.nbytes()) for event in profile.profiler.kineto_results.events()
               if event.name() == "[memory]"]
    held = peak = 0
    for _, change in sorted(changes, key=lambda change: change[0]):
        held += change
        peak = max(peak, held)
    return peak


def measure(rank, steps):
    rank.step()
    rank.step()
    dist.barrier()
    started = time.perf_counter()
    for _ in range(steps):
        rank.step()
    dist.barrier()
    seconds = (time.perf_counter() - started) / steps
    rank.backward()
    held = rank.held_bytes()
    rank.optimizer.step()
    rank.optimizer.zero_grad()
    gradients = sum(p.to_local().nbytes for p in rank.model.parameters())
    return {"step_seconds": seconds, "held_bytes": held,
            "peak_bytes": held - gradients + peak_of(rank.step)}


def check(rank, golden_file):
    """How many gradients are wrong. The golden's slice is cut without communication."""
    golden = torch.load(golden_file, mmap=True)
    rank.backward()
    wrong = 0
    for name, parameter in rank.model.named_parameters():
        whole = golden[name]
        expected = distribute_tensor(whole, parameter.device_mesh, parameter.placements,
                                     src_data_rank=None).to_local()
        actual = parameter.grad.to_local()
        if actual.numel() == 0:
            continue
        error = (actual - expected).abs().max().item()
        if not error <= 1e-4 * whole.abs().max().item():
            print(f"wrong: {name}, error {error}", file=sys.stderr)
            wrong += 1
    rank.optimizer.step()
    return {"wrong": wrong, "compared": len(golden)}


def run_rank(index, port, name, what, argument, results):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(index),
                      WORLD_SIZE=str(DP * TP), LOCAL_RANK=str(index))
    dist.init_process_group("gloo")
    rank = Rank(Sizes(name))
    results[index] = measure(rank, argument) if what == "step" else check(rank, argument)
    dist.destroy_process_group()


def gradients_of(model, sizes):
    torch.set_num_threads(1)
    summed_loss(model, sizes, *batch_of(sizes, 0, 1)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def write_golden(name, file, in_float64):
    sizes = Sizes(name)
    if not in_float64:
        torch.save(gradients_of(seeded_model(sizes), sizes), file)
        return
    models = [seeded_model(sizes, dtype) for dtype in (torch.float64, torch.float32)]
    with ThreadPoolExecutor() as both:  # side by side: the faster way
        wide, narrow = both.map(lambda model: gradients_of(model, sizes), models)
    for name, gradient in wide.items():
        rounding = (narrow.pop(name) - gradient).abs().max()
        assert rounding <= 1e-4 * gradient.abs().max(), name
    torch.save(wide, file)


def main():
    name, what = sys.argv[1:3]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        argument = int(sys.argv[3]) if what == "step" else f"{folder}/golden.pt"
        if what != "step":
            write_golden(name, argument, in_float64=what == "check64")
        results = multiprocessing.Manager().dict()
        multiprocessing.spawn(run_rank, (free_port(), name, what, argument, results), nprocs=DP * TP)
        ranks = [results[index] for index in range(DP * TP)]
    print(json.dumps({"ranks": ranks, "seconds": time.perf_counter() - STARTED}))
    sys.exit(1 if any(rank.get("wrong") for rank in ranks) else 0)


if __name__ == "__main__":
    main()
