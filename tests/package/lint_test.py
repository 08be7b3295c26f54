#!/usr/bin/env python3
"""shardproof-lint, built without LibTorch, says what `shardproof lint` says: lint_test.py PROGRAM."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(sys.argv.pop()).resolve()

WRONG = {
    "key.yaml": "name: t/key\nparallel: {tensor_parallel_sise: 2}\nseed: one\n",
    "option.yaml": "name: t/option\nworkload: mapping\noptions: {dimm: 0}\n",
    "option_type.yaml": "name: t/option_type\nworkload: refit\noptions: {budget_bytes: many}\n",
    "workload.yaml": "name: t/workload\nworkload: maping\n",
    "mesh.yaml": "name: t/mesh\nparallel: {data_parallel_size: 0}\n",
    "plan.yaml": "name: t/plan\nparallel: {custom_parallel_plan: {'*.mlp.downn_proj': RowParallel}}\n",
    "heads.yaml": "name: t/heads\nmodel: {num_attention_heads: 3, num_key_value_heads: 2}\n",
    "no.yaml": "name: [",
}


class Lint(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="lint."))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        for name, text in WRONG.items():
            (cls.folder / name).write_text(text)
        build = cls.folder / "build"
        launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
        env = os.environ | {"CCACHE_BASEDIR": str(ROOT)}
        for command in (["cmake", "--preset", "lint", "-B", build, *launcher], ["ninja", "-C", build]):
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, env=env)
        cls.lint = build / "shardproof-lint"

    def both(self, *arguments):
        """Exit status, output and errors, which are the same."""
        said = []
        for command in ([self.lint], [PROGRAM, "lint"]):
            done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True)
            said.append((done.returncode, done.stdout, done.stderr))
        self.assertEqual(*said)
        return said[0]

    def test_it_links_no_libtorch(self):
        libraries = subprocess.check_output(["ldd", self.lint], text=True)
        self.assertNotIn("torch", libraries)
        self.assertNotIn("not found", libraries)

    def test_it_knows_the_workloads_of_the_program(self):
        printed = subprocess.check_output([PROGRAM, "schema", "--workloads"], text=True)
        self.assertEqual((ROOT / "scenarios/workloads.json").read_text(), printed,
                         "write it anew: shardproof schema --workloads > scenarios/workloads.json")

    def test_all_scenarios_are_right(self):
        status, out, _ = self.both("scenarios")
        self.assertEqual(status, 0)
        self.assertRegex(out, r"^\d{3,} files, \d{3,} cases: no errors\n$")
        self.both()

    def test_each_wrong_file_is_named(self):
        for name in WRONG:
            status, out, err = self.both(str(self.folder / name))
            self.assertEqual((status, out), (2, ""), name)
            self.assertIn(name, err)
        self.both(*(str(self.folder / name) for name in WRONG))

    def test_a_file_that_is_missing(self):
        self.assertEqual(self.both("no/such/file.yaml")[0], 2)


if __name__ == "__main__":
    unittest.main()
