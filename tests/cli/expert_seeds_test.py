#!/usr/bin/env python3
"""Runs the scenarios of experts with other seeds: no case may end otherwise than its scenario expects, but those that are
refused because near scores of a router, or near weights within a capacity, leave the choice to roundings; fewer than one of
a hundred.

  expert_seeds_test.py PROGRAM [--seeds N] [--first SEED] [--shard I/N] [--keep FOLDER]

Default: 50 seeds from 1000 on. With --shard 2/5, every fifth of the seeds, from the second on. --keep leaves the runs of
seeds with an alarm there. It prints a line for each seed.
"""
import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARGIN = "so that roundings could decide"


def run(program, seed, folder):
    """The results of all cases of the scenarios with this seed."""
    done = subprocess.run([program, "run", ROOT / "scenarios/ep", "--seed", str(seed), "--backend", "emulated", "--quiet",
                           "--keep", "unexpected", "--out", folder],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    written = folder / "results.json"
    if not written.exists():
        sys.exit(f"seed {seed}: exit status {done.returncode} without results\n{done.stdout[-3000:]}")
    return json.loads(written.read_text())["cases"]


def is_near(case):
    return case["verdict"] == "refused" and MARGIN in case["message"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=Path)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--shard", default="1/1")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    part, parts = map(int, options.shard.split("/"))
    alarms = cases = refused = 0
    for seed in range(options.first + part - 1, options.first + options.seeds, parts):
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            results = run(options.program.resolve(), seed, Path(folder) / "out")
            wrong = [case for case in results if not case["as_expected"]]
            near = [case for case in wrong if is_near(case)]
            wrong = [case for case in wrong if case not in near]
            if wrong and options.keep:
                shutil.copytree(Path(folder) / "out", options.keep / f"seed_{seed}")
        cases, refused, alarms = cases + len(results), refused + len(near), alarms + len(wrong)
        print(f"seed {seed}: {len(results) - len(near) - len(wrong)} of {len(results)} cases as expected, {len(near)} refused "
              f"for near scores, {len(wrong)} alarms; {time.monotonic() - start:.0f} s", flush=True)
        for case in wrong:
            print(f"  {case['name']}: {case['verdict']}: {case['message'][:400]}", flush=True)
    print(f"{cases} cases: {refused} refused for near scores, {alarms} alarms")
    if alarms > 0 or refused * 100 > cases:
        sys.exit(1)


if __name__ == "__main__":
    main()
