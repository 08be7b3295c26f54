"""Runs of a test, in a folder that is gone after it, and the judge. SHARDPROOF_PROGRAM is the program; the tests that need it
are skipped without it."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from said import FolderTest, SaidTest  # noqa: E402

PROGRAM = os.environ.get("SHARDPROOF_PROGRAM")
needs_program = unittest.skipUnless(PROGRAM, "SHARDPROOF_PROGRAM is not set")


def judge(run, golden, *options):
    """The exit status and all that is said of a run beside a golden."""
    done = subprocess.run([PROGRAM or "shardproof", "judge", run, "--golden", golden, *options], text=True,
                          capture_output=True, timeout=360, check=False)
    return done.returncode, done.stdout + done.stderr


class RunsTest(FolderTest):
    """Each test has places for a run and for a golden."""

    def setUp(self):
        super().setUp()
        self.out, self.golden = self.folder / "run", self.folder / "golden"

    def judge(self, *options):
        return judge(self.out, self.golden, *options)


class SharedRunsTest(SaidTest):
    """All tests of a class have one folder."""

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
