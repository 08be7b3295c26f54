#!/usr/bin/env python3
"""What recording costs: a 3-layer Llama over tp 2, steps without and with a recorder in turns.

    PYTHONPATH=python python bench/recording.py [--steps 50] [--profile MODE]

Each rank has one model per mode, all with the same weights. Their steps take turns, so that other jobs of the machine
slow all of them alike. Of each mode the median and the best are printed, and the median of its ratios to the step without
a recorder of the same turn; "off again" shows how far that can be trusted. The CPU time of rank 0 is compared in the same
way: other jobs change it less. Files are written at the end, which is measured apart.
"""

import argparse
import cProfile
import os
import pstats
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples" / "dtensor_fsdp2")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import shardproof  # noqa: E402
import train  # noqa: E402

MODES = {"off": None, "off again": None, "gradients": {}, "gradients and hashes": {"hashes": "*"},
         "gradients and activations": {"activations": "*"}}
RANKS = 2
CONFIG = train.Config(vocabulary=512, dim=128, hidden=384, layers=3, heads=8, kv_heads=4, length=64, rows=8)


class Mode:
    """A model, and its recorder."""

    def __init__(self, options, tp, folder):
        torch.manual_seed(0)
        self.model = train.Llama(CONFIG)
        train.parallelize(self.model, tp)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.recorder = None if options is None else shardproof.record(self.model, self.optimizer, out=folder, **options)
        self.seconds, self.worked = [], []

    def step(self, tokens, targets, profile=None):
        dist.barrier()
        if profile:
            profile.enable()
        start, worked = time.perf_counter(), time.process_time()
        logits = self.model(tokens)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seconds.append(time.perf_counter() - start)
        self.worked.append(time.process_time() - worked)
        if profile:
            profile.disable()


def measure(rank, ranks, folder, options):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", ranks), rank=rank, world_size=ranks)
    modes = {name: Mode(given, ranks, f"{folder}/{number}") for number, (name, given) in enumerate(MODES.items())}
    profile = cProfile.Profile() if options.profile else None
    for step in range(options.steps + 3):
        tokens, targets = train.global_batch(CONFIG, step)
        order = list(modes)[step % len(modes):] + list(modes)[:step % len(modes)]  # the first of a turn is slower
        for name in order:
            mode = modes[name]
            mode.step(tokens, targets, profile if name == options.profile and step >= 3 else None)
    written = {}
    for name, mode in modes.items():
        if mode.recorder:
            start = time.perf_counter()
            mode.recorder.close()
            written[name] = time.perf_counter() - start
    if rank == 0:
        report({name: mode.seconds[3:] for name, mode in modes.items()},
               {name: mode.worked[3:] for name, mode in modes.items()}, written)
        if profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    dist.barrier()
    dist.destroy_process_group()


def report(seconds, worked, written):
    print("| mode | ms a step | best | ratio to off | CPU ms a step | ratio to off | ms to write |\n" + "|---" * 7 + "|")
    for name in seconds:
        end = f"{1e3 * written[name]:.0f}" if name in written else ""
        print(f"| {name} | {1e3 * statistics.median(seconds[name]):.1f} | {1e3 * min(seconds[name]):.1f} | "
              f"{ratio(seconds, name):.3f} | {1e3 * statistics.median(worked[name]):.1f} | {ratio(worked, name):.3f} | {end} |")
    print("load:", *os.getloadavg(), flush=True)


def ratio(found, name):
    return statistics.median(one / off for one, off in zip(found[name], found["off"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--profile", metavar="MODE", help="where the steps of this mode spend their time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(RANKS):
            child = os.fork()
            if not child:
                status = 1
                try:
                    measure(rank, RANKS, folder, options)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    os._exit(status)
            children.append(child)
        sys.exit(any([os.waitpid(child, 0)[1] for child in children]))


if __name__ == "__main__":
    main()
