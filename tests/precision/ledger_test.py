#!/usr/bin/env python3
"""Checks that only the default scenarios of unresolved.yaml leave tensors unresolved, and none in float32 at step 1.

  ledger_test.py RUN       RUN: the folder of a run of all default scenarios, whose results are read
  ledger_test.py PROGRAM   runs the scenarios of lower precisions with this program
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
OF_NO_MODEL = {"layers", "random"}  # folders of registered workloads, which compute too little to scatter


def read_ledger():
    lines = (HERE / "unresolved.yaml").read_text().splitlines()
    found = [re.fullmatch(r"([\w/]+): (\d+)\s*(#.*)?", line) for line in lines if line and line[0] != "#"]
    return {match[1]: int(match[2]) for match in found}


def files_with_scatter():
    """Those of lower precisions, and what the ledger names of float64."""
    ledger = read_ledger()
    for path in sorted((ROOT / "scenarios").rglob("*.yaml")):
        if path.parent.name in OF_NO_MODEL:
            continue
        if f"{path.parent.name}/{path.stem}" in ledger or re.search("float32|float16", path.read_text()):
            yield path


def scenario_of(case):
    return case["name"].split("[")[0]


def run_of(program, out):
    command = [program, "run", *files_with_scatter(), "--backend", "emulated", "--out", out]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout[-3000:])
    return out


def problems(cases, ledger):
    tensors = unresolved = 0
    seen = set()
    for case in cases:
        if case["name"].split("/")[0] in OF_NO_MODEL:
            continue
        count = len({(one["tensor"], one["step"], one["phase"]) for one in case["unresolved"]})
        of_case = sum(one["tensors"] for one in case["digests"])
        tensors += of_case if case["precision"] != "float64" or count else 0
        unresolved += count
        share = 100 * count / max(1, of_case)
        seen |= {scenario_of(case)} if count else set()
        if share > ledger.get(scenario_of(case), 0):
            yield f"{case['name']}: {count} of {of_case} tensors are unresolved ({share:.1f}%)"
        for one in case["unresolved"]:
            if case["precision"] == "float32" and one["step"] <= 1:
                yield f"{case['name']}: {one['tensor']} of step {one['step']} is unresolved in float32"
    if tensors == 0:
        yield "no case of a lower precision ran"
    for name in sorted(ledger.keys() - seen):
        yield f"{name} leaves nothing unresolved: take it out of unresolved.yaml"
    print(f"{unresolved} of {tensors} tensors are unresolved, of lower precisions and of float64 where a case has any, in {len(seen)} scenarios")


def main():
    with tempfile.TemporaryDirectory() as place:
        given = pathlib.Path(sys.argv[1])
        run = given if given.is_dir() else run_of(given, pathlib.Path(place) / "run")
        cases = json.loads((run / "results.json").read_text())["cases"]
    found = list(problems(cases, read_ledger()))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
