#!/usr/bin/env python3
"""Runs scenarios that are too wide for every run: sequences over 1 to 16 ranks, and the cases that golden/hf pins to
Hugging Face transformers on every small mesh. All run in the emulated world.

  wide_meshes_test.py PROGRAM [BACKEND [SHARES]]    of SHARES equal shares of the cases only the first; default: 1
"""

import json
import re
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import loaded  # noqa: E402

PROGRAM, BACKEND, SHARES = ROOT / "build/dev/shardproof-bin", "emulated", 1


def run_all(*scenarios):
    """(exit status, cases, last output) of a run of these files and folders."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([PROGRAM, "run", *scenarios, "--all", "--backend", BACKEND, "--no-skips", "--out", folder,
                               "--shard", f"1/{SHARES}"],
                              cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, json.loads((Path(folder) / "results.json").read_text())["cases"], done.stdout[-2000:]


class WideMeshes(unittest.TestCase):
    def test_sequences_shared_by_all_small_meshes(self):
        status, cases, text = run_all("scenarios/sequences")
        self.assertEqual(status, 0, text)
        self.assertEqual(Counter(case["verdict"] for case in cases), {"match": -(-520 // SHARES)})
        if SHARES == 1:
            self.assertEqual({case["world_size"] for case in cases}, {1, 2, 3, 4, 6, 8, 9, 12, 16})

    def test_hugging_face_on_all_small_meshes(self):
        status, cases, text = run_all("scenarios/families/hugging_face.yaml",
                                      "scenarios/families/hugging_face_3_heads.yaml")
        self.assertEqual(status, 0, text)
        counts = Counter(case["verdict"] for case in cases)
        if SHARES == 1:  # four heads do not divide by 3, nor three by 2 and 4
            self.assertEqual(counts, {"match": 516, "refused": 84})
        self.assertEqual(sum(counts.values()), -(-600 // SHARES))
        self.assertEqual(set(counts), {"match", "refused"})

    def test_every_case_of_golden_hf_is_in_it_and_agrees_with_the_golden(self):
        text = "".join(path.read_text() for path in sorted((ROOT / "scenarios/families").glob("*.yaml")))
        folders = sorted(path.parent.name for path in (ROOT / "golden/hf").glob("*/case.json"))
        self.assertEqual(sorted(set(re.findall(r"golden/hf/(\w+)", text))), folders)
        for folder in folders:
            with self.subTest(case=folder):
                done = loaded.run([PROGRAM, "check", f"golden/hf/{folder}", "--mesh", "dp=2"], cwd=ROOT, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                self.assertEqual(done.returncode, 0, done.stdout)
                self.assertIn("expected.safetensors agrees with the golden", done.stdout)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        PROGRAM = Path(sys.argv.pop(1)).resolve()
    if len(sys.argv) > 1:
        BACKEND = sys.argv.pop(1)
    if len(sys.argv) > 1:
        SHARES = int(sys.argv.pop(1))
    unittest.main()
