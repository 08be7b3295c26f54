"""Builds the backend's C++ extension for the torch and the Python that run, once for each."""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

NAME = "_shardproof_backend"
SOURCES = Path(__file__).parent / "csrc"


class NoCompiler(RuntimeError):
    """This machine cannot build the extension."""


def cache_folder():
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(root) / "shardproof" / "backend"


def extension_path():
    """Where the extension lies or will lie: by the torch, the Python and the source's digest."""
    import torch

    source = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        source.update(path.name.encode() + path.read_bytes())
    key = f"torch{torch.__version__}-{sys.implementation.cache_tag}-{source.hexdigest()[:16]}"
    return cache_folder() / key / f"{NAME}.so"


def command(output):
    """The compiler's command line."""
    import torch

    root = Path(torch.__file__).parent
    include = root / "include"
    python = sysconfig.get_paths()["include"]
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler.split()[0]) is None:
        raise NoCompiler(f"there is no compiler {compiler!r} to build the backend's extension with; "
                         "install g++ or set CXX to one")
    if not (Path(python) / "Python.h").exists():
        raise NoCompiler(f"{python} has no Python.h, which the backend's extension needs; install "
                         f"the headers of Python {sys.version_info[0]}.{sys.version_info[1]} "
                         "(python3-dev)")
    return [*compiler.split(), "-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden",
            f"-DTORCH_EXTENSION_NAME={NAME}",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            "-isystem", str(include), "-isystem", str(include / "torch/csrc/api/include"),
            "-isystem", python, str(SOURCES / "backend.cpp"), "-o", str(output),
            f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch_python",
            f"-Wl,-rpath,{root / 'lib'}"]


@contextlib.contextmanager
def locked(path):
    """Holds the file's lock: of N ranks that build, one builds and the others wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def compile_to(path):
    part = path.with_suffix(f".{os.getpid()}.part")
    log = path.with_suffix(".log")
    with open(log, "w") as output:
        status = subprocess.run(command(part), stdout=output, stderr=output).returncode
    if status != 0:
        part.unlink(missing_ok=True)
        raise NoCompiler(f"the compiler ended with status {status} for the backend's extension; "
                         f"its messages are in {log}")
    os.replace(part, path)


def built():
    """The path of the extension, which is built if it was not."""
    path = extension_path()
    if not path.exists():
        with locked(path.with_suffix(".lock")):
            if not path.exists():
                compile_to(path)
    return path


def extension():
    """The extension's module."""
    spec = importlib.util.spec_from_file_location(NAME, built())
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
