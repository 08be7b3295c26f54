#!/usr/bin/env python3
"""Runs the twelve cases here and in the Python peer, in one go, and prints the ratios.

  bench/run.py            twelve cases: emulated, gloo, the peer with forked worlds
  bench/run.py --scale    32, 128 and 512 emulated ranks: time and peak memory of the whole command

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
PROGRAM = ROOT / "shardproof"


def timed(command, **options):
    """(seconds, exit status, standard output) of a command; its errors go to the terminal."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, **options)
    return time.perf_counter() - started, done.returncode, done.stdout


def run_ours(scenario, *options):
    """Runs one scenario file; returns the whole command's seconds and the cases of results.json."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        seconds, status, text = timed([PROGRAM, "run", scenario, "--no-cache", "--out", out, *options])
        if status != 0:
            sys.exit(f"{text}\n{scenario} {' '.join(options)}: exit status {status}")
        return seconds, json.loads((out / "results.json").read_text())["cases"]


def run_peer(script):
    python = ROOT / ".venv/bin/python"
    stand_ins = ROOT / "tests/support/cuda_stand_ins.py"
    env = dict(os.environ)
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode != 0:
        folder = subprocess.check_output([python, stand_ins, ROOT / ".venv"], text=True).strip()
        env["LD_LIBRARY_PATH"] = folder
    seconds, status, text = timed([python, ROOT / "bench" / script], env=env)
    print(text, end="", flush=True)
    if status != 0:
        sys.exit(f"{script}: exit status {status}")
    return seconds, json.loads(text.splitlines()[-1])


def per_minute(count, seconds):
    return 60 * count / seconds


def print_ours(name, seconds, cases):
    working = sum(case["seconds"] for case in cases)
    comparing = sum(case["compare_seconds"] for case in cases)
    print(f"{name:36} {per_minute(len(cases), seconds):8.1f} cases/min"
          f"   {seconds:6.2f} s whole command, {working:6.2f} s in cases,"
          f" {100 * comparing / working if working else 0:4.1f}% comparing", flush=True)
    return per_minute(len(cases), seconds)


def bench_twelve():
    rates = {}
    for backend in ("emulated", "gloo"):
        for scenario in ("bench/twelve.yaml", "bench/twelve_probed.yaml"):
            seconds, cases = run_ours(scenario, "--backend", backend)
            name = f"{backend}, {'every probe' if 'probed' in scenario else 'gradients'}"
            rates[name] = print_ours(name, seconds, cases)
    print("Python peer: DTensor over Gloo, torch loaded once, a forked world for each case")
    seconds, peer = run_peer("peer_forked.py")
    whole = per_minute(peer["cases"], seconds)
    warm = per_minute(peer["cases"], peer["case_seconds"])
    print(f"{'peer, forked worlds':36} {whole:8.1f} cases/min   {seconds:6.2f} s whole command;"
          f" {warm:.1f} cases/min without loading torch")
    for name, rate in rates.items():
        print(f"{name:36} {rate / whole:8.1f} x the peer, {rate / warm:.1f} x without loading torch")


def bench_scale():
    for ranks in (32, 128, 512):
        seconds, cases = run_ours("bench/scale.yaml", "--backend", "emulated",
                                  "--only", f"bench/scale[ranks{ranks}]")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024 ** 2
        print(f"{ranks:4} ranks  {seconds:7.2f} s whole command   {peak:5.2f} GiB in the largest process",
              flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", action="store_true")
    arguments = parser.parse_args()
    if subprocess.run([PROGRAM, "build"]).returncode != 0:
        sys.exit("shardproof does not build")
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    if arguments.scale:
        bench_scale()
    else:
        bench_twelve()


if __name__ == "__main__":
    main()
