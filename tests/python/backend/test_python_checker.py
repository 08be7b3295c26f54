"""The checks in Python alone: of the same mistakes they say what the extension says, and calls give the same values."""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

import test_disagreements
import test_options
import test_strides
import test_training
import test_values
from ranks import RanksTest

import shardproof.backend
from shardproof.backend import build

# The store tells nobody of a rank that has died; Gloo's lack of PREMUL_SUM is filled in by the extension alone.
NOT_IN_PYTHON = ("test_rank_that_ended", "test_all_reduce", "test_calls_with_a_root", "test_reduce_scatters",
                 "test_plain_gloo_is_wrong_where_this_refuses")


class InPython:
    """Runs an inherited test with the checks in Python."""

    @classmethod
    def setUpClass(cls):
        pass

    def setUp(self):
        if self._testMethodName in NOT_IN_PYTHON:
            self.skipTest("not in Python")

    def outcomes(self, size, function, *arguments, environment=None, **options):
        return super().outcomes(size, function, *arguments, environment=python(environment), **options)

    def values(self, size, function, *arguments, environment=None, **options):
        return super().values(size, function, *arguments, environment=python(environment), **options)


def python(environment):
    found = {name: value for name, value in (environment or {}).items() if name != "SHARDPROOF_DIGESTS"}
    return found | {"SHARDPROOF_CHECKER": "python"}


class Disagreements(InPython, test_disagreements.Disagreements):
    def line_of(self, function, text):
        return super().line_of(function, text).replace(os.path.relpath(__file__), test_disagreements.__name__ + ".py")


class Values(InPython, test_values.Values):
    pass


class Strides(InPython, test_strides.Strides):
    pass


class Training(InPython, test_training.Training):
    pass


class Notice(InPython, test_options.Notice):
    pass


def sums(rank, size):
    assert type(dist.group.WORLD).__name__ == "CheckedGroup"
    tensor = test_values.own(rank)
    dist.all_reduce(tensor)
    reduced = test_values.own(rank)
    dist.reduce(reduced, 0)
    part = torch.zeros(2)
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * size))
    return tensor.tolist(), reduced.tolist() if rank == 0 else None, part.tolist()


def in_a_store_of_rank_0(rank, size, then):
    """An agreed call, after which rank 0 ends, and the store that it keeps with it."""
    told = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    store = dist.TCPStore("localhost", int(told.get("port")) if rank else 0, is_master=rank == 0, wait_for_workers=False)
    if rank == 0:
        told.set("port", str(store.port))
    dist.init_process_group("shardproof", store=store, rank=rank, world_size=size)
    told.set(f"met{rank}", "")
    told.wait([f"met{other}" for other in range(size)])
    dist.all_reduce(torch.ones(4))
    if rank == 0:
        told.wait([f"ready{other}" for other in range(1, size)])
        os._exit(0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # to which torch writes of each of its connections
    told.set(f"ready{rank}", "")
    then(rank, store)


def wait_until_gone(store):
    try:
        while True:
            store.check(["gone"])
    except dist.DistNetworkError:
        pass


def sum_of_all(rank, store):
    dist.all_reduce(torch.ones(4))


def sum_after_it(rank, store):
    wait_until_gone(store)
    dist.all_reduce(torch.ones(4))


def message_from_any(rank, store):
    dist.recv(torch.ones(4))


def new_group(rank, store):
    wait_until_gone(store)
    dist.new_group([1])


def from_any(rank, size):
    """Who sent, and what was received."""
    tensor = torch.full([1], float(rank))
    source = dist.send(tensor, 0) if rank else dist.recv(tensor)
    return source, tensor.tolist()


class Other(InPython, RanksTest):
    def test_rank_that_keeps_the_store_ended(self):
        for then, call in ((sum_of_all, "call 1 of group world [0, 1, 2]: all_reduce(sum) [4] float32"),
                           (sum_after_it, "call 1 of group world [0, 1, 2]: all_reduce(sum) [4] float32"),
                           (message_from_any, "call 0 of group world [0, 1, 2]: recv from any rank [4] float32")):
            gone, *others = self.outcomes(3, in_a_store_of_rank_0, then)
            self.assertIsNone(gone)
            for rank, outcome in enumerate(others, 1):
                with self.subTest(then.__name__, rank=rank):
                    self.assertEqual(outcome.kind, "DistBackendError", outcome.error)
                    self.assertIn(f"rank {rank} waits in {call} at ", outcome.error)
                    self.assertRegex(outcome.error, r"; ranks? 0.* did not come and a connection was closed, that of the store, "
                                     "which rank 0 or its launcher keeps; read the error of the rank that ended first, and make")

    def test_group_that_is_made_when_the_store_is_gone(self):
        for outcome in self.outcomes(2, in_a_store_of_rank_0, new_group)[1:]:
            self.assertRegex(outcome.error, r"group \S+ \[1\] was not made: rank 1 makes it, and a connection was closed, that "
                                            "of the store, which rank 0 or its launcher keeps; read the error of")

    def test_sums(self):
        for rank, (total, reduced, part) in enumerate(self.values(3, sums)):
            self.assertEqual(total, [6, 60])
            self.assertEqual(reduced, [6, 60] if rank == 0 else None)
            self.assertEqual(part, [6 * rank, 6 * rank + 3])

    def test_log(self):
        with tempfile.TemporaryDirectory() as folder:
            self.values(2, test_options.in_two_groups, environment={"SHARDPROOF_CALLS": folder})
            rows = [line.split("\t") for line in Path(folder, "rank1.calls").read_text().splitlines()]
        self.assertEqual([row[:5] for row in rows], [["0", "world [0, 1]", "all_reduce(sum)", "float32", "[1]"],
                                                     ["0", "tp [0, 1]", "all_reduce(sum)", "float32", "[1]"]])

    def test_without_checks_a_disagreement_is_silent(self):
        off = {"SHARDPROOF_CHECKS": "0"}
        self.values(2, test_disagreements.other_reduce_op, environment=off)
        self.assertEqual(self.values(2, test_options.message, environment=off), [[5], [5]])
        self.assertEqual(self.values(2, from_any, environment=off), [(1, [1]), (None, [1])])

    def test_folder_of_calls_that_is_a_file_is_refused(self):
        for outcome in self.outcomes(2, sums, environment={"SHARDPROOF_CALLS": __file__}):
            self.assertIn("which cannot be a folder: File exists; name another one", outcome.error)

    def test_faults_are_refused(self):
        for outcome in self.outcomes(2, sums, environment={"SHARDPROOF_FAULT": "rank=0,kind=drop"}):
            self.assertIn("SHARDPROOF_FAULT needs the backend's extension", outcome.error)

    def test_without_a_compiler(self):
        """It is taken by itself, and says so; a group of which one rank has the extension refuses."""
        shardproof.backend.why_not_built.cache_clear()
        self.addCleanup(shardproof.backend.why_not_built.cache_clear)
        fails = mock.patch.object(shardproof.backend, "extension", side_effect=build.NoCompiler("there is no compiler"))
        with fails, mock.patch.dict(os.environ, {"SHARDPROOF_CHECKER": ""}):
            said = test_options.heard(lambda: self.assertTrue(shardproof.backend.in_python()))
            self.assertEqual(said, "shardproof: there is no compiler; until then the calls are checked in Python, which "
                                   "is slower and plants no faults\n")

    def test_a_mixed_group_is_refused(self):
        store = dist.HashStore()
        store.set("shardproof/here/0", "extension")
        with self.assertRaisesRegex(dist.DistBackendError, r"has the backend's extension on \[4\] only; install g"):
            shardproof.backend.meet(store, 1, [4, 5], "tp", 5, "python")

    def test_a_checker_that_there_is_not(self):
        with mock.patch.dict(os.environ, {"SHARDPROOF_CHECKER": "none"}):
            with self.assertRaisesRegex(ValueError, "SHARDPROOF_CHECKER is 'none'"):
                shardproof.backend.in_python()


if __name__ == "__main__":
    unittest.main()
