"""Starts a program that has loaded its libraries once for all starts, as LibTorch loads slowly.

Each start is a fork at the place where a new process has loaded all libraries, and all code of the
program runs as ever. A test that sends it a signal or reads its /proc, or whose limits count while
it loads, starts the program itself. SHARDPROOF_LOADS=each is a process of its own for each call, as
the sanitizers need it."""

import atexit
import functools
import os
import resource
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
# Variables that may count before the fork.
OF_LOADING = ("LD_", "GLIBC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "ATEN_", "TORCH_",
              "PYTORCH_")
LIMIT_S = 60
LOCK = threading.Lock()


def run(words, env=None, limits=(), **options):
    """subprocess.run of a program and its words, under limits (kind, value)."""
    start = {"args": words, "env": env} if options.get("preexec_fn") else call(words, env)

    def limit():
        for kind, value in limits:
            resource.setrlimit(kind, (value, value))

    if limits:
        options["preexec_fn"] = limit
    return subprocess.run(**start, **options)


def call(words, env=None):
    """What subprocess needs for a call of a program: these words, and how it is started."""
    env = os.environ if env is None else env
    with LOCK:
        client, address = server(os.path.realpath(words[0]), of_loading(env))
    if client is None:
        return {"args": words, "env": env}
    return {"args": words, "executable": client, "env": dict(env, LOADED_AT=address)}


def of_loading(env):
    return tuple(sorted(item for item in env.items() if item[0].startswith(OF_LOADING)))


@functools.cache
def folder_of_programs():
    """With the client and what is preloaded; None without a compiler."""
    made = tempfile.TemporaryDirectory(prefix="loaded.")
    atexit.register(made.cleanup)
    compiler = shutil.which("gcc")
    for words in (["-DCLIENT", "-o", "client"], ["-shared", "-fPIC", "-o", "loaded.so"]):
        if not compiler or subprocess.run([compiler, SOURCE, *words, "-ldl"], cwd=made.name,
                                          check=False).returncode:
            return None
    return made.name


@functools.cache
def server(program, variables):
    """(client, its address) of a process that waits for calls; (None, None) where there is none."""
    folder = folder_of_programs()
    if folder is None or os.environ.get("SHARDPROOF_LOADS") == "each" or "LD_PRELOAD" in dict(variables):
        return None, None
    address = f"{folder}/{os.path.basename(program)}.{server.cache_info().misses}"
    env = dict(variables, LOADED_AT=address, LD_PRELOAD=f"{folder}/loaded.so")
    waits = subprocess.Popen([program], env=env, stdin=subprocess.PIPE,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(lambda: (waits.kill(), waits.wait()))
    end = time.monotonic() + LIMIT_S
    while not os.path.exists(address):
        if waits.poll() is not None or time.monotonic() > end:
            return None, None
        time.sleep(0.005)
    return f"{folder}/client", address
