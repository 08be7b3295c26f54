"""The short form of clean_layouts.py: the first layout of each example matches, and mismatches with a planted bug. Of the
examples of a framework that is not installed, none runs. SHARDPROOF_PROGRAM is the program."""

import importlib.util
import os
import tempfile
import unittest

import clean_layouts
import torch
from clean_examples import EXAMPLES


@unittest.skipUnless(os.environ.get("SHARDPROOF_PROGRAM"), "SHARDPROOF_PROGRAM is not set")
class CleanLayoutsTest(unittest.TestCase):
    def check(self, example):
        for is_planted, wanted in ((False, 0), (True, 1)):
            with self.subTest(is_planted=is_planted), tempfile.TemporaryDirectory() as scratch:
                [(_, status, text)] = clean_layouts.Runs(scratch, is_planted).of(example, 1, torch.float64, 1)
                self.assertEqual(status, wanted, text)
                self.assertIn("of step 1" if is_planted else "MATCH", text)


def test_of(example):
    missing = importlib.util.find_spec(example.package) is None

    @unittest.skipIf(missing, f"{example.package} is not installed")
    def test(self):
        self.check(example)
    return test


for one in EXAMPLES:
    setattr(CleanLayoutsTest, "_".join(("test", one.name, *(name for name, _ in one.options))), test_of(one))


if __name__ == "__main__":
    unittest.main()
