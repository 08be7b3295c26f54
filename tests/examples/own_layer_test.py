#!/usr/bin/env python3
"""examples/own_layer, built outside the tree against a build of ours, and what its programs find.

Usage: own_layer_test.py BUILD_FOLDER [unittest arguments]
"""
import html
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXAMPLE = os.path.join(ROOT, "examples", "own_layer")
BUILD = os.path.join(ROOT, "build", "dev")
LIMIT_S = 240  # a hang, not a wall-time test


def call(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=LIMIT_S)


class OwnLayer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.build = os.path.join(cls.scratch.name, "build")
        made = call("cmake", "-G", "Ninja", "-S", EXAMPLE, "-B", cls.build, f"-Dshardproof_DIR={BUILD}",
                    "-DCMAKE_CXX_FLAGS=-O0")
        assert made.returncode == 0, made.stdout + made.stderr
        built = call("cmake", "--build", cls.build)
        assert built.returncode == 0, built.stdout + built.stderr

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def run_one(self, program, scenario, *more, status=None):
        """A finished run, which must end with `status`; None: with any."""
        done = call(os.path.join(self.build, program), "run", os.path.join(EXAMPLE, scenario), "--out", self.out(), *more)
        if status is not None:
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def out(self, *parts):
        return Path(self.scratch.name, "out", *parts)

    def test_the_right_layer_matches_on_every_mesh_and_world(self):
        done = self.run_one("own_layer", "own_layer.yaml", "--backend", "emulated,gloo", status=0)
        self.assertIn("16 cases: 16 match", done.stdout)

    def test_a_bias_that_counts_twice_is_found_in_the_output(self):
        done = self.run_one("own_layer_wrong", "bias_in_every_addend.yaml", "--backend", "emulated", status=1)
        self.assertRegex(done.stdout, r"tensor +y ")
        self.assertRegex(done.stdout, r"likely +a bias .* is added once too often")
        self.assertIn("h was right on that rank", done.stdout)
        self.assertRegex(done.stdout, rf"replay +{self.build}/own_layer_wrong run \S+/bias_in_every_addend\.yaml --only")

    def test_a_missing_backward_sum_is_named(self):
        done = self.run_one("own_layer_wrong", "no_sum_in_backward.yaml", "--backend", "emulated", status=1)
        self.assertRegex(done.stdout, r"tensor +grad\.x ")
        self.assertRegex(done.stdout, r"likely +the sum over tp is missing")

    def test_the_reports_of_the_readme_are_those_of_the_program(self):
        blocks = Path(EXAMPLE, "README.md").read_text(encoding="utf-8").split("```\n")
        samples = [block for block in blocks if block.startswith("MISMATCH")]
        self.assertEqual(len(samples), 2)
        for sample, scenario in zip(samples, ("bias_in_every_addend.yaml", "no_sum_in_backward.yaml")):
            done = self.run_one("own_layer_wrong", scenario, "--backend", "emulated")
            here = done.stdout.replace(self.build, "build/own_layer").replace(EXAMPLE, "examples/own_layer")
            self.assertIn(sample, here)

    def shared_weight(self, mistake, world, status):
        """The run of a million shared elements with this mistake, and its one case in results.json."""
        text = Path(EXAMPLE, "shared_weight.yaml").read_text(encoding="utf-8")
        scenario = Path(self.scratch.name, "shared_weight.yaml")
        scenario.write_text(text.replace("mistake: none", "mistake: " + mistake), encoding="utf-8")
        done = self.run_one("own_layer_wrong", scenario, "--backend", world, status=status)
        return done, json.loads(self.out("results.json").read_text(encoding="utf-8"))["cases"][0]

    def test_a_million_addends_are_all_counted(self):
        for world in ("emulated", "gloo"):
            _, case = self.shared_weight("none", world, 0)
            self.assertEqual(case["verdict"], "match")
            gradient = next(tensor for tensor in case["tensors"] if tensor["name"] == "grad.w")
            self.assertEqual(gradient["outcome"], "match")
            # the gradient on four ranks, y and the gradient of x once
            self.assertEqual(case["elements_compared"], 4 * 1000000 + 4 * 1000 + 4 * 1000)

    def test_one_wrong_element_of_a_million_addends_is_named(self):
        done, case = self.shared_weight("element", "emulated", 1)
        self.assertRegex(done.stdout, r"tensor +grad\.w ")
        self.assertRegex(done.stdout, r"worst +\[12, 34\] ")
        self.assertEqual(case["divergence"]["worst"]["bad_count"], 1)

    def test_a_missing_addend_is_named(self):
        done, _ = self.shared_weight("lost", "emulated", 1)
        self.assertRegex(done.stdout, r"tensor +grad\.w ")
        self.assertIn("the addend of rank 1 is 0 everywhere", done.stdout)

    def test_the_last_lines_of_a_dead_rank_are_everywhere(self):
        for world in ("emulated", "gloo"):
            done, case = self.shared_weight("dies", world, 3)
            dead = next(rank for rank in case["ranks"] if rank["ending"] == "died")  # another may print that it lost it
            log = self.out(dead["log"]).read_text(encoding="utf-8")
            told = {"the terminal": done.stdout, "results.json": dead["printed"], "the log": log}
            python = os.path.join(ROOT, ".venv", "bin", "python")
            if os.path.exists(python):
                page = call(python, "-B", os.path.join(ROOT, "reports", "report.py"), self.out())
                self.assertEqual(page.returncode, 0, page.stdout + page.stderr)
                source = self.out("report.html").read_text(encoding="utf-8")
                told["the page"] = html.unescape(source.split("what its process printed")[1])
            for place, text in told.items():
                for line in ("reading the weights", "of a <shard>", "that is not there"):
                    self.assertIn(line, text, f"{world}: {place}")

    def test_the_right_layer_is_registered_in_under_60_lines(self):
        self.assertLess(len(Path(EXAMPLE, "own_layer.cpp").read_text(encoding="utf-8").splitlines()), 60)

    def test_another_program_does_not_know_the_workload_and_says_which_it_knows(self):
        done = self.run_one("own_layer_wrong", "own_layer.yaml", status=2)
        self.assertRegex(done.stderr, r"own_layer\.yaml:3:\d+: workload is 'own_layer'; known are train, logprobs, "
                                      r"policy, bias_in_every_addend, no_sum_in_backward, shared_weight")


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BUILD = os.path.abspath(sys.argv.pop(1))
    unittest.main()
