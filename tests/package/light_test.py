#!/usr/bin/env python3
"""shardproof-light, built without LibTorch, says what the program says: light_test.py PROGRAM.

It is built where ./shardproof builds it, so that a second call of this test compiles what has changed."""

import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/cli"))
import cli_test  # noqa: E402
import loaded  # noqa: E402
from recorded_test import of, recorded  # noqa: E402
from said import SaidTest  # noqa: E402

from build_light import build_light  # noqa: E402

PROGRAM = Path(sys.argv.pop()).resolve()
CASE = "golden/hf/llama_untied"
EXPECTED = CASE + "/expected.safetensors"

WRONG = {
    "key.yaml": "name: t/key\nparallel: {tensor_parallel_sise: 2}\nseed: one\n",
    "option.yaml": "name: t/option\nworkload: mapping\noptions: {dimm: 0}\n",
    "option_type.yaml": "name: t/option_type\nworkload: refit\noptions: {budget_bytes: many}\n",
    "option_range.yaml": "name: t/option_range\nworkload: refit\noptions: {replicas: 0}\n",
    "option_choice.yaml": "name: t/option_choice\nworkload: refit\noptions: {path: post}\n",
    "workload.yaml": "name: t/workload\nworkload: maping\n",
    "mesh.yaml": "name: t/mesh\nparallel: {data_parallel_size: 0}\n",
    "plan.yaml": "name: t/plan\nparallel: {custom_parallel_plan: {'*.mlp.downn_proj': RowParallel}}\n",
    "heads.yaml": "name: t/heads\nmodel: {num_attention_heads: 3, num_key_value_heads: 2}\n",
    "no.yaml": "name: [",
}


def changed(path, name=None, factor=1.0, lack=()):
    """A copy of EXPECTED at `path`, with the elements of one tensor times `factor`, and without some."""
    kept = {}
    for key, (dtype, shape, _, values) in cli_test.read_safetensors(ROOT / EXPECTED).items():
        if key not in lack:
            values = [value * factor for value in values] if key == name else values
            kept[key] = (dtype, shape, struct.pack(f"<{len(values)}d", *values))
    path.write_bytes(cli_test.case_maker.safetensors(kept))
    return str(path)


class Light(SaidTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        for name, text in WRONG.items():
            (cls.folder / name).write_text(text)
        cls.light = build_light()
        cls.one = recorded().write(str(cls.folder / "one"))

    def both(self, *arguments):
        """Exit status, output and errors, which are the same."""
        said = []
        for program in (self.light, PROGRAM):
            done = loaded.run([program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
            said.append((done.returncode, done.stdout, done.stderr))
        self.assertEqual(*said)
        return said[0]

    def test_it_links_no_libtorch(self):
        self.says(subprocess.check_output(["ldd", self.light], text=True), absent=["torch", "not found"])

    def test_all_scenarios_are_right(self):
        self.expect_patterns(self.both("lint", "scenarios"), 0, r"^(note: .*\n)*\d{3,} files, \d{3,} cases: no errors\n$")
        self.both("lint")

    def test_each_wrong_file_is_named(self):
        for name in WRONG:
            status, out, err = self.both("lint", str(self.folder / name))
            self.assertEqual((status, out), (2, ""), name)
            self.assertIn(name, err)
        self.both("lint", *(str(self.folder / name) for name in WRONG))

    def test_a_file_that_is_missing(self):
        self.assertEqual(self.both("lint", "no/such/file.yaml")[0], 2)

    def run_of(self, name, *arguments):
        return recorded([("dp", 2), ("tp", 2)], *arguments).write(str(self.folder / name))

    def test_recorded_runs(self):
        said = self.both("judge", self.run_of("right"), "--golden", self.one)
        self.assertEqual((said[0], said[2]), (0, ""))
        self.assertRegex(said[1], r"^MATCH .*17 tensors")
        wrong = of("grad", "norm", lambda value, run, rank: 2 * value)
        self.assertRegex(self.both("judge", self.run_of("wrong", wrong), "--golden", self.one)[1],
                         r"^MISMATCH [^$]*every element is 2.00 x golden")
        lost = of("grad", "up", lambda value, run, rank: value * (0.3 + 0.4 * run.at(rank, "dp")))
        self.assertEqual(self.both("judge", self.run_of("lost", lost), "--golden", self.one)[0], 1)
        self.assertEqual(self.both("judge", str(self.folder / "right"))[0], 2)
        self.assertEqual(self.both("judge", self.one, "--golden", str(self.folder / "right"))[0], 2)

    def test_the_answers_of_a_case(self):
        judge = ("judge", CASE, "--golden", EXPECTED)
        same = shutil.copy(ROOT / EXPECTED, self.folder / "same.safetensors")
        status, out, err = self.both(*judge, same)
        self.assertEqual((status, err), (0, ""))
        self.assertRegex(out, r"^MATCH .* 49 tensors, .*\n  against   golden/hf/llama_untied/expected.safetensors\n$")
        twice = changed(self.folder / "twice", "grad.model.norm.weight", 2.0)
        self.expect_patterns(self.both(*judge, twice), 1,
                             r"^MISMATCH [^$]*tensor    grad.model.norm.weight[^$]*every element is 2.00 x golden")
        moved = changed(self.folder / "moved", "step3.param.lm_head.weight", 1 + 1e-5)
        self.assertEqual(self.both(*judge, moved)[0], 1)
        few = changed(self.folder / "few", lack=("grad_norm", "step1.grad_norm"))
        self.expect(self.both(*judge, few)[::2], 2, "48 of 49 tensors were judged")
        self.assertEqual(self.both(*judge, few, "--allow-partial")[0], 0)
        for more in ((), ("--steps", "2", EXPECTED), ("--reference", EXPECTED), ("no/such/file",), ("scenarios",)):
            self.assertEqual(self.both(*judge, *more)[0], 2, more)

    def test_what_needs_libtorch_says_so(self):
        for command in (["judge", CASE, EXPECTED], ["run", "scenarios/smoke"]):
            done = subprocess.run([self.light, *command], cwd=ROOT, capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("run ./shardproof build in a clone", done.stderr)

    def test_the_help_lists_what_is_elsewhere_apart(self):
        text = subprocess.run([self.light, "--help"], capture_output=True, text=True, check=True).stdout
        here, elsewhere = text.split("Only in the whole program (./shardproof build in a clone):\n")
        self.assertRegex(here, r"\n  judge +Judge")
        self.assertNotRegex(here, r"\n  run ")
        self.assertRegex(elsewhere, r"^  run +Run")
        self.assertIn("shardproof judge recorded/tp2", elsewhere)
        self.assertNotIn("shardproof run", elsewhere)
        # A command of the Python package goes to it, as in the whole program.
        self.both("model", "--no-such-option")


if __name__ == "__main__":
    unittest.main()
