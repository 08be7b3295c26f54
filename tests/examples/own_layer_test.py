#!/usr/bin/env python3
"""examples/own_layer, built outside the tree against a build of ours, and what its programs find.

Usage: own_layer_test.py BUILD_FOLDER [unittest arguments]
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

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

    def run_one(self, program, scenario, *more):
        out = os.path.join(self.scratch.name, "out")
        return call(os.path.join(self.build, program), "run", os.path.join(EXAMPLE, scenario), "--out", out, *more)

    def test_the_right_layer_matches_on_every_mesh_and_world(self):
        done = self.run_one("own_layer", "own_layer.yaml", "--backend", "emulated,gloo")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("16 cases: 16 match", done.stdout)

    def test_a_bias_that_counts_twice_is_found_in_the_output(self):
        done = self.run_one("own_layer_wrong", "bias_in_every_addend.yaml", "--backend", "emulated")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"tensor +y ")
        self.assertRegex(done.stdout, r"likely +a bias .* is added once too often")
        self.assertIn("h was right on that rank", done.stdout)

    def test_a_missing_backward_sum_is_named(self):
        done = self.run_one("own_layer_wrong", "no_sum_in_backward.yaml", "--backend", "emulated")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"tensor +grad\.x ")
        self.assertRegex(done.stdout, r"likely +the sum over tp is missing")

    def test_the_right_layer_is_registered_in_under_60_lines(self):
        with open(os.path.join(EXAMPLE, "own_layer.cpp"), encoding="utf-8") as file:
            self.assertLess(len(file.readlines()), 60)

    def test_another_program_does_not_know_the_workload_and_says_which_it_knows(self):
        done = self.run_one("own_layer_wrong", "own_layer.yaml")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"own_layer\.yaml:3:\d+: workload is 'own_layer'; known are train, logprobs, "
                                      r"policy, bias_in_every_addend, no_sum_in_backward")


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BUILD = os.path.abspath(sys.argv.pop(1))
    unittest.main()
