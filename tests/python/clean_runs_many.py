"""The long form of the clean runs: 200 of them, without a false alarm. SHARDPROOF_PROGRAM is the program."""

import tempfile
import unittest

import clean_runs


class CleanRunsTest(unittest.TestCase):
    def test_clean_runs_match(self):
        with tempfile.TemporaryDirectory() as scratch:
            for draw, layout, status, text in clean_runs.clean_runs(200, 1, scratch):
                with self.subTest(f"{draw} {layout}"):
                    self.assertEqual(status, 0, text)


if __name__ == "__main__":
    unittest.main()
