#!/usr/bin/env python3
"""What a warm two-rank pytest case takes: the golden, the two ranks and the judge, in a session that has run one before.

    python bench/warm_case.py [--cases 20] [--program PATH]

pytest runs the same test many times, each time with a golden of its own, for a model of hand-written shards and for one
of DTensors. The first case of each is left out. Of the others the median and the best are printed, as pytest has them.
Beside them stands the same DTensor program without pytest, recorder and judge: forked on one rank and then on two, from a
process that has imported torch.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = '''
import pytest
import shardproof
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


@pytest.mark.parametrize("number", range({cases}))
@pytest.mark.layouts("tp2")
def test_hand_sharded(layout, number):
    """The first weight is cut by rows, the second by columns."""
    with shardproof.float64():
        tp = layout.sizes["tp"]
        up, down = nn.Linear(16, 64 // tp, bias=False), nn.Linear(64 // tp, 16, bias=False)
        model = nn.ModuleDict(dict(up=up, down=down))
        declared = dict([("up.weight", shardproof.Shard(0, "tp")), ("down.weight", shardproof.Shard(1, "tp"))])
        layout.load(model, layouts=declared)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with layout.record(model, optimizer, layouts=declared):
            rows = shardproof.batch(torch.arange(128.0).reshape(8, 16).sin())
            for _ in range(2):
                partial = down(up(rows).tanh())
                out = partial.detach().clone()
                dist.all_reduce(out)
                (partial * (2 * out / out.numel())).sum().backward()  # the gradient of the mean of squares
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.parametrize("number", range({cases}))
@pytest.mark.layouts("tp2")
def test_dtensor(layout, number):
    with shardproof.float64():
        model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))
        mesh = init_device_mesh("cpu", (layout.sizes["tp"],), mesh_dim_names=("tp",))
        parallelize_module(model, mesh["tp"], dict([("0", ColwiseParallel()), ("2", RowwiseParallel())]))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        layout.load(model)
        with layout.record(model, optimizer):
            rows = shardproof.batch(torch.arange(128.0).reshape(8, 16).sin())
            for _ in range(2):
                model(rows).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
'''


def seconds_of_cases(folder, cases, program):
    """Of each test, the seconds of its cases in the order in which they ran."""
    (folder / "test_warm.py").write_text(TESTS.format(cases=cases + 1))
    environment = dict(os.environ, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTHONPATH=str(ROOT / "python"))
    chosen = ["--shardproof", program] if program else []
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "shardproof.pytest_plugin", "-p", "no:cacheprovider",
               f"--basetemp={folder}/runs", f"--rootdir={folder}", f"--junit-xml={folder}/junit.xml", *chosen,
               "test_warm.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    found = {}
    for case in xml.parse(folder / "junit.xml").iter("testcase"):
        found.setdefault(case.get("name").split("[")[0], []).append(float(case.get("time")))
    return found


BARE = '''
import gc
import json
import os
import sys
import tempfile
import time
import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def rank_main(rank, size, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{{folder}}/{{size}}", rank=rank, world_size=size)
    torch.set_default_dtype(torch.float64)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    parallelize_module(model, mesh["tp"], dict([("0", ColwiseParallel()), ("2", RowwiseParallel())]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = torch.arange(128.0).reshape(8, 16).sin()
    for _ in range(2):
        model(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def forked(size, folder):
    ranks = []
    for rank in range(size):
        ranks.append(os.fork())
        if not ranks[-1]:
            rank_main(rank, size, folder)
            os._exit(0)
    for pid in ranks:
        if os.waitpid(pid, 0)[1]:
            sys.exit("a rank has failed")


torch.set_num_threads(1)
gc.collect()
gc.freeze()
seconds = []
for _ in range({cases} + 1):
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        forked(1, folder)
        forked(2, folder)
        seconds.append(time.perf_counter() - start)
print(json.dumps(seconds))
'''


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--program", help="the program that judges; else the one that the plugin finds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = seconds_of_cases(Path(folder), options.cases, options.program)
    bare = subprocess.run([sys.executable, "-c", BARE.format(cases=options.cases)], capture_output=True, text=True, check=True)
    found["test_dtensor's program alone"] = json.loads(bare.stdout.splitlines()[-1])
    print(f"| test | median of {options.cases}, s | best, s | first, s |\n|---|---|---|---|")
    for name, (first, *others) in found.items():
        print(f"| {name} | {statistics.median(others):.3f} | {min(others):.3f} | {first:.3f} |")
    print("load:", *os.getloadavg())


if __name__ == "__main__":
    main()
