"""What a command says: its exit status and its text, beside what they should be."""

import tempfile
import unittest
from pathlib import Path


def ended(process, limit_s):
    """The exit status of a process that ends within the limit, and what it printed."""
    text, _ = process.communicate(timeout=limit_s)
    return process.returncode, text


class TextTest(unittest.TestCase):
    def says(self, said, *texts, absent=()):
        """A text, or a finished run, has all of these texts and none of the absent ones."""
        text = said if isinstance(said, str) else said.stdout + said.stderr
        for one in texts:
            self.assertIn(one, text)
        for one in absent:
            self.assertNotIn(one, text)


class SaidTest(TextTest):
    def expect(self, said, status, *texts):
        """`said` is an exit status and a text, which has all of these texts; returns the text."""
        self.assertEqual(said[0], status, said[1])
        self.says(said[1], *texts)
        return said[1]

    def expect_patterns(self, said, status, *patterns):
        """As expect(), with regular expressions."""
        text = self.expect(said, status)
        for pattern in patterns:
            self.assertRegex(text, pattern)
        return text


class FolderTest(SaidTest):
    """Each test has a `folder`, which is gone after it."""

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
