#!/usr/bin/env python3
"""Logprobs over a sharded vocabulary beside the reference algorithm in Python, and ring attention beside
one device.

  bench/sequences.py                  both; builds shardproof-bench-sequences
  bench/sequences.py --program FILE   a binary of another build, which is then not built here

Forward and backward at B 1, S 4096, V 32768, two ranks over Gloo with one thread each; the fastest of five
rounds, the slower rank. CPU time is what a rank's own thread computes, whatever else the machine does.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from run import RELEASE, ROOT, run_peer_lines


def lines_of(command):
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def print_logprobs(program):
    peers = {line["dtype"]: line for line in run_peer_lines("logprob_peer.py")}
    for ours in lines_of([program, "logprob"]):
        peer = peers[ours["dtype"]]
        print(f"logprobs, {ours['dtype']:8}  {ours['wall_ms']:6.0f} ms, CPU {ours['cpu_ms']:6.0f};"
              f" the peer {peer['wall_ms']:6.0f} ms, CPU {peer['cpu_ms']:6.0f}:"
              f" {peer['wall_ms'] / ours['wall_ms']:.1f} and {peer['cpu_ms'] / ours['cpu_ms']:.1f} times as fast"
              f" (4); peak growth {100 * ours['train_growth']:.0f}% of the shard (115),"
              f" scoring {100 * ours['inference_growth']:.1f}% (15);"
              f" error {ours['error']:.1e} (1e-5), the peer's {peer['error']:.1e}", flush=True)


def print_rings(program):
    for ring in lines_of([program, "ring"]):
        ratio = ring["four_ranks_cpu_s"] / ring["one_device_cpu_s"]
        print(f"ring attention, {ring['rotation']:10}  four ranks {ring['four_ranks_cpu_s']:.2f} CPU s,"
              f" one device {ring['one_device_cpu_s']:.2f}: {ratio:.2f} times (1.25)", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path)
    arguments = parser.parse_args()
    program = arguments.program or RELEASE / "shardproof-bench-sequences"
    if not arguments.program:
        built = subprocess.run(["ninja", "-C", RELEASE, program.name], stdout=subprocess.DEVNULL)
        if built.returncode != 0:
            sys.exit("bench/sequences.cpp does not build; run ./shardproof build first")
    print_logprobs(program.resolve())
    print_rings(program.resolve())


if __name__ == "__main__":
    main()
