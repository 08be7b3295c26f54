#!/usr/bin/env python3
"""Worlds that torchrun and OpenMPI's mpirun start: `shardproof rank`, the real launchers.

  launchers_test.py PROGRAM
"""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import machines
from machines import ROOT, free_port

VENV = ROOT / ".venv"
SCENARIO = "scenarios/smoke/llama.yaml"
FAULTS = "scenarios/faults/ranks.yaml"


def torchrun(ranks):
    stand_ins = subprocess.run([VENV / "bin/python", ROOT / "tests/support/cuda_stand_ins.py", VENV],
                               check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
    return ([VENV / "bin/python", "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
             "--master-port", free_port(), "--no-python"], {"LD_LIBRARY_PATH": stand_ins})


def mpirun(ranks):
    # More ranks than cores, and as root in a container: both need saying.
    return (["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)],
            {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()})


class Launchers(unittest.TestCase):
    def run_ranks(self, launcher, ranks, case, scenario=SCENARIO):
        """(exit status, all output, results.json of the run or None)"""
        command, env = launcher(ranks)
        only = ["--only", case] if case else []
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            done = subprocess.run(
                command + [PROGRAM, "rank", scenario, *only, "--out", out], cwd=ROOT,
                env=os.environ | env, text=True, stdin=subprocess.DEVNULL, timeout=360,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            results = out / "results.json"
            return (done.returncode, done.stdout,
                    json.loads(results.read_text()) if results.is_file() else None)

    def assert_match(self, launcher, ranks, case):
        status, text, results = self.run_ranks(launcher, ranks, case)
        self.assertEqual(status, 0, text)
        self.assertIsNotNone(results, text)
        self.assertEqual([found["verdict"] for found in results["cases"]], ["match"], text)
        self.assertEqual(len(results["cases"][0]["ranks"]), ranks)
        self.assertGreater(results["cases"][0]["tensors_compared"], 100)

    def assert_faults_are_named_and_later_cases_run(self, launcher):
        """Ranks die, hang, throw and disagree, one case after the other, and a right case comes last."""
        status, text, results = self.run_ranks(launcher, 4, None, scenario=FAULTS)
        self.assertEqual(status, 0, text)  # each ended as the scenario expects
        found = {case["name"]: case for case in results["cases"]}
        self.assertEqual(found["faults/ranks[right]"]["verdict"], "match")
        # Both ranks with both calls and labels, as one rank left its call out.
        self.assertRegex(found["faults/ranks[skip]"]["message"],
                         r"ranks \d and \d disagree on call .*Rank \d: \w+.* '[^']+'\. Rank \d: \w+.* '[^']+'")

    def assert_wrong_size_is_said(self, launcher):
        status, text, results = self.run_ranks(launcher, 3, "smoke/llama[tp2]")
        self.assertNotEqual(status, 0, text)
        self.assertIsNone(results, text)
        self.assertRegex(text, r"shardproof: .*\b3\b")
        self.assertNotIn("fault in shardproof", text)

    @unittest.skipUnless(VENV.is_dir(), "torchrun comes with .venv, which --torch DIR leaves out")
    def test_torchrun(self):
        self.assert_match(torchrun, 4, "smoke/llama[dp2_tp2_sp]")
        self.assert_match(torchrun, 1, "smoke/llama[one_rank]")
        self.assert_faults_are_named_and_later_cases_run(torchrun)
        self.assert_wrong_size_is_said(torchrun)

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun; Debian: openmpi-bin")
    def test_mpirun(self):
        self.assert_match(mpirun, 4, "smoke/llama[dp2_tp2_sp]")
        self.assert_match(mpirun, 1, "smoke/llama[one_rank]")
        self.assert_faults_are_named_and_later_cases_run(mpirun)
        self.assert_wrong_size_is_said(mpirun)


if __name__ == "__main__":
    PROGRAM = machines.program()
    unittest.main()
