"""The command `shardproof` of the wheel that ./shardproof package makes: starts the program beside this file."""

import os
import resource
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


def too_little_memory():
    """With less, the loader of shared libraries ends the program before it can say why. None: it is enough."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY or limit >= 450 << 20:
        return None
    return ("memory runs out: LibTorch needs at least 450 MiB of address space to be loaded, and its limit is "
            f"{limit >> 20} MiB (ulimit -v); raise the limit")


def main():
    here = Path(__file__).resolve().parent
    wrong = wrong_torch(here) or too_little_memory()
    if wrong:
        print(f"shardproof: {wrong}", file=sys.stderr)
        return 2
    # `report` starts python3, which is to be the one that has matplotlib.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    os.execv(here / "shardproof-bin", ["shardproof", *sys.argv[1:]])
