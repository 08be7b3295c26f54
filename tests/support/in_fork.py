"""Runs a command of Python in a fork of this process, which has imported what the command else would: torch takes seconds."""

import gc
import importlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import warnings

INSTALLED = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]
FILTERS = warnings.filters[:]  # before unittest sets its own


def run(main, arguments, cwd, environment, limit_s=500, forget=()):
    """What `python -B -m` would give: the finished run of a module whose main(arguments) is called in a process of its own. The
    modules to forget are imported again there."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = start(main, arguments, cwd, environment, (out, errors), forget)
        process.join(limit_s)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(arguments, limit_s)
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, process.exitcode, out.read(), errors.read())


def start(*of_call):
    """The process of such a run, which writes to two files that are given."""
    process = multiprocessing.get_context("fork").Process(target=call, args=of_call)
    process.start()
    return process


def call(main, arguments, cwd, environment, files, forget):
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    with open(os.devnull) as nothing:
        for number, file in enumerate((nothing, *files)):
            os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))
    sys.argv[1:] = arguments
    sys.path[:] = [str(cwd), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *INSTALLED]
    warnings.resetwarnings()
    warnings.filters[:] = FILTERS
    for name in forget:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    gc.freeze()  # a new process has nothing of this to collect
    sys.exit(main(arguments))
