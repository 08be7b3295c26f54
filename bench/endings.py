#!/usr/bin/env python3
"""How long it takes until a hang, a deadlock or a disagreement is named, on both worlds.

  bench/endings.py [PROGRAM]

Each case runs five times; the time is that of the whole case in a world made for it, less its golden,
less the same case without a fault. Limits: deadlock and disagreement at once; a hang within
world.hang_s plus one second."""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "build/release/shardproof-bin"
ROUNDS = 5
HANG_S = 2.0

SCENARIO = """
name: bench/endings
workload: train
model: {{vocab_size: 40, hidden_size: 24, intermediate_size: 40, num_attention_heads: 4, num_hidden_layers: 1}}
data: {{lengths: [6, 4]}}
seed: 4
parallel: {{data_parallel_size: 2, tensor_parallel_size: 2}}
world: {{hang_s: {hang_s}}}
matrix:
  fault:
    - {{name: first}}
    - {{name: none}}
    - {{name: disagreement, faults: [{{kind: skip, rank: 2, at_call: 2}}],
       expect: {{verdict: failed, kind: disagreement}}}}
    - {{name: deadlock, faults: [{{kind: skip, rank: 0, label: grad_norm}}],
       expect: {{verdict: failed, kind: deadlock}}}}
    - {{name: hang, faults: [{{kind: hang, rank: 3, at_call: 4}}],
       expect: {{verdict: failed, kind: hung}}}}
    - {{name: death, faults: [{{kind: kill, rank: 3, at_call: 4}}],
       expect: {{verdict: failed, kind: died}}}}
    - {{name: exception, faults: [{{kind: throw, rank: 3, at_call: 4}}],
       expect: {{verdict: failed, kind: threw}}}}
"""


def seconds_by_case(folder, backend):
    """{case: [seconds]} of one run"""
    scenario = folder / "endings.yaml"
    scenario.write_text(SCENARIO.format(hang_s=HANG_S))
    out = folder / f"run-{backend}"
    done = subprocess.run([PROGRAM, "run", scenario, "--backend", backend, "--fresh", "--out", out],
                          cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        sys.exit(done.stdout)
    cases = json.loads((out / "results.json").read_text())["cases"]
    return {case["name"].split("[")[1][:-1]: case["seconds"] - case["golden_seconds"] for case in cases}


def main():
    global PROGRAM
    if len(sys.argv) > 1:
        PROGRAM = Path(sys.argv[1]).resolve()
    print(f"world.hang_s {HANG_S:g}; seconds more than the case without a fault, median and worst of {ROUNDS}")
    late = False
    for backend in ("emulated", "gloo"):
        times = {}
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                found = seconds_by_case(Path(folder), backend)
            for name, seconds in found.items():
                times.setdefault(name, []).append(seconds - found["none"])
        for name in [name for name in times if name not in ("first", "none")]:
            limit = HANG_S + 1 if name == "hang" else 1.0
            over = max(times[name]) > limit
            late = late or over
            print(f"{backend:<9} {name:<13} {statistics.median(times[name]):7.3f} {max(times[name]):7.3f}"
                  f"   limit {limit:g}{'   OVER' if over else ''}")
    sys.exit(1 if late else 0)


if __name__ == "__main__":
    main()
