"""Ranks as forked processes that share one torch import.

With SHARDPROOF_TEST_DEVICE=cuda the tensors of all ranks are on one GPU, and NCCL makes the calls: it
takes ranks that share a GPU where each names a host of its own.
"""

import os
import pickle
import select
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "python"))

import torch
import torch.distributed as dist

import shardproof.backend

torch.set_num_threads(1)
SETTINGS = ("TIMEOUT", "NOTICE", "DIGESTS", "CALLS", "CHECKER", "CHECKS", "FAULT", "INNER")


class Outcome:
    """How one rank ended: what its function returned, or the error that it raised."""

    def __init__(self, value=None, error=None, kind=None, seconds=0.0):
        self.value, self.error, self.kind, self.seconds = value, error, kind, seconds


def run_rank(rank, size, store, backend, environment, function, arguments, pipe):
    torch.set_num_threads(1)  # before autograd makes a thread of its own in this child
    for name in SETTINGS:
        os.environ.pop(f"SHARDPROOF_{name}", None)
    os.environ.update(environment)
    if device := os.environ.get("SHARDPROOF_TEST_DEVICE"):
        os.environ["NCCL_HOSTID"] = f"rank{rank}"
        torch.set_default_device(device)
    start = time.monotonic()
    try:
        meeting = dist.FileStore(store, size)
        dist.init_process_group(backend, store=meeting, rank=rank, world_size=size)
        # Gloo lets a rank go on, and end, while another still connects, which then fails.
        meeting.set(f"connected{rank}", "")
        meeting.wait([f"connected{other}" for other in range(size)])
        start = time.monotonic()
        outcome = Outcome(value=function(rank, size, *arguments))
        dist.destroy_process_group()
    except BaseException as error:
        outcome = Outcome(error=str(error), kind=type(error).__name__)
    outcome.seconds = time.monotonic() - start
    with os.fdopen(pipe, "wb") as file:
        pickle.dump(outcome, file)


def launch(size, function, *arguments, backend="shardproof", limit=120, environment=None,
           stop_others=True):
    """The outcomes of `size` ranks. Where one fails the others are killed a second later, or, not
    `stop_others`, have until the limit to end by themselves; None stands for a killed rank."""
    with tempfile.TemporaryDirectory() as folder:
        children, pipes = [], {}
        for rank in range(size):
            reads, writes = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    os.close(reads)
                    run_rank(rank, size, folder + "/store", backend, environment or {}, function,
                             arguments, writes)
                finally:
                    os._exit(0)
            os.close(writes)
            children.append(child)
            pipes[reads] = rank
        outcomes, data = [None] * size, {pipe: b"" for pipe in pipes}
        deadline = time.monotonic() + limit
        while pipes and time.monotonic() < deadline:
            ready, _, _ = select.select(list(pipes), [], [], max(0, deadline - time.monotonic()))
            for pipe in ready:
                chunk = os.read(pipe, 1 << 20)
                data[pipe] += chunk
                if chunk:
                    continue
                rank = pipes.pop(pipe)
                os.close(pipe)
                if data[pipe]:
                    outcomes[rank] = pickle.loads(data[pipe])
                failed = outcomes[rank] is None or outcomes[rank].error is not None
                if failed and stop_others:
                    deadline = min(deadline, time.monotonic() + 1)
        for child in children:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
            os.waitpid(child, 0)
        for pipe in pipes:
            os.close(pipe)
        return outcomes


class RanksTest(unittest.TestCase):
    maxDiff = None
    """A test whose subject runs on several ranks."""

    @classmethod
    def setUpClass(cls):
        shardproof.backend.extension()

    def values(self, size, function, *arguments, **options):
        """What `function` returns on each rank; none may fail."""
        outcomes = launch(size, function, *arguments, **options)
        for rank, outcome in enumerate(outcomes):
            self.assertIsNotNone(outcome, f"rank {rank} was killed or died")
            self.assertIsNone(outcome.error, f"rank {rank}: {outcome.error}")
        return [outcome.value for outcome in outcomes]

    def outcomes(self, size, function, *arguments, **options):
        """How each rank ends by itself."""
        return launch(size, function, *arguments, stop_others=False, **options)

    def errors(self, size, function, *arguments, **options):
        """What each rank says; each must fail by itself, before the 300 s of a time-out, with the backend's error."""
        outcomes = self.outcomes(size, function, *arguments, **options)
        for rank, outcome in enumerate(outcomes):
            self.assertIsNotNone(outcome, f"rank {rank} hung or died")
            self.assertIsNotNone(outcome.error, f"rank {rank} returned {outcome.value}")
            self.assertEqual(outcome.kind, "DistBackendError", outcome.error)
            self.assertLess(outcome.seconds, 60)
        return [outcome.error for outcome in outcomes]
