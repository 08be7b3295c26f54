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


class Other(InPython, RanksTest):
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
