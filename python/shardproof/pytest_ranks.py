"""Runs a function on ranks that Gloo connects: forks of a template process that was forked before any test had run."""

import contextlib
import faulthandler
import gc
import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from .pytest_layout import Layout

GRACE_SECONDS = 1.0   # that the other ranks get after the first failure
STACK_SECONDS = 0.2   # that a rank which is to be killed gets to write its stack
TICK_SECONDS = 0.004
OUTPUT_BYTES = 100_000
STACK_SIGNAL = signal.SIGUSR2
ABORT = "abort"


@dataclass
class Case:
    """One run of a test on the ranks of a layout. Everything that the ranks write lies in the folder."""

    item: int
    layout: Layout
    folder: Path


@dataclass
class Ending:
    """How a rank ended. `result` is what the function returned, or the exception; None if the rank has died."""

    rank: int
    status: int          # the exit status, or minus the number of the signal
    seconds: float       # since the start of the case
    stopped: str = ""    # "timeout" or "failure": why the template killed it
    result: dict | None = None

    @property
    def passed(self) -> bool:
        return self.result is not None and self.result["outcome"] == "passed"

    @property
    def gave_up(self) -> bool:
        return self.result is not None and self.result["outcome"] in ("skip", "xfail")


class Template:
    """The template process, seen from the process that forked it.

    main(case) runs on each rank and returns {"outcome": "passed"} or another outcome, as a dictionary for JSON.
    """

    def __init__(self, main: Callable[[Case], dict], preload: Sequence[str], timeout: float, captured: bool):
        self._connection, other = multiprocessing.Pipe()
        pytest = os.getpid()
        self._pid = fork()
        if self._pid:
            other.close()
            return
        self._connection.close()
        try:
            Server(other, pytest, main, timeout, captured).serve(preload)
        finally:
            os._exit(0)

    def run(self, case: Case) -> list[Ending]:
        """Runs a case and returns how each rank ended, the first that ended first."""
        try:
            self._connection.send(case)
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise RuntimeError("The template process of the ranks has died") from error
        except BaseException:  # Ctrl-C, or a time-out of another plugin
            self._connection.send(ABORT)
            self._connection.recv()
            raise
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def stop(self) -> None:
        """Ends the template, and with it all ranks."""
        self._connection.close()
        deadline = time.monotonic() + 2
        while not has_ended(self._pid):
            if time.monotonic() > deadline:
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(TICK_SECONDS)
        os.waitpid(self._pid, 0)


class Server:
    """What runs in the template process."""

    def __init__(self, connection, pytest: int, main: Callable[[Case], dict], timeout: float, captured: bool):
        self._connection = connection
        self._pytest = pytest
        self._template = os.getpid()
        self._main = main
        self._timeout = timeout
        self._captured = captured

    def serve(self, preload: Sequence[str]) -> None:
        signal.signal(STACK_SIGNAL, signal.SIG_IGN)  # else it kills a rank that does not write its stack yet
        os.setsid()  # Ctrl-C reaches the process of pytest alone, which then aborts the case
        if self._captured:
            write_to(os.devnull, os.devnull)
        problem = import_all(preload)
        if not problem:
            importlib.import_module("shardproof.clipping").look_through_installed()
        # What is alive now stays alive: ranks need not look through it, which would copy its pages, too.
        gc.collect()
        gc.freeze()
        with contextlib.suppress(EOFError, OSError):  # the process of pytest has ended
            while not self._is_orphan():
                if not self._connection.poll(1):
                    continue
                case = self._connection.recv()
                if case != ABORT:
                    self._connection.send(problem or self._run(case))

    def _is_orphan(self) -> bool:
        """Whether pytest has ended. A process that it started may hold the connection open."""
        return os.getppid() != self._pytest

    def _run(self, case: Case) -> list[Ending]:
        start = time.monotonic()
        running = {self._fork_rank(case, rank): rank for rank in range(case.layout.world_size)}
        endings: list[Ending] = []
        deadline, reason = start + self._timeout, "timeout"
        try:
            while running:
                if self._connection.poll(TICK_SECONDS) or self._is_orphan():
                    break  # an abort, or the end of pytest
                for pid in [pid for pid in running if has_ended(pid)]:
                    endings.append(ending_of(pid, running.pop(pid), start, case.folder))
                    if not endings[-1].passed:
                        deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
                        reason = "failure"
                if running and time.monotonic() > deadline:
                    endings += [stopped(pid, rank, start, case.folder, reason) for pid, rank in ask_stacks(running)]
                    running.clear()
        finally:
            for pid in running:
                reap(pid)
        return sorted(endings, key=lambda ending: ending.seconds)

    def _fork_rank(self, case: Case, rank: int) -> int:
        pid = fork()
        if not pid:
            try:
                end_with(self._template)
                self._connection.close()
                case.layout.rank = rank
                run_rank(case, self._main, self._timeout, self._captured)
            finally:
                os._exit(70)  # not reached
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        return pid


# In the template.


def ask_stacks(running: dict[int, int]):
    """Lets the ranks that still run write where they are."""
    for pid in running:
        os.kill(pid, STACK_SIGNAL)
    time.sleep(STACK_SECONDS)
    return list(running.items())


def stopped(pid: int, rank: int, start: float, folder: Path, reason: str) -> Ending:
    """The ending of a rank that is killed, unless it has ended meanwhile."""
    if has_ended(pid):
        return ending_of(pid, rank, start, folder)
    ending = ending_of(pid, rank, start, folder)
    ending.stopped = reason
    return ending


def ending_of(pid: int, rank: int, start: float, folder: Path) -> Ending:
    status = reap(pid)
    path = result_path(folder, rank)
    result = json.loads(path.read_text()) if path.exists() else None
    return Ending(rank, status, (result["time"] if result else time.monotonic()) - start, result=result)


def has_ended(pid: int) -> bool:
    """Whether a child has ended. It stays a zombie, so that its number belongs to no other process."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def reap(pid: int) -> int:
    """Kills a rank, and the processes that it started, and returns its exit status, or minus its signal."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def import_all(names: Sequence[str]) -> str:
    """Imports modules, and returns what went wrong, or an empty text."""
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException:
            return f'The ranks need the module "{name}", which cannot be imported.\n{traceback.format_exc()}'
    return ""


def fork() -> int:
    with warnings.catch_warnings():
        # Python warns of forks beside other threads, such as those of OpenBLAS, which are idle here.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def end_with(parent: int) -> None:
    """Lets Linux kill this process when its parent is killed, whatever it is doing then."""
    if sys.platform == "linux":
        import ctypes
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


# On a rank.


def run_rank(case: Case, main: Callable[[Case], dict], timeout: float, captured: bool) -> None:
    """Runs main(case) as one rank and ends the process: with status 0 if it passed."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    rank, folder = case.layout.rank, case.folder
    try:
        if captured:
            write_to(*output_paths(folder, rank))
        stack = open(stack_path(folder, rank), "w")
        faulthandler.register(STACK_SIGNAL, stack)
        faulthandler.enable(sys.stderr)
        store = join(case.layout, folder, timeout)
        result = main(case)
    except BaseException as error:
        result = {"outcome": "failed", "line": f"{type(error).__name__}: {error}", "place": __file__,
                  "text": traceback.format_exc()}
    result["time"] = time.monotonic()
    path = result_path(folder, rank)
    path.with_suffix(".new").write_text(json.dumps(result))
    path.with_suffix(".new").rename(path)
    passed = result["outcome"] == "passed"
    if passed:
        await_others(store, case.layout, timeout)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if passed else 1)


def join(layout: Layout, folder: Path, timeout: float):
    """Connects the ranks by Gloo."""
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)  # a pool of threads of the template does not exist in its forks
    size = layout.world_size
    os.environ.update(RANK=str(layout.rank), LOCAL_RANK=str(layout.rank), WORLD_SIZE=str(size),
                      LOCAL_WORLD_SIZE=str(size))
    store = dist.FileStore(str(folder / "store"), size)
    # The template's time-out comes first, because it says where each rank is.
    dist.init_process_group("gloo", store=store, rank=layout.rank, world_size=size,
                            timeout=timedelta(seconds=2 * timeout + 60))
    return store


def await_others(store, layout: Layout, timeout: float) -> None:
    """Stays until all ranks have ended their test, because one that leaves earlier closes its connections."""
    with contextlib.suppress(Exception):
        store.set(f"ended/{layout.rank}", "")
        store.wait([f"ended/{rank}" for rank in range(layout.world_size)], timedelta(seconds=timeout))


def write_to(out: Path | str, err: Path | str) -> None:
    """Redirects what this process, and libraries in it, print."""
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)


# Files of a case.


def result_path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"


def stack_path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.stack"


def output_paths(folder: Path, rank: int) -> tuple[Path, Path]:
    return folder / f"rank{rank}.stdout", folder / f"rank{rank}.stderr"


def outputs(folder: Path, rank: int) -> dict[str, str]:
    """The last part of what a rank printed."""
    found = {}
    for name, path in zip(("stdout", "stderr"), output_paths(folder, rank)):
        if path.exists():
            found[name] = path.read_bytes()[-OUTPUT_BYTES:].decode(errors="replace")
    return found


def stack(folder: Path, rank: int) -> str:
    """Where a rank was when it was stopped, from the innermost call to the test."""
    path = stack_path(folder, rank)
    lines = path.read_text().splitlines() if path.exists() else []
    calls = []
    for line in lines[1:]:
        if not line.startswith("  File") or "/_pytest/" in line:
            break
        calls.append(line)
    return "\n".join(calls)


def what_happened(ending, folder: Path, timeout: float) -> str:
    """The end of a sentence about a rank that did not pass."""
    if ending.result:
        return f"raised {ending.result['line']} ({ending.result['place']})"
    if ending.stopped == "timeout":
        return f"did not end within {timeout:g} s, and was here:\n{stack(folder, ending.rank)}"
    if ending.stopped:
        return f"still ran {GRACE_SECONDS:g} s after the first failure, and was here:\n{stack(folder, ending.rank)}"
    if ending.status < 0:
        return f"was killed by signal {-ending.status} before the test ended"
    return f"exited with status {ending.status} before the test ended"
