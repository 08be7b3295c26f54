#!/usr/bin/env python3
"""What the backend shardproof costs beside plain Gloo and beside TORCH_DISTRIBUTED_DEBUG=DETAIL.

    PYTHONPATH=python python bench/backend.py [--ranks 2] [--calls 300] [--rounds 5]

The three take turns, so that other jobs of the machine slow all of them alike; of each the median
of its rounds is printed, in microseconds per call, and its ratio to plain Gloo.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist

import shardproof.backend

BACKENDS = {"gloo": ("gloo", "OFF"), "DETAIL": ("gloo", "DETAIL"), "shardproof": ("shardproof", "OFF")}
SIZES = {"128 B": 32, "1 MiB": 262144}


def call(kind, tensor, gathered):
    if kind == "all_reduce":
        dist.all_reduce(tensor)
    elif kind == "all_reduce, async":
        dist.all_reduce(tensor, async_op=True).wait()
    else:
        dist.all_gather_into_tensor(gathered, tensor)


def measure(rank, ranks, backend, store, calls):
    """{kind, size: microseconds per call} on this rank."""
    torch.set_num_threads(1)
    dist.init_process_group(backend, store=dist.FileStore(store, ranks), rank=rank,
                            world_size=ranks)
    times = {}
    for kind in ("all_reduce", "all_reduce, async", "all_gather_into_tensor"):
        for size, elements in SIZES.items():
            tensor, gathered = torch.ones(elements), torch.ones(elements * ranks)
            count = calls if elements < 1000 else max(1, calls // 10)
            for _ in range(10):
                call(kind, tensor, gathered)
            tensor.fill_(1)
            dist.barrier()
            start = time.perf_counter()
            for _ in range(count):
                call(kind, tensor, gathered)
            times[f"{kind} {size}"] = (time.perf_counter() - start) / count * 1e6
    dist.destroy_process_group()
    return times


def forked(ranks, name, calls, folder):
    """One world of `ranks` processes; returns the times of rank 0."""
    backend, detail = BACKENDS[name]
    store, result = os.path.join(folder, "store"), os.path.join(folder, "times.json")
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            try:
                os.environ["TORCH_DISTRIBUTED_DEBUG"] = detail
                dist.set_debug_level_from_env()
                times = measure(rank, ranks, backend, store, calls)
                if rank == 0:
                    with open(result, "w") as file:
                        json.dump(times, file)
                os._exit(0)
            except BaseException as error:
                print(f"rank {rank}: {error}", file=sys.stderr)
                os._exit(1)
        children.append(child)
    if any([os.waitpid(child, 0)[1] for child in children]):
        sys.exit(f"a rank of {name} failed; its error is above")
    with open(result) as file:
        return json.load(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    shardproof.backend.extension()
    rounds = []
    for _ in range(options.rounds):
        row = {}
        for name in BACKENDS:
            with tempfile.TemporaryDirectory() as folder:
                row[name] = forked(options.ranks, name, options.calls, folder)
        rounds.append(row)
    print(f"{options.ranks} ranks, {os.cpu_count()} cores, median of {options.rounds} rounds, "
          f"torch {torch.__version__}")
    print(f"{'us per call':32}" + "".join(f"{name:>20}" for name in BACKENDS))
    for key in rounds[0]["gloo"]:
        medians = {name: statistics.median(row[name][key] for row in rounds) for name in BACKENDS}
        cells = "".join(f"{medians[name]:11.0f} ({medians[name] / medians['gloo']:5.2f}x)"
                        for name in BACKENDS)
        print(f"{key:32}{cells}")


if __name__ == "__main__":
    main()
