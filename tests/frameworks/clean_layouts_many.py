"""The long form of clean_layouts.py: 200 clean runs of the installed frameworks, without a false alarm. SHARDPROOF_PROGRAM is
the program."""

import tempfile
import unittest

import clean_layouts
import clean_runs


class CleanLayoutsTest(unittest.TestCase):
    def test_clean_runs_match(self):
        with tempfile.TemporaryDirectory() as scratch:
            self.assertEqual(clean_runs.counted(clean_layouts.Runs(scratch).all(200, 1), False), 0)


if __name__ == "__main__":
    unittest.main()
