#!/usr/bin/env python3
"""Runs the tests of one folder with a Python that has torch. Usage: run.py FOLDER PATTERN [PROGRAM]

Exits with 77, "skipped", where torch cannot be imported: LibTorch from another place (--torch DIR) has no Python. The
checking backend is an extension, and its tests are also skipped where Python's headers are missing; those of the plugin,
where pytest is. Tests of frameworks take the Pythons that SHARDPROOF_FRAMEWORKS names, separated by colons, each in turn:
no one of them can have all frameworks.
"""
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import loaded  # noqa: E402

SKIPPED = 77
HEADERS = "import sysconfig, os; open(os.path.join(sysconfig.get_paths()['include'], 'Python.h'))"


def environment(program):
    """LibTorch's wheel names CUDA libraries that .venv does not have; stand-ins for them are made once."""
    found = dict(os.environ, OMP_NUM_THREADS="1")
    venv = ROOT / ".venv"
    if any(venv.glob("lib/python3*/site-packages/torch/lib")):
        stand_ins = subprocess.run([sys.executable, "-B", ROOT / "tests/support/cuda_stand_ins.py", venv], text=True,
                                   stdout=subprocess.PIPE, check=True).stdout.strip()
        found["LD_LIBRARY_PATH"] = ":".join(filter(None, [stand_ins, found.get("LD_LIBRARY_PATH")]))
    if program:
        call = loaded.call([str(Path(program).resolve())], found)
        found = dict(call["env"], SHARDPROOF_PROGRAM=call.get("executable", call["args"][0]))
    return found


NEEDS = {"backend": "; " + HEADERS, "plugin": "; import pytest"}  # by folder, beside torch


def pythons(folder):
    """The Pythons that run the tests of a folder."""
    named = [name for name in os.environ.get("SHARDPROOF_FRAMEWORKS", "").split(":") if name]
    if folder == "frameworks" and named:
        return named
    own = ROOT / ".venv" / "bin" / "python"
    return [str(own) if own.is_file() else sys.executable]


def main(folder, pattern, program=None):
    folder = Path(folder).resolve()
    found = environment(program)
    statuses = {run(python, folder, pattern, found) for python in pythons(folder.name)}
    failed = statuses - {0, SKIPPED}
    return failed.pop() if failed else min(statuses)


def run(python, folder, pattern, found):
    needs = "import torch" + NEEDS.get(folder.name, "")
    tried = subprocess.run([python, "-c", needs], env=found, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        print(f"{python} lacks what these tests need: {tried.stderr.strip().splitlines()[-1]}", flush=True)
        return SKIPPED
    said = ["-v"] if folder.name == "frameworks" else []  # what is skipped, and why
    return subprocess.run([python, "-B", "-m", "unittest", "discover", *said, "-s", folder, "-p", pattern], env=found,
                          cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
