#!/usr/bin/env python3
"""Tests lines that say what happens: which run is the latest, for whom a rank waits, which commands there are.

Usage: lines_test.py PROGRAM [unittest arguments]
"""
import os
import shutil
import socket
import subprocess
from pathlib import Path

import cli_test

PACKAGES = Path(__file__).resolve().parents[2] / "python"

SCENARIO = """
name: t/lines
model: {vocab_size: 24, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1}
data: {lengths: [5, 3]}
parallel: {tensor_parallel_size: 2}
"""


class Lines(cli_test.CommandTest):
    def setUp(self):
        super().setUp()
        self.write("s.yaml", SCENARIO)

    def test_a_folder_in_the_place_of_the_latest_run_stays_and_is_said(self):
        os.makedirs(self.path("runs/latest"))
        self.write("runs/latest/notes", "mine")
        done = self.run_to_end("run", "s.yaml", "--backend", "emulated", status=0)
        self.assertRegex(done.stderr, r"^shardproof: runs/latest is not a link and stays as it is; this run is in runs/\S+, ")
        self.assertEqual(os.listdir(self.path("runs/latest")), ["notes"])
        shutil.rmtree(self.path("runs"))
        self.assertEqual(self.run_program("run", "s.yaml", "--backend", "emulated").stderr, "")
        self.assertTrue(os.path.islink(self.path("runs/latest")))

    def test_a_lone_rank_says_for_whom_it_waits(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(port)}
        for words in (["rank", "s.yaml"], ["validate"]):
            rank = subprocess.Popen([cli_test.PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    cwd=self.scratch, env=os.environ | place)
            line = rank.stderr.readline()
            rank.terminate()
            rank.communicate(timeout=cli_test.LIMIT_S)
            self.assertEqual(line, f"shardproof: rank 0 of 2 waits for the others at 127.0.0.1:{port}\n")

    def test_every_command_is_in_the_help(self):
        text = self.run_program("--help").stdout
        for command in ("run", "fuzz", "shrink", "lint", "describe", "calls", "check", "judge", "golden", "rank", "report",
                        "compare-runs", "logprobs", "model", "mutants", "score", "schema", "completion", "doctor", "version"):
            self.assertRegex(text, rf"(?m)^  {command} ")

    def test_score_and_model_are_commands_of_the_python_package(self):
        self.environment["PYTHONPATH"] = str(PACKAGES)
        done = self.run_program("model", "--help")
        self.assertIn(done.returncode, (0, 2))
        self.assertRegex(done.stdout + done.stderr, r"\A(usage: shardproof model|shardproof: model needs the module )")
        done = self.run_to_end("score", "--help", status=0)
        self.assertTrue(done.stdout.startswith("usage: shardproof score"), done.stdout)
        done = self.run_program("score", "--", "python3", "-c", "import sys; sys.exit(7)")
        self.assertEqual((done.returncode, done.stderr), (2, "shardproof score: the command ends with status 7 without a "
                                                             "fault; make it pass first\n"))
        self.environment["PYTHONPATH"] = "/none"
        done = self.run_to_end("score", "--", "true", status=2)
        self.assertIn("pip install ./python", done.stderr)


if __name__ == "__main__":
    cli_test.main()
