#!/usr/bin/env python3
"""Measures the rule for lower precisions (sim/judge/diff/tolerance.h) on correct runs.

Runs random, untuned cases (draw.py), or given scenarios over many seeds. Prints the share of the allowance that
correct runs use, the cases that are false alarms, and the number of unresolved tensors.

  python3 tests/precision/calibrate.py --random 300
  python3 tests/precision/calibrate.py --seeds 1-8 scenarios/train/precisions.yaml scenarios/policy/float16.yaml
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import draw

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = ROOT / "build/release/shardproof-bin"
QUANTILES = (0.5, 0.9, 0.99, 0.999)


def run(arguments, out, statuses=(0, 1)):
    command = [PROGRAM, "run", *map(str, arguments), "--backend", "emulated", "--keep", "all", "--out", str(out)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode not in statuses:
        told = [line for line in done.stdout.splitlines() if not line.startswith(("match ", "refused "))]
        sys.exit("\n".join(told[-60:]))
    return json.loads((out / "results.json").read_text())["cases"]


def kind_of(tensor):
    first = tensor["name"].split(".")[0]
    if first in ("loss", "grad_norm"):
        return "scalar"
    if first in ("param", "exp_avg", "exp_avg_sq", "momentum_buffer"):
        return "state"
    return "vector" if tensor["name"].endswith(("norm.weight", "bias")) else "tensor"


class Measured:
    def __init__(self):
        self.used = collections.defaultdict(list)
        self.unresolved = collections.Counter()
        self.alarms, self.verdicts = [], collections.Counter()

    def add(self, case):
        self.verdicts[case["verdict"]] += 1
        if not case["as_expected"]:
            self.alarms.append(case)
        if case["precision"] == "float64":
            return
        for tensor in case["tensors"]:
            if tensor["order"] < 0 or tensor["name"].startswith(("metric.", "fed.", "lr")):
                continue
            key = (case["precision"], kind_of(tensor), 1 if tensor["step"] < 2 else 2)
            self.unresolved[key] += tensor["outcome"] == "unresolved"
            self.used[key].append((float(tensor["worst_ratio"]), f"{case['name']} {tensor['name']} of step {tensor['step']}"))

    def report(self):
        print("share of the allowance that correct runs use, and tensors that their precision cannot resolve")
        print(f"{'':29}{'tensors':>8} {'unresolved':>11} " + " ".join(f"{100 * q:>6}%" for q in QUANTILES) + "    max")
        for key in sorted(self.used):
            used = sorted(self.used[key])
            cells = " ".join(f"{used[min(len(used) - 1, int(q * len(used)))][0]:7.3f}" for q in QUANTILES)
            steps = "step 1" if key[2] == 1 else "later"
            print(f"{key[0]:9} {key[1]:9} {steps:8} {len(used):8} {self.unresolved[key]:11} {cells} {used[-1][0]:6.3f}  {used[-1][1]}")
        total, unresolved = sum(map(len, self.used.values())), sum(self.unresolved.values())
        print(f"unresolved: {unresolved} of {total} tensors ({100 * unresolved / max(1, total):.2f}%)")
        print("verdicts: " + ", ".join(f"{count} {verdict}" for verdict, count in self.verdicts.items()))
        for case in self.alarms:
            print(f"  not as expected: {case['name']} (seed {case['seed']}): {case['message'][:300]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*")
    parser.add_argument("--seeds", default="1-4", help="of the scenarios: A-B")
    parser.add_argument("--random", type=int, default=0, help="so many random cases instead")
    parser.add_argument("--first", type=int, default=0, help="the first random case")
    parser.add_argument("--precision", help="only this one")
    parser.add_argument("--keep", type=pathlib.Path, help="keep the random scenarios in this folder")
    arguments = parser.parse_args()
    measured = Measured()
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        if arguments.random:
            folder = arguments.keep or place / "scenarios"
            folder.mkdir(parents=True, exist_ok=True)
            precisions = [arguments.precision] if arguments.precision else draw.PRECISIONS
            draw.write_cases(folder, range(arguments.first, arguments.first + arguments.random), precisions)
            for case in run([folder], place / "run"):
                measured.add(case)
        else:
            first, last = map(int, arguments.seeds.split("-"))
            for seed in range(first, last + 1):
                for case in run([*arguments.scenarios, "--seed", seed], place / f"run{seed}"):
                    measured.add(case)
    measured.report()
    return 1 if measured.alarms else 0


if __name__ == "__main__":
    sys.exit(main())
