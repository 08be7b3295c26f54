#!/usr/bin/env python3
"""Which program the script ./shardproof builds in a fresh clone: the smaller one of a first verdict, or the whole."""

import shutil
import subprocess
import time
import unittest

from stub import Stub


class FirstProgram(Stub):
    def built(self):
        """{program: its version} of the programs in the build folder."""
        found = {}
        for name in ("shardproof-first", "shardproof-bin"):
            program = self.stub / "build/release" / name
            if program.exists():
                found[name] = subprocess.check_output([program], text=True).strip()
        return found

    def test_the_first_run_builds_a_smaller_program_and_other_commands_the_whole(self):
        torch = {"SHARDPROOF_TORCH": str(self.installed_torch())}
        self.assertIn("built (cold) in", self.assert_says("first [run] [x]\n", "run", "x", **torch))
        self.assertEqual(self.built(), {"shardproof-first": "first"})
        for command in ("run", "check", "golden", "list", "lint", "calls", "rank", "doctor"):
            status, out, err = self.call(command, **torch)
            self.assertEqual((status, out.splitlines()[-1], err), (0, f"first [{command}]", ""))
        time.sleep(0.02)
        self.write_program("second")
        self.assert_says("second [run]\n", "run", **torch)
        self.assertEqual(self.built(), {"shardproof-first": "second"})
        self.assertIn("built (cold) in", self.assert_says("second [fuzz] [y]\n", "fuzz", "y", **torch))
        self.assertEqual(self.built(), {"shardproof-first": "second", "shardproof-bin": "second"})
        # From now on it is the whole program that is brought up to date.
        time.sleep(0.02)
        self.write_program("third")
        self.assert_says("third [run]\n", "run", **torch)
        self.assertEqual(self.built(), {"shardproof-first": "second", "shardproof-bin": "third"})
        self.assertEqual(self.assert_says("third [describe]\n", "describe", **torch), "")

    def test_what_the_smaller_program_lacks_is_built_at_once(self):
        torch = {"SHARDPROOF_TORCH": str(self.installed_torch())}
        for words in (("run", "a b", "--shrink"), ("describe", "--help"), ("fuzz",), ("logprobs", "a", "b"),
                      ("shrink", "x"), ("validate",)):
            shutil.rmtree(self.stub / "build", ignore_errors=True)
            self.assert_says("first " + " ".join(f"[{word}]" for word in words) + "\n", *words, **torch)
            self.assertEqual(self.built(), {"shardproof-bin": "first"}, words)


if __name__ == "__main__":
    unittest.main()
