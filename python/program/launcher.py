"""The command `shardproof` of the wheel that ./shardproof package makes: starts the program beside this file."""

import os
import sys
from importlib import metadata
from pathlib import Path

BUILT_WITH = "@torch@"  # the version of LibTorch


def wrong_torch(here):
    """Why the program cannot start; None when it can."""
    fix = f"install it beside shardproof-program: {sys.executable} -m pip install torch=={BUILT_WITH}"
    if not (here.parent / "torch/lib/libtorch_cpu.so").exists():
        return f"the Python package torch, which holds LibTorch, is not in {here.parent}; {fix}"
    version = metadata.version("torch")
    if version.partition("+")[0] != BUILT_WITH:
        return f"the installed torch is {version}, and the program is built with LibTorch {BUILT_WITH}; {fix}"
    return None


def main():
    here = Path(__file__).resolve().parent
    wrong = wrong_torch(here)
    if wrong:
        print(f"shardproof: {wrong}", file=sys.stderr)
        return 2
    # `report` starts python3, which is to be the one that has matplotlib.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    os.execv(here / "shardproof-bin", ["shardproof", *sys.argv[1:]])
