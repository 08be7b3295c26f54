"""The reproductions of examples/upstream end as examples/upstream/results.json says, where the same versions are installed, and
docs/upstream.md is what these results give."""

import importlib.metadata
import json
import subprocess
import sys
import unittest
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "upstream"
RESULTS = json.loads((FOLDER / "results.json").read_text())["scripts"]
SECONDS = 300


def installed(package):
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


class UpstreamTest(unittest.TestCase):
    def test_each_script_ends_as_it_was_seen(self):
        for name, seen in RESULTS.items():
            with self.subTest(script=name):
                lacking = {package: version for package, version in seen["versions"].items() if installed(package) != version}
                if lacking:
                    print(f"{name} was seen with {lacking}, which are not installed", flush=True)
                    continue
                done = subprocess.run([sys.executable, "-B", FOLDER / name], text=True, capture_output=True, timeout=SECONDS,
                                      check=False)
                print(name, done.stdout, flush=True)
                self.assertEqual(done.returncode, seen["status"], done.stdout + done.stderr)
                self.assertIn("reference", done.stdout)  # an exception ends with status 1, too

    def test_each_script_was_seen_and_is_short(self):
        scripts = {path.name for path in FOLDER.glob("*_*.py")}
        self.assertEqual(scripts, set(RESULTS))
        for name in scripts:
            self.assertLessEqual(len((FOLDER / name).read_text().splitlines()), 60, name)

    def test_the_page_is_what_the_results_give(self):
        done = subprocess.run([sys.executable, "-B", FOLDER / "page.py", "--check"], check=False)
        self.assertEqual(done.returncode, 0, "docs/upstream.md is another; run python examples/upstream/page.py")


if __name__ == "__main__":
    unittest.main()
