#!/usr/bin/env python3
"""Measures how far correct runs in lower precisions lie from the golden, in units of its ensemble's scatter.

Runs random cases (draw.py), or given scenarios over many seeds, and prints for scalars, small and large
tensors the quantiles of `distance / scatter`, the false alarms and the share of tensors that are unresolved.
The rule of sim/compare/tolerance.h allows kScatters; what is measured here says how many are needed.

  python3 tests/precision/calibrate.py --random 300
  python3 tests/precision/calibrate.py --seeds 1-8 scenarios/train/precisions.yaml scenarios/policy/float16.yaml
"""

import argparse
import collections
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import draw

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = ROOT / "build/release/shardproof-bin"
EPS = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
QUANTILES = (0.5, 0.9, 0.99, 0.999)


def constant(name):
    text = (ROOT / "sim/compare/tolerance.h").read_text()
    return float(re.search(rf"{name} = ([\d.e-]+);", text)[1])


def run(arguments, out):
    command = [PROGRAM, "run", *map(str, arguments), "--backend", "emulated", "--out", str(out)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode not in (0, 1):
        sys.exit(done.stdout[-2000:])
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
        self.ratios = collections.defaultdict(list)
        self.unresolved = collections.Counter()
        self.tensors = collections.Counter()
        self.alarms, self.verdicts = [], collections.Counter()

    def add(self, case):
        self.verdicts[case["verdict"]] += 1
        if not case["as_expected"]:
            self.alarms.append(case)
        if case["precision"] == "float64":
            return
        scatters, floor = constant("kScatters"), constant("kFloorRoundings")
        for tensor in case["tensors"]:
            error, ratio = float(tensor["worst_error"]), float(tensor["worst_ratio"])
            if tensor["order"] < 0 or tensor["name"].startswith(("metric.", "fed.", "own.", "lr")):
                continue
            key = (case["precision"], kind_of(tensor))
            self.tensors[key] += 1
            scale = tensor["golden_scale"]
            allowance = math.inf if error > 0 == ratio else error / ratio if ratio else 0
            if allowance > scale / 2:
                self.unresolved[key, min(tensor["step"], 2)] += 1
            narrow = EPS["float32"] if "float32" in tensor["dtype"] else EPS[case["precision"]]
            if allowance > 1.001 * floor * narrow * scale and math.isfinite(allowance):
                self.ratios[key].append((ratio * scatters, case["name"], tensor["name"], tensor["step"]))

    def report(self):
        print("distance / scatter of correct runs; 'floor' counts tensors that are judged by the dtype's rounding")
        print(f"{'':24} {'tensors':>8} {'floor':>7} " + " ".join(f"{100 * q:>6}%" for q in QUANTILES) + "     max")
        for key in sorted(self.tensors):
            ratios = sorted(self.ratios[key])
            cells = [f"{ratios[min(len(ratios) - 1, int(q * len(ratios)))][0]:7.2f}" for q in QUANTILES] if ratios else []
            worst = f"{ratios[-1][0]:8.2f}  {ratios[-1][1]} {ratios[-1][2]} of step {ratios[-1][3]}" if ratios else ""
            print(f"{key[0]:9} {key[1]:14} {self.tensors[key]:8} {self.tensors[key] - len(ratios):7} {' '.join(cells)} {worst}")
        total = sum(self.tensors.values())
        print(f"allowance above half of the tensor's scale: {sum(self.unresolved.values())} of {total}")
        for (key, step), count in sorted(self.unresolved.items()):
            print(f"  {key[0]:9} {key[1]:14} step {'1' if step < 2 else '2 and later'}: {count} of {self.tensors[key]}")
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
