import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import ranks  # noqa: F401  (finds the package)

from shardproof import program


class JudgedTest(unittest.TestCase):
    """A judge that does not do what it should still gives a status and a sentence."""

    def answer(self, script, timeout=60.0):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        path = folder / "judge"
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(0o755)
        return program.judged(str(path), folder / "run", folder / "golden", timeout)

    def test_its_status_and_its_words(self):
        self.assertEqual(self.answer('echo "MISMATCH $1 $3"; exit 1'), (1, "MISMATCH judge --golden\n"))
        for status in (0, 1):
            self.assertEqual(self.answer(f"echo usage; exit {status}")[0], program.NO_JUDGE)

    def test_one_that_does_not_end(self):
        status, text = self.answer("exec sleep 600", timeout=0.2)
        self.assertEqual(status, program.TOO_LONG)
        self.assertIn("did not end within 0.2 s", text)

    def test_one_that_is_killed_before_it_says_anything(self):
        self.assertEqual(self.answer("kill -9 $$"), (-9, "the judge wrote nothing"))

    def test_it_writes_nothing_into_the_job(self):
        """The caller does, with the place of the test, so that the judge would say it a second time."""
        with mock.patch.dict(os.environ, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY="/summary"):
            self.assertEqual(self.answer('echo "MATCH $GITHUB_ACTIONS $GITHUB_STEP_SUMMARY."')[1], "MATCH  .\n")


class FindTest(unittest.TestCase):
    def is_found(self, text):
        """Whether a file of this text, the only program, is taken for one that judges."""
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        path = folder / "shardproof"
        path.write_text(text)
        path.chmod(0o755)
        with mock.patch.dict(os.environ, PATH=str(folder)), mock.patch.object(program, "light", lambda: None):
            found, problem = program.find()
        self.assertEqual(bool(found), not problem)
        return found == str(path)

    def test_the_own_command_of_the_package_is_no_program(self):
        self.assertTrue(self.is_found("#!/bin/sh\nexec bash\n"))
        for first in ("#!/some/bin/python3", "#!/bin/sh\n'''exec' \"/long/bin/python\" \"$0\" \"$@\"\n' '''"):
            own = f"{first}\nimport sys\nfrom shardproof.command import main\nsys.exit(main())\n"
            self.assertFalse(self.is_found(own))
            with mock.patch.object(program, "find_spec", lambda name: name == "shardproof_program"):
                self.assertTrue(self.is_found(own))

    def test_a_program_behind_the_own_command_in_path_is_found(self):
        folders = [Path(self.enterContext(tempfile.TemporaryDirectory())) for _ in range(2)]
        for folder, text in zip(folders, ("from shardproof.command import main\n", "program")):
            (folder / "shardproof").write_text("#!/bin/sh\n" + text)
            (folder / "shardproof").chmod(0o755)
        with mock.patch.dict(os.environ, PATH=os.pathsep.join(map(str, folders))):
            self.assertEqual(program.whole(), str(folders[1] / "shardproof"))


if __name__ == "__main__":
    unittest.main()
