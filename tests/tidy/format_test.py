#!/usr/bin/env python3
"""Holds every C++ and CUDA file to .clang-format. Skipped (exit status 77) without clang-format-14.

  format_test.py [ROOT]
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

FOLDERS = ("src", "sim", "golden", "tests", "bench", "examples")
ENDINGS = {".cpp", ".h", ".cu"}


def main():
    root = Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parents[2])
    program = shutil.which("clang-format-14")
    if not program:
        print("clang-format-14 is not installed")
        return 77
    files = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in ENDINGS)
    done = subprocess.run([program, "--dry-run", *files], cwd=root, stderr=subprocess.PIPE, text=True, check=True)
    places = re.findall(r"^(\S+?:\d+):\d+: warning: code should be clang-formatted", done.stderr, re.MULTILINE)
    for place in places:
        print(f"{place}: not formatted; run clang-format-14 -i on it")
    print(f"{len(files)} files, {len(places)} lines that clang-format changes")
    return 1 if places or not files else 0


if __name__ == "__main__":
    sys.exit(main())
