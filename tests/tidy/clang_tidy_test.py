#!/usr/bin/env python3
"""Holds the folders that need no LibTorch to .clang-tidy. Skipped (exit status 77) without clang-tidy-14.

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


def main():
    root = Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parents[2])
    program = shutil.which("clang-tidy-14")
    if not program:
        print("clang-tidy-14 is not installed")
        return 77
    files = sorted(path for folder in FOLDERS for path in (root / folder).glob("*.cpp"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [line for lines in pool.map(lambda path: findings(program, root, path), files) for line in lines]
    print("\n".join([*found, f"{len(files)} files, {len(found)} findings"]))
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
