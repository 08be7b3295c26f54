#!/usr/bin/env python3
"""The steps of .github/workflows/release.yml, in a copy of what they read: release_test.py.
The compilers are replaced by scripts that note their calls; the wheel that `try` installs is whole."""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/package"), str(ROOT / "tests/support")]
from build_light import build_light  # noqa: E402
from said import SaidTest  # noqa: E402

LIGHT = build_light()
STEPS = re.findall(r"(?m)^      - run: (\.github/\S+ \w+)$", (ROOT / ".github/workflows/release.yml").read_text())
VERSION = re.search(r'__version__ = "(.*)"', (ROOT / "python/shardproof/__init__.py").read_text())[1]


class Release(SaidTest):
    def setUp(self):
        self.tree = Path(tempfile.mkdtemp(prefix="release."))
        self.addCleanup(shutil.rmtree, self.tree)
        shutil.copytree(ROOT / ".github", self.tree / ".github")
        (self.tree / "python/shardproof").mkdir(parents=True)
        (self.tree / "python/program").mkdir()
        shutil.copy(ROOT / "python/shardproof/__init__.py", self.tree / "python/shardproof")
        shutil.copy(ROOT / "CHANGELOG.md", self.tree)
        (self.tree / "python/program/light_wheel.py").write_text(
            "import subprocess, sys\n"
            f"subprocess.run([sys.executable, '-B', {str(ROOT / 'python/program/light_wheel.py')!r}, '--program', {str(LIGHT)!r},\n"
            "               *sys.argv[1:]], check=True)\n")
        (self.tree / "shardproof").write_text('#!/bin/sh\necho "$@" >called\n')
        (self.tree / "shardproof").chmod(0o755)

    def run_step(self, step, tag=f"v{VERSION}"):
        done = subprocess.run(["sh", "-e", "-c", step], cwd=self.tree, capture_output=True, text=True,
                              env={"PATH": "/usr/local/bin:/usr/bin:/bin", "GITHUB_REF_NAME": tag})
        return done.returncode, done.stdout + done.stderr

    def test_from_the_tag_to_wheels(self):
        self.assertEqual([step.split()[1] for step in STEPS], ["check", "build", "try"])
        for step in STEPS:
            text = self.expect(self.run_step(step), 0)
        self.assertEqual(text, f"shardproof {VERSION} (without LibTorch)\n")
        self.assertEqual((self.tree / "called").read_text(), "package --out dist\n")
        notes = (self.tree / "dist/notes.md").read_text()
        self.assertIn("### Added", notes)
        self.assertNotIn("\n## ", notes)

    def test_a_tag_of_another_version(self):
        self.expect(self.run_step(STEPS[0], "v9.9.9"), 2,
                    f"the tag is v9.9.9, and python/shardproof/__init__.py has the version {VERSION}; tag v{VERSION}")

    def test_a_changelog_without_the_version(self):
        (self.tree / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n### Added\n- something\n")
        self.expect(self.run_step(STEPS[0]), 2, f"CHANGELOG.md has no entry '## {VERSION} - DATE'")


if __name__ == "__main__":
    unittest.main()
