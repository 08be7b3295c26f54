#!/usr/bin/env python3
"""Holds the folders that need no LibTorch to .clang-tidy, and the users of src/base/mutex.h to what its attributes say:
planted uses without the lock are findings. Skipped (exit status 77) without clang-tidy-14, clang++-14 or LibTorch.

  clang_tidy_test.py [ROOT]
"""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDERS = ("src/base", "src/mesh", "sim/case", "sim/lint")


def findings(program, root, path):
    command = [program, "--quiet", path, "--", "-std=c++20", f"-I{root}", f"-I{root}/src"]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return re.findall(r"^\S+: (?:warning|error): .*$", done.stdout, re.MULTILINE)


def users_of_mutexes(root):
    """The sources that include base/mutex.h, themselves or by the headers of ours that they include."""
    texts = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for top in ("src", "sim", "golden")
             for path in (root / top).rglob("*") if path.suffix in (".h", ".cpp")}
    included = {path: {name for header in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)
                       for name in (header, "src/" + header) if name in texts} for path, text in texts.items()}
    users, before = {"src/base/mutex.h"}, set()
    while users != before:
        before, users = users, users | {path for path, headers in included.items() if headers & users}
    return sorted(path for path in users if path.endswith(".cpp"))


def unlocked_uses(program, root, path, text=None):
    """What clang says of a source, or of another text in its place."""
    torch = next(root.glob(".venv/lib/python3*/site-packages/torch/include"))
    command = [program, "-fsyntax-only", "-std=c++20", "-x", "c++", "-Wthread-safety", "-DUSE_C10D_GLOO", f"-I{root}",
               f"-I{root}/src", "-isystem", torch, "-isystem", torch / "torch/csrc/api/include", "-"]
    done = subprocess.run(command, cwd=root, input=text or (root / path).read_text(encoding="utf-8"),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return [f"{path}: {line}" for line in re.findall(r"^\S+ (?:warning|error): .*$", done.stderr, re.MULTILINE)]


PLANTED = (  # file, what stands there, what stands there without the lock
    ("sim/world/process/wire.cpp", "      const Lock lock(mutex_);\n", ""),
    ("sim/world/emulated/run_slots.cpp", "int64_t RunSlots::waiting() {\n  const Lock lock(mutex_);\n",
     "int64_t RunSlots::waiting() {\n"),
    ("sim/world/emulated/emulated_world.cpp", "  const Lock lock(impl_->mutex);\n  return impl_->failure;",
     "  return impl_->failure;"),
)


def check_mutexes(program, root, pool):
    """Lines of what is wrong: findings in the sources, and planted faults that are not found."""
    def planted(path, right, wrong):
        text = (root / path).read_text(encoding="utf-8")
        if text.count(right) != 1:
            return f"{path}: {right!r} does not stand there once"
        found = unlocked_uses(program, root, path, text.replace(right, wrong))
        return None if any("requires holding mutex" in line for line in found) else f"{path}: a use without the lock is not found"

    found = pool.map(lambda path: unlocked_uses(program, root, path), users_of_mutexes(root))
    missed = pool.map(lambda plant: planted(*plant), PLANTED)
    return [line for lines in found for line in lines] + [line for line in missed if line]


def main():
    root = Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parents[2])
    program, compiler = shutil.which("clang-tidy-14"), shutil.which("clang++-14")
    if not program or not compiler or not list(root.glob(".venv/lib/python3*/site-packages/torch/include")):
        print("clang-tidy-14, clang++-14 or LibTorch in .venv is not installed")
        return 77
    files = sorted(path for folder in FOLDERS for path in (root / folder).glob("*.cpp"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [line for lines in pool.map(lambda path: findings(program, root, path), files) for line in lines]
        found += check_mutexes(compiler, root, pool)
    print("\n".join([*found, f"{len(files)} files, {len(found)} findings"]))
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
