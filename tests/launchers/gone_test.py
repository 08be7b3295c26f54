#!/usr/bin/env python3
"""Processes that are killed beside the ranks: the launcher's, and rank 0's. The ranks end by themselves, within a bound
and with a sentence, and leave no process and no port behind.

  gone_test.py PROGRAM [--many]

--many adds a host that is switched off, which takes half a minute. srun is in srun_test.py.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import unittest

import launchers_test
import machines  # makes tests/support importable
from processes import MARK, kill_all, marked, wait_for

MANY = "--many" in sys.argv
SUITE = "sizes: [65]\nstages: [environment, groups, pairs]\n"
RANKS = 4
BOUND_S = 60  # a hang, not a wall-time test
SSH = '#!/bin/bash\nwhile [[ $1 == -o ]]; do shift 2; done\nshift\nexec bash -c "$*"\n'


class Gone(machines.FolderTest):
    def setUp(self):
        super().setUp()
        (self.folder / "suite.yaml").write_text(SUITE)
        self.mark = f"{os.getpid()}-{self.id()}"
        self.addCleanup(lambda: kill_all(marked(self.mark)))

    def start(self, words, **env):
        """Its output is a file, as a pipe may go with the launcher."""
        env = machines.own_environment() | env | {MARK: self.mark}
        with open(self.folder / "output", "ab") as output:
            process = subprocess.Popen(list(map(str, words)), cwd=machines.ROOT, env=env,
                                       stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def validate(self, *words):
        return [PROGRAM, "validate", self.folder / "suite.yaml", "--minutes", 5, "--out", self.folder / "run", *words]

    def text(self):
        return (self.folder / "output").read_text()

    def wait_until_it_runs(self):
        self.assertTrue(wait_for(lambda: "pairs" in self.text()), self.text())

    def assert_ended(self, port, bound_s=BOUND_S):
        """All processes, and nobody listens."""
        self.assert_marked_end(self.mark, self.text, bound_s)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", int(port)))

    def assert_said(self, launcher):
        """By the process of rank 0, and by those of the others if they did not hear of rank 0's end first."""
        said = re.findall(rf"shardproof: rank \d: {launcher}, which started it, has gone; it ends", self.text())
        ended = re.findall(r"shardproof: rank \d: rank 0's process at \S+ has closed the connection; this rank ends",
                           self.text())
        self.assertIn("rank 0: ", "".join(said), self.text())
        self.assertGreaterEqual(len(said) + len(ended), RANKS, self.text())

    @unittest.skipUnless(launchers_test.VENV.is_dir(), "torchrun comes with .venv, which --torch DIR leaves out")
    def test_torchrun(self):
        command, env = launchers_test.torchrun(RANKS)
        agent = self.start(command + self.validate(), **env)
        self.wait_until_it_runs()
        agent.kill()
        self.assert_ended(command[command.index("--master-port") + 1])
        self.assert_said("torchrun")
        written = json.loads((self.folder / "run/validation.json").read_text())
        self.assertEqual((written["exit_status"], written["interrupted"]), (130, True))

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun; Debian: openmpi-bin")
    def test_mpirun(self):
        command, env = launchers_test.mpirun(RANKS)
        launcher = self.start(command + self.validate(), **env)
        self.wait_until_it_runs()
        launcher.kill()  # and with it the pipes of what the ranks say
        self.assert_ended(env["MASTER_PORT"])

    def test_ssh_hosts(self):
        (self.folder / "ssh").write_text(SSH)
        (self.folder / "ssh").chmod(0o755)
        port = machines.free_port()
        script = self.start([machines.ROOT / "examples/cluster/ssh_hosts.sh", "-n", RANKS // 2, "first", "second", "--",
                             *self.validate()[1:]], SHARDPROOF=str(PROGRAM), MASTER_ADDR="127.0.0.1",
                            MASTER_PORT=port, PATH=f"{self.folder}:{os.environ['PATH']}", TMPDIR=str(self.folder))
        self.wait_until_it_runs()
        script.kill()
        self.assertTrue(wait_for(lambda: set(marked(self.mark).values()) <= {"sleep"}, BOUND_S),
                        f"{marked(self.mark)}\n{self.text()}")
        self.assert_ended(port, 5)  # a sleep that outlived its shell would stay for 10 s

    def start_ranks(self, port, place=lambda rank, words: words, address="127.0.0.1", ranks=RANKS):
        return [self.start(place(rank, self.validate()), OMPI_COMM_WORLD_RANK=str(rank),
                           OMPI_COMM_WORLD_SIZE=str(ranks), MASTER_ADDR=address, MASTER_PORT=str(port),
                           SHARDPROOF_SECRET="that all ranks of this test share") for rank in range(ranks)]

    def test_rank_0(self):
        port = machines.free_port()
        control, *others = self.start_ranks(port)
        self.wait_until_it_runs()
        control.kill()
        self.assertEqual([other.wait(BOUND_S) for other in others], [3] * len(others), self.text())
        self.assert_ended(port)
        for rank in range(1, RANKS):
            self.assertRegex(self.text(), rf"rank {rank}: rank 0's process at 127\.0\.0\.1:{port} has closed the "
                                          "connection; this rank ends")

    @unittest.skipUnless(MANY, "runs with --many")
    def test_a_host_that_is_switched_off(self):
        both = machines.linked(("10.77.7.1", "10.77.7.2"))
        if both is None:
            self.skipTest("no right to make network namespaces here")
        for machine in both:
            self.addCleanup(machine.end)
        port = machines.free_port()
        _, other = self.start_ranks(port, lambda rank, words: both[rank].command(*words), "10.77.7.1", ranks=2)
        self.wait_until_it_runs()
        both[0].run("ip", "link", "set", "link0", "down")
        start = time.monotonic()
        self.assertEqual(other.wait(60), 3, self.text())
        self.assertGreater(time.monotonic() - start, 25)  # a link that is back within 25 s ends no rank
        self.assertRegex(self.text(), rf"rank 1: rank 0's process at 10\.77\.7\.1:{port} has not answered for 30 s; "
                                      "this rank ends")
        self.assert_ended(port, 60)


if __name__ == "__main__":
    PROGRAM = machines.program()
    unittest.main(argv=[word for word in sys.argv if word != "--many"])
