"""A copy of the sources with a build of its own, in which one bug at a time is planted.

  build/mutants/tree                  the copy; files keep their times unless their content changed
  build/mutants/tree/build/release    its build for a few rows: as ./shardproof builds, whose objects the
                                      compile cache has; a bug rebuilds the piece that its file is in
  build/mutants/build                 its build for many rows: src file by file, which costs minutes once,
                                      and seconds less for each row
"""

import os
import shutil
import subprocess
from pathlib import Path

from plant import Sources, plant

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build" / "mutants"
PARTS = ("CMakeLists.txt", "CMakePresets.json", "cmake", "src", "sim", "golden", "bench", "scenarios")
LEFT_OUT = {"golden/hf", "golden/witness"}  # data: linked, and read where it is
FEW = 40  # rows


class BuildError(Exception):
    pass


def _files_of(root):
    for part in PARTS:
        if (root / part).is_file():
            yield part
        for folder, below, names in os.walk(root / part):
            below[:] = sorted(name for name in below if name != "__pycache__" and
                              str((Path(folder) / name).relative_to(root)) not in LEFT_OUT)
            for name in sorted(names):
                yield str((Path(folder) / name).relative_to(root))


def _torch(tree):
    """Where LibTorch is: as the build of ./shardproof found it; that of .venv as seen from the copy."""
    chosen = ROOT / "build" / "release" / ".torch"
    named = os.environ.get("SHARDPROOF_TORCH") or (chosen.read_text().strip() if chosen.is_file() else "")
    found = [Path(named)] if named else sorted(tree.glob(".venv/lib/python3*/site-packages/torch"))
    if not found:
        raise BuildError("no LibTorch; run ./shardproof build first")
    return found[0]


def _compilers():
    """Compiler processes at a time: one per core, and 1.5 GB for each, as in ./shardproof."""
    chosen = os.environ.get("SHARDPROOF_JOBS")
    if chosen:
        return chosen
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return str(max(1, min(len(os.sched_getaffinity(0)), int(memory / 1.5e9))))


class Scratch:
    def __init__(self, rows):
        """`rows`: how many are to come. A build file by file that is there already is used for any."""
        self.tree = PLACE / "tree"
        self._file_by_file = rows > FEW or (PLACE / "build" / "build.ninja").is_file()
        self.build = PLACE / "build" if self._file_by_file else self.tree / "build" / "release"
        self.program = self.build / "shardproof-bin"
        self._planted = {}

    def refresh(self):
        """Makes the copy equal to the sources."""
        wanted = set(_files_of(ROOT))
        self.tree.mkdir(parents=True, exist_ok=True)
        for name in set(_files_of(self.tree)) - wanted:
            (self.tree / name).unlink()
        for name in sorted(wanted):
            here, there = ROOT / name, self.tree / name
            if there.is_file() and there.read_bytes() == here.read_bytes():
                continue
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(here, there)
        for name in sorted(LEFT_OUT) + [".venv"]:  # scenarios name cases of golden/hf
            there = self.tree / name
            if not there.is_symlink():
                shutil.rmtree(there, ignore_errors=True)
                there.symlink_to(ROOT / name)

    def compile(self):
        if not (self.build / "build.ninja").is_file():
            self._configure()
        self._run(["ninja", "-C", str(self.build), "-j", _compilers(), "shardproof-bin"])

    def plant(self, row):
        """Writes the row's bug into the tree; sentences about what was found elsewhere than the row says."""
        texts, moved = plant(Sources.below(self.tree), row)
        self._planted = {name: (self.tree / name).read_bytes() for name in texts}
        for name, text in texts.items():
            (self.tree / name).write_bytes(text.encode())
        return moved

    def restore(self):
        for name, text in self._planted.items():
            (self.tree / name).write_bytes(text)
        self._planted = {}

    def _configure(self):
        launcher = shutil.which("ccache")
        options = [*([f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}"] if launcher else []),
                   f"-DSHARDPROOF_TORCH={_torch(self.tree)}", "-DSHARDPROOF_TESTS=OFF",
                   "-DSHARDPROOF_NCCL=OFF", "-DSHARDPROOF_CUDA_KERNELS=OFF"]
        if self._file_by_file:  # what a bug leaves unused is no error of the row
            self._run(["cmake", "-S", str(self.tree), "-B", str(self.build), "-G", "Ninja",
                       "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1 -fpch-preprocess",
                       "-DCMAKE_UNITY_BUILD=ON", "-DSHARDPROOF_SRC_FILE_BY_FILE=ON",
                       "-DSHARDPROOF_WERROR=OFF", *options])
        else:  # the command lines of ./shardproof, as seen from the build folder
            self._run(["cmake", "--preset", "release", "-DCMAKE_CXX_COMPILER=g++",
                       "-DSHARDPROOF_WERROR_UNDONE=ON", *options])

    def _run(self, command):
        environment = dict(os.environ, CCACHE_SLOPPINESS="pch_defines,time_macros",
                           CCACHE_BASEDIR=str(ROOT), CCACHE_IGNOREOPTIONS="-Wno-error")
        done = subprocess.run(command, cwd=self.tree, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace")
        if done.returncode != 0:
            errors = [line for line in done.stdout.splitlines() if "error" in line]
            raise BuildError("\n".join(errors[:4] or done.stdout.splitlines()[-4:]))
