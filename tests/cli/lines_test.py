#!/usr/bin/env python3
"""Tests lines that say what happens: which run is the latest, for whom a rank waits, which commands there are.

Usage: lines_test.py PROGRAM [unittest arguments]
"""
import os
import socket
import subprocess
import sys
import tempfile
import unittest

PROGRAM = "build/dev/shardproof-bin"
LIMIT_S = 120  # a hang, not a wall-time test

SCENARIO = """
name: t/lines
model: {vocab_size: 24, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1}
data: {lengths: [5, 3]}
parallel: {tensor_parallel_size: 2}
"""


class Lines(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        with open(self.path("s.yaml"), "w", encoding="utf-8") as file:
            file.write(SCENARIO)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def run_here(self, *words):
        return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=LIMIT_S, cwd=self.folder.name)

    def test_a_folder_in_the_place_of_the_latest_run_stays_and_is_said(self):
        os.makedirs(self.path("runs/latest"))
        with open(self.path("runs/latest/notes"), "w", encoding="utf-8") as file:
            file.write("mine")
        done = self.run_here("run", "s.yaml", "--backend", "emulated")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"^shardproof: runs/latest is no link and stays as it is; this run is in runs/\S+, ")
        self.assertEqual(os.listdir(self.path("runs/latest")), ["notes"])
        again = self.path("again")
        os.makedirs(again)
        os.rename(self.path("s.yaml"), os.path.join(again, "s.yaml"))
        done = subprocess.run([PROGRAM, "run", "s.yaml", "--backend", "emulated"], capture_output=True, text=True,
                              timeout=LIMIT_S, cwd=again)
        self.assertEqual(done.stderr, "")
        self.assertTrue(os.path.islink(os.path.join(again, "runs/latest")))

    def test_a_lone_rank_says_for_whom_it_waits(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(port)}
        rank = subprocess.Popen([PROGRAM, "rank", "s.yaml"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                cwd=self.folder.name, env=os.environ | place)
        line = rank.stderr.readline()
        rank.terminate()
        rank.communicate(timeout=LIMIT_S)
        self.assertEqual(line, f"shardproof: rank 0 of 2 waits for the others at 127.0.0.1:{port}\n")

    def test_every_command_is_in_the_help(self):
        text = self.run_here("--help").stdout
        for command in ("run", "lint", "describe", "calls", "check", "judge", "golden", "rank", "report",
                        "compare-runs", "logprobs", "mutants", "schema", "completion", "doctor", "version"):
            self.assertRegex(text, rf"(?m)^  {command} ")


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
