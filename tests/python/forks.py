"""Runs a function on several ranks: forks of this process, which has imported torch, connected by Gloo."""

import os
import signal
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "python"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

SECONDS = 300      # that a call may take; only a rank that waits forever needs as many
GRACE_SECONDS = 1  # that the other ranks get after the first one failed


def run(world_size, function, *arguments):
    """Calls function(rank, *arguments) on each rank and returns the results in the order of the ranks."""
    with tempfile.TemporaryDirectory() as folder:
        children = {fork(rank, world_size, Path(folder), function, arguments): rank for rank in range(world_size)}
        failed = wait(children)
        if failed:
            texts = [path.read_text() for path in sorted(Path(folder).glob("*.error"))]
            raise AssertionError(f"ranks {sorted(failed)} failed:\n" +
                                 ("\n".join(texts) or f"none of them ended within {SECONDS} s"))
        return [torch.load(f"{folder}/{rank}.result", weights_only=False) for rank in range(world_size)]


def fork(rank, world_size, folder, function, arguments):
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        torch.set_num_threads(1)
        store = dist.FileStore(str(folder / "store"), world_size)
        store.set_timeout(timedelta(seconds=SECONDS))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size,
                                timeout=timedelta(seconds=SECONDS))
        torch.save(function(rank, *arguments), folder / f"{rank}.result")
        # Gloo fails on a rank that still connects when another one leaves. One that fails is ended by `wait`.
        store.set(f"ended/{rank}", "")
        store.wait([f"ended/{other}" for other in range(world_size)])
        status = 0
    except BaseException:
        (folder / f"{rank}.error").write_text(f"rank {rank}: {traceback.format_exc()}")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def wait(children):
    """Waits for all children, and ends those that still run after another one failed. Returns the failed ranks."""
    running, failed, deadline = dict(children), [], time.monotonic() + SECONDS
    while running:
        for child in list(running):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                rank = running.pop(child)
                if status:
                    failed.append(rank)
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > deadline:
            for child in running:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    return failed
