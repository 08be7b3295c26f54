"""Which folder may include which: the include rules as data.

A row lists the folders of ours, single headers and the outside libraries that a folder may name in an
#include of its own. Every folder may include itself and the standard library (POSIX included).
"""

import re
from pathlib import Path

ANY = "*"

# Outside libraries, by the first part of the header's path.
LIBRARIES = {
    "torch": ("ATen/", "c10/", "torch/"),
    "fmt": ("fmt/",),
    "json": ("nlohmann/",),
    "yaml": ("yaml-cpp/",),
    "cli": ("CLI/",),
    "crc": ("boost/crc.hpp",),
    "asio": ("boost/",),
    "gloo": ("gloo/",),
    "sodium": ("sodium.h",),
    "cuda": ("cuda", "nccl"),
}

# {folder: what its files may name}; the rows of folders that are libraries are cmake/include_table.cmake.
ROWS = (Path(__file__).parents[2] / "cmake" / "include_table.cmake").read_text(encoding="utf-8")
FOLDERS = {row.split()[0]: row.split()[1:]
           for row in re.findall(r"^shardproof_folder\(([^)]*)\)", ROWS, re.MULTILINE)}
FOLDERS |= {
    "sim/main.cpp": ["sim/program"],
    "sim/first_main.cpp": ["sim/program/start"],
    "sim/light_main.cpp": ["src/base", "sim/case/scenario", "sim/cli", "sim/cli/uses", "sim/lint", "sim/uses/proofs"],
    "examples": [ANY],
    "tests": [ANY],
    "bench": [ANY],
    "cmake": [ANY],
}

# Folders of sim that may include its uses: they call them.
USERS = ("sim/cli", "sim/program", "sim/main.cpp", "sim/first_main.cpp", "sim/light_main.cpp")

# Headers of ours are parsed again and again: of LibTorch they name only these (seconds each if more).
LIGHT_TORCH_HEADERS = {"ATen/core/Tensor.h", "c10/core/ScalarType.h", "c10/core/Event.h",
                       "torch/headeronly/version.h"}

# torch/torch.h costs 14 s a file. Nobody includes it.
BANNED_HEADERS = {"torch/torch.h": "name the one header that you need"}

# Headers of mutexes without attributes that clang checks, and the files that need them.
MUTEX_HEADERS = ("mutex", "shared_mutex", "condition_variable")
MUTEX_FILES = {"src/base/mutex.h", "src/random/rng_tracker.cpp"}  # the latter locks LibTorch's own

BANNED_FILE_WORDS = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}

MAX_COLUMNS = 100
MAX_LINES = 400
# File, and why it may be longer.
LONGER_FILES = {}
