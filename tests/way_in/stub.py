"""A stub project with the real script ./shardproof. No network: its LibTorch is a wheel of a few bytes in a local
folder."""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from said import SaidTest  # noqa: E402

CMAKE = """cmake_minimum_required(VERSION 3.25)
project(stub LANGUAGES CXX)
if(SHARDPROOF_LIGHT_ONLY)
  add_executable(shardproof-light sim/main.cpp)
  return()
endif()
add_executable(shardproof-bin sim/main.cpp)
add_executable(shardproof-first sim/main.cpp)
enable_testing()
add_test(NAME passes COMMAND shardproof-bin)
add_test(NAME fails COMMAND shardproof-bin fail)
"""
PROGRAM = """#include <cstdio>
#include <cstring>
int main(int argc, char** argv) {
  std::printf("VERSION");
  for (int i = 1; i < argc; ++i) std::printf(" [%s]", argv[i]);
  std::printf("\\n");
  return argc > 1 && std::strcmp(argv[1], "fail") == 0;
}
"""


def write_wheel(folder, package="torch", version="2.11.0"):
    """A wheel with nothing but the two paths that the script looks for in torch's."""
    name = folder / f"{package}-{version}-py3-none-any.whl"
    info = f"{package}-{version}.dist-info/"
    with zipfile.ZipFile(name, "w") as wheel:
        wheel.writestr(f"{package}/lib/libtorch_cpu.so", "")
        wheel.writestr(f"{package}/include/ATen/ATen.h", "")
        wheel.writestr(info + "METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        wheel.writestr(info + "WHEEL",
                       "Wheel-Version: 1.0\nGenerator: stub\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(info + "RECORD", "")
    return name


class Stub(SaidTest):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="way_in."))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.stub = self.folder / "a repository"  # a space: every path must be quoted
        self.wheels = self.folder / "wheels"
        self.wheels.mkdir()
        write_wheel(self.wheels)
        for name in ("src", "sim", "golden", "cmake", "reports", "python/shardproof"):
            (self.stub / name).mkdir(parents=True)
        (self.stub / "python/shardproof/__init__.py").touch()
        for name in ("shardproof", "CMakePresets.json"):
            shutil.copy(ROOT / name, self.stub / name)
        (self.stub / "requirements.txt").write_text("torch==2.11.0\n")
        (self.stub / "CMakeLists.txt").write_text(CMAKE)
        self.write_program("first")
        self.env = {name: value for name, value in os.environ.items()
                    if not name.startswith(("PIP_", "SHARDPROOF_", "PYTHON"))}
        self.env |= {"HOME": str(self.folder), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1",
                     "PIP_NO_CACHE_DIR": "1", "PIP_FIND_LINKS": str(self.wheels),
                     "CCACHE_DISABLE": "1", "SHARDPROOF_PYTHON": sys.executable}

    def write_program(self, version):
        (self.stub / "sim/main.cpp").write_text(PROGRAM.replace("VERSION", version))

    def start(self, *arguments, **env):
        return subprocess.Popen([self.stub / "shardproof", *arguments], cwd=self.folder, text=True,
                                env=self.env | env, stdin=subprocess.DEVNULL, start_new_session=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def call(self, *arguments, **env):
        process = self.start(*arguments, **env)
        out, err = process.communicate(timeout=900)
        return process.returncode, out, err

    def assert_says(self, expected, *arguments, status=0, **env):
        """What a call prints, and its exit status; returns the messages of the script."""
        ended, out, err = self.call(*arguments, **env)
        self.assertEqual((ended, out), (status, expected), err)
        return err

    def assert_nothing_is_installed(self):
        self.assertFalse((self.stub / ".venv").exists())
        self.assertFalse((self.stub / "build/release").exists())

    def installed_torch(self):
        torch = self.folder / "installed"
        (torch / "lib").mkdir(parents=True)
        (torch / "include/ATen").mkdir(parents=True)
        (torch / "lib/libtorch_cpu.so").touch()
        return torch
