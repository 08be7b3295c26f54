#!/usr/bin/env python3
"""Runs the benchmarks of this folder and prints their figures beside what they are held against.

  bench/run.py            twelve cases: emulated, gloo, the peer with forked worlds, the ratios, and
                          what a case costs beyond its bare arithmetic
  bench/run.py --scale    32, 128 and 512 emulated ranks: time and peak memory of the whole command
  bench/run.py --start    a judged world's start, the script's own time, the default scenarios' pace

  --program FILE --bounds FILE    binaries of another build, which are then not built here

Run it on an idle machine. Nothing here is asserted; tests never depend on wall time.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "shardproof"
RELEASE = ROOT / "build/release"

# One judged case that is as small as a case can be: what remains is the start of everything.
SMALLEST = """
name: smallest
workload: train
model: {vocab_size: 8, hidden_size: 8, intermediate_size: 8, num_attention_heads: 2, num_hidden_layers: 1}
data: {batch_size: 2, sequence_length: 4}
parallel: {tensor_parallel_size: 2}
"""


def timed(command, **options):
    """(seconds, exit status, standard output) of a command; its errors go to the terminal."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, **options)
    return time.perf_counter() - started, done.returncode, done.stdout


def best_of(count, command):
    """Seconds of the fastest of `count` runs."""
    runs = [timed(command) for _ in range(count)]
    for _, status, text in runs:
        if status != 0:
            sys.exit(f"{text}\n{' '.join(map(str, command))}: exit status {status}")
    return min(seconds for seconds, _, _ in runs)


def run_ours(program, scenario, *options):
    """Runs one scenario file; returns the whole command's seconds and the cases of results.json."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [program, "run", scenario, "--no-cache", "--out", out, *options]
        seconds, status, text = timed(command)
        if status != 0:
            sys.exit(f"{text}\n{scenario} {' '.join(options)}: exit status {status}")
        return seconds, json.loads((out / "results.json").read_text())["cases"]


def peer_command(script):
    """What runs a Python peer, and its environment."""
    python = ROOT / ".venv/bin/python"
    stand_ins = ROOT / "tests/support/cuda_stand_ins.py"
    env = dict(os.environ)
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode != 0:
        folder = subprocess.check_output([python, stand_ins, ROOT / ".venv"], text=True).strip()
        env["LD_LIBRARY_PATH"] = folder
    return [python, ROOT / "bench" / script], env


def run_peer_lines(script):
    """What a peer prints, line by line, as JSON."""
    command, env = peer_command(script)
    _, status, text = timed(command, env=env)
    if status != 0:
        sys.exit(f"{script}: exit status {status}")
    return [json.loads(line) for line in text.splitlines()]


def run_peer(script):
    command, env = peer_command(script)
    seconds, status, text = timed(command, env=env)
    print(text, end="", flush=True)
    if status != 0:
        sys.exit(f"{script}: exit status {status}")
    return seconds, json.loads(text.splitlines()[-1])


def per_minute(count, seconds):
    return 60 * count / seconds


def in_ranks(case):
    """What a case took apart from computing its golden, which later cases share."""
    return case["seconds"] - case["golden_seconds"]


def print_ours(name, seconds, cases):
    working = sum(in_ranks(case) for case in cases)
    comparing = sum(case["compare_seconds"] for case in cases)
    print(f"{name:36} {per_minute(len(cases), seconds):8.1f} cases/min"
          f"   {seconds:6.2f} s whole command, {working:6.2f} s in ranks,"
          f" {100 * comparing / working if working else 0:4.1f}% comparing", flush=True)
    return per_minute(len(cases), seconds)


def print_beyond_bounds(bounds, runs):
    """What the worlds add to the arithmetic, and what they may add."""
    text = subprocess.check_output([bounds, "arithmetic", "bench/twelve.yaml"], cwd=ROOT, text=True)
    bare = {line["case"]: line for line in map(json.loads, text.splitlines())}
    gloo_call = float(subprocess.check_output([bounds, "gloo", "4"], text=True))
    cores = os.cpu_count()
    print(f"bare arithmetic of the twelve cases, ranks one after another, each collective a local copy:"
          f" {sum(line['seconds'] for line in bare.values()):.2f} s, on {cores} cores"
          f" {sum(line['seconds'] for line in bare.values()) / cores:.2f} s;"
          f" a bare Gloo all_reduce of 256 KiB over 4 ranks {gloo_call * 1e3:.2f} ms")
    shares = []
    for name, cases in runs.items():
        print(f"{name}: seconds beyond the arithmetic (allowed)")
        for case in cases:
            line = bare[case["name"].replace("twelve_probed", "twelve")]
            allowed = 0.1 + (line["collectives"] * gloo_call if "gloo" in name else 0)
            beyond = in_ranks(case) - line["seconds"] / cores
            print(f"  {case['name']:40} {beyond:6.3f} ({allowed:.3f})  {line['collectives']:4} collectives"
                  f"{'' if beyond <= allowed else '   OVER'}")
            shares.append(beyond / allowed)
    print(f"{len(shares)} cases: {sum(share > 1 for share in shares)} over what is allowed,"
          f" {sum(share > 2 for share in shares)} over twice that")


def bench_twelve(program, bounds):
    rates, runs = {}, {}
    for backend in ("emulated", "gloo"):
        for scenario in ("bench/twelve.yaml", "bench/twelve_probed.yaml"):
            seconds, cases = run_ours(program, scenario, "--backend", backend)
            name = f"{backend}, {'every probe' if 'probed' in scenario else 'gradients'}"
            rates[name] = print_ours(name, seconds, cases)
            # A case has all cores to itself here, as its arithmetic is counted.
            runs[name] = run_ours(program, scenario, "--backend", backend, "--jobs", "1")[1]
    print_beyond_bounds(bounds, runs)
    print("Python peer: DTensor over Gloo, torch loaded once, a forked world for each case")
    seconds, peer = run_peer("peer_forked.py")
    whole = per_minute(peer["cases"], seconds)
    warm = per_minute(peer["cases"], peer["case_seconds"])
    print(f"{'peer, forked worlds':36} {whole:8.1f} cases/min   {seconds:6.2f} s whole command;"
          f" {warm:.1f} cases/min without loading torch")
    for name, rate in rates.items():
        print(f"{name:36} {rate / whole:8.1f} x the peer, {rate / warm:.1f} x without loading torch")


def bench_scale(program):
    empty_mib = resource_peak_mib([program, "run", "bench/scale.yaml", "--backend", "emulated",
                                   "--only", "bench/scale[ranks2]", "--no-cache"])
    print(f"   2 ranks of a model of no size: {empty_mib:.0f} MiB in the largest process", flush=True)
    for ranks in (32, 128, 512):
        seconds, cases = run_ours(program, "bench/scale.yaml", "--backend", "emulated",
                                  "--only", f"bench/scale[ranks{ranks}]")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        own = sum(rank["peak_tensor_bytes"] for rank in cases[0]["ranks"]) / 2 ** 20
        print(f"{ranks:4} ranks  {seconds:7.2f} s whole command   {peak / 1024:5.2f} GiB in the largest"
              f" process, {peak - empty_mib:5.0f} MiB more than with no model; the ranks' own peaks"
              f" together {own:5.0f} MiB", flush=True)


def resource_peak_mib(command):
    with tempfile.TemporaryDirectory() as folder:
        _, status, text = timed([*command, "--out", Path(folder) / "run"])
    if status != 0:
        sys.exit(f"{text}\nexit status {status}")
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def bench_start(program, bounds):
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "smallest.yaml"
        scenario.write_text(SMALLEST)
        bare = best_of(7, [bounds, "start"])
        print(f"a bare C++ program that links LibTorch     {bare * 1e3:6.0f} ms")
        for backend in ("emulated", "gloo"):
            judged = best_of(7, [program, "run", scenario, "--backend", backend, "--no-cache",
                                 "--out", Path(folder) / "run"])
            print(f"one judged case of 2 ranks, {backend:8}       {judged * 1e3:6.0f} ms (400)")
        version = best_of(20, [program, "--version"])
        if program == RELEASE / "shardproof-bin":
            script = best_of(20, [SCRIPT, "--version"])
            print(f"the script ./shardproof adds                {(script - version) * 1e3:6.0f} ms (50)")
        for backend in ("emulated", "gloo"):
            seconds, cases = run_ours(program, "scenarios", "--backend", backend)
            print(f"default scenarios, {backend:8}                {len(cases) / (seconds - bare):6.1f} cases/s"
                  f" ({len(cases)} cases, {seconds:.1f} s)", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", action="store_true")
    parser.add_argument("--start", action="store_true")
    parser.add_argument("--program", type=Path, default=RELEASE / "shardproof-bin")
    parser.add_argument("--bounds", type=Path, default=RELEASE / "shardproof-bench")
    arguments = parser.parse_args()
    if arguments.program == RELEASE / "shardproof-bin":
        if (subprocess.run([SCRIPT, "build"]).returncode != 0
                or subprocess.run(["ninja", "-C", RELEASE, "shardproof-bench"],
                                  stdout=subprocess.DEVNULL).returncode != 0):
            sys.exit("shardproof does not build")
    program, bounds = arguments.program.resolve(), arguments.bounds.resolve()
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    if arguments.scale:
        bench_scale(program)
    elif arguments.start:
        bench_start(program, bounds)
    else:
        bench_twelve(program, bounds)


if __name__ == "__main__":
    main()
