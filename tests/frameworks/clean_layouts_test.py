"""The short form of clean_layouts.py: the first layout of each example matches in each dtype, with no more unresolved tensors
than before (unresolved.py), and mismatches with a planted bug. Of the examples of a framework that is not installed, none runs.
SHARDPROOF_PROGRAM is the program."""

import importlib.util
import os
import tempfile
import unittest

import clean_layouts
import torch
import unresolved
from clean_examples import EXAMPLES


def name_of(example):
    return "_".join((example.name, *(name for name, _ in example.options)))


@unittest.skipUnless(os.environ.get("SHARDPROOF_PROGRAM"), "SHARDPROOF_PROGRAM is not set")
class CleanLayoutsTest(unittest.TestCase):
    def judged(self, example, dtype, is_planted, wanted):
        with tempfile.TemporaryDirectory() as scratch:
            [(_, status, text)] = clean_layouts.Runs(scratch, is_planted).of(example, 1, dtype, 1)
        self.assertEqual(status, wanted, text)
        return text

    def check(self, example):
        for dtype in example.dtypes:
            with self.subTest(dtype=dtype):
                text = self.judged(example, dtype, False, 0)
                self.assertIn("MATCH", text)
                unresolved.check(self, name_of(example), text, str(dtype).removeprefix("torch."))
        with self.subTest("planted"):
            self.assertIn("of step 1", self.judged(example, torch.float64, True, 1))


def test_of(example):
    missing = importlib.util.find_spec(example.package) is None

    @unittest.skipIf(missing, f"{example.package} is not installed")
    def test(self):
        self.check(example)
    return test


for one in EXAMPLES:
    setattr(CleanLayoutsTest, "test_" + name_of(one), test_of(one))


if __name__ == "__main__":
    unittest.main()
