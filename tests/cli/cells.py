"""Runs of many small cases, for the tests that train the cells of all meshes: the first argument is the program, and with
--all they run all cells."""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM, ALL = Path("build/dev/shardproof-bin"), False
IN_A_FILE = 500  # so that no file is too long for the program


def run(cases, seed, *words):
    """The exit statuses, the results, and the end of what was printed."""
    statuses, results, text = set(), [], ""
    for begin in range(0, len(cases), IN_A_FILE):
        with tempfile.TemporaryDirectory() as folder:
            scenario = Path(folder) / "cells.yaml"
            some = {"name": "cells", "workload": "train", "seed": seed, "matrix": {"cell": cases[begin:begin + IN_A_FILE]}}
            scenario.write_text(json.dumps(some))
            done = subprocess.run([PROGRAM, "run", scenario, "--backend", "emulated", "--no-skips", "--out",
                                   Path(folder) / "out", *words],
                                  text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            statuses.add(done.returncode)
            text += done.stdout[-3000:]
            written = Path(folder) / "out/results.json"
            results += json.loads(written.read_text())["cases"] if written.exists() else []
    return statuses, results, text


def main():
    global PROGRAM, ALL
    if len(sys.argv) > 1:
        PROGRAM = Path(sys.argv.pop(1)).resolve()
    if "--all" in sys.argv:
        sys.argv.remove("--all")
        ALL = True
    unittest.main()
