#!/usr/bin/env python3
"""Worlds that Slurm's srun starts: `shardproof rank` under a controller and a daemon of one node, made here.

  srun_test.py PROGRAM

Skipped (exit status 77) where they are not installed (slurmctld slurmd slurm-client munge), or cannot be started.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import machines  # makes tests/support importable
from machines import ROOT, free_port
from processes import MARK, kill_all, marked, process_of, wait_for
from said import SaidTest

SCENARIO = "scenarios/smoke/llama.yaml"
CASE = "smoke/llama[tp4_sp]"
NEEDS = ("munged", "slurmctld", "slurmd", "srun", "sbatch")
READY_S = 60

CONFIG = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=one Nodes={host} Default=YES State=UP
"""

BATCH = """#!/bin/bash
#SBATCH --ntasks=4
#SBATCH --output={folder}/batch.out
cd {root}
export MASTER_ADDR=127.0.0.1 MASTER_PORT={port} SHARDPROOF_SECRET=$(openssl rand -hex 32)
srun {program} rank {scenario} --only '{case}' --out {folder}/batch_run
"""


def ranks_of(mark):
    """Those of a step; srun itself waits until Slurm has noticed."""
    return {pid: name for pid, name in marked(mark).items() if name != "srun"}


def daemons_of(mark):
    """The slurmstepd that started the ranks of a step."""
    parents = {one.parent for one in map(process_of, ranks_of(mark)) if one}
    return {pid for pid in parents if (one := process_of(pid)) and one.name == "slurmstepd"}


class Cluster:
    """Controller, node and munge, in a folder of their own; they end with it."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="slurm."))
        self.folder.chmod(0o755)  # munge wants no folder above its files that others may write to, but /tmp
        for name in ("state", "spool", "munge"):
            (self.folder / name).mkdir()
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        (self.folder / "munge.key").chmod(0o400)
        config = self.folder / "slurm.conf"
        config.write_text(CONFIG.format(folder=self.folder, host=socket.gethostname(), control_port=free_port(),
                                        node_port=free_port()))
        kept = ("SLURM_", "SHARDPROOF_", "MASTER_", "OMPI_", "PMI")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(kept)}
        self.env["SLURM_CONF"] = str(config)
        self.daemons = []

    def begin(self):
        self.start("munged", "-F", "--force", f"--key-file={self.folder}/munge.key",
                   f"--socket={self.folder}/munge.socket", f"--pid-file={self.folder}/munge/pid",
                   f"--log-file={self.folder}/munge/log", f"--seed-file={self.folder}/munge/seed")
        self.wait_for(lambda: (self.folder / "munge.socket").exists())
        self.start("slurmctld", "-D")
        self.start("slurmd", "-D", "-N", socket.gethostname())
        self.wait_for(lambda: "idle" in self.run("sinfo", "--noheader", "--format=%T"))

    def start(self, *words):
        with open(self.folder / f"{words[0]}.out", "w") as out:
            self.daemons.append(subprocess.Popen(words, env=self.env, stdin=subprocess.DEVNULL, stdout=out,
                                                 stderr=subprocess.STDOUT))

    def wait_for(self, ready):
        end = time.monotonic() + READY_S
        while not ready():
            if time.monotonic() > end or any(daemon.poll() is not None for daemon in self.daemons):
                raise OSError("no cluster: " + " ".join(self.texts()))
            time.sleep(0.1)

    def texts(self):
        return [path.read_text()[-300:] for path in sorted(self.folder.glob("*.out"))]

    def run(self, *words, **more):
        """What it prints, whatever its exit status."""
        return subprocess.run(list(map(str, words)), cwd=ROOT, env=self.env | more, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=120).stdout

    def end(self):
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Srun(SaidTest):
    cluster = None

    def ranks(self, count, *words, **more):
        """The exit status of srun, and what the ranks print."""
        env = self.cluster.env | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()} | more
        done = subprocess.run(["srun", "-n", str(count), str(PROGRAM), "rank", *map(str, words)], cwd=ROOT, env=env,
                              text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=180)
        return done.returncode, done.stdout

    def test_four_tasks_are_four_ranks(self):
        out = self.cluster.folder / "run"
        text = self.expect(self.ranks(4, SCENARIO, "--only", CASE, "--out", out), 0)
        cases = json.loads((out / "results.json").read_text())["cases"]
        self.assertEqual([(case["name"], case["verdict"]) for case in cases], [(CASE, "match")], text)

    def test_a_case_for_another_number_of_ranks_is_named(self):
        self.expect(self.ranks(3, SCENARIO, "--only", CASE, "--out", self.cluster.folder / "three"), 2,
                    "no selected case is for 3 ranks")

    def test_a_rank_that_is_killed_is_named_and_the_next_case_runs(self):
        path = self.cluster.folder / "kill.yaml"
        path.write_text("name: t/kill\nmodel: {vocab_size: 24, hidden_size: 16, intermediate_size: 24, "
                        "num_hidden_layers: 1}\ndata: {lengths: [5, 3]}\nparallel: {tensor_parallel_size: 2}\n"
                        "matrix:\n  what:\n"
                        "    - {name: kill, faults: [{kind: kill, rank: 1, at_call: 2}],\n"
                        "       expect: {verdict: failed, kind: died, detector: process}}\n    - {name: right}\n")
        text = self.expect(self.ranks(2, path, "--out", self.cluster.folder / "killed"), 0)
        cases = json.loads((self.cluster.folder / "killed/results.json").read_text())["cases"]
        self.assertEqual([case["verdict"] for case in cases], ["failed", "match"], text)

    def test_ranks_end_without_srun_or_their_daemon(self):
        suite = self.cluster.folder / "gone.yaml"
        suite.write_text("sizes: [65]\nstages: [environment, groups, pairs]\n")
        for victim in ("srun", "slurmstepd"):
            output, mark = self.cluster.folder / f"gone-{victim}", f"{os.getpid()}-{victim}"
            env = self.cluster.env | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),
                                      MARK: mark}
            words = ["srun", "-n", "4", PROGRAM, "validate", suite, "--minutes", "5", "--out", f"{output}.run"]
            with open(output, "w") as file:
                step = subprocess.Popen(list(map(str, words)), cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=file,
                                        stderr=subprocess.STDOUT)
            try:
                self.assertTrue(wait_for(lambda: "pairs" in output.read_text(), 60), output.read_text())
                found = [step.pid] if victim == "srun" else daemons_of(mark)
                self.assertGreater(len(found), 0)
                kill_all(found)
                start = time.monotonic()
                self.assertTrue(wait_for(lambda: not ranks_of(mark), 60),
                                f"{victim}: {ranks_of(mark)}\n{output.read_text()}")
                print(f"without {victim}: all ranks had ended {time.monotonic() - start:.1f} s later", flush=True)
            finally:
                kill_all(marked(mark))
                step.wait()
                self.cluster.run("scancel", "--user=root")

    def test_a_batch_script(self):
        script = self.cluster.folder / "batch.sh"
        script.write_text(BATCH.format(folder=self.cluster.folder, root=ROOT, program=PROGRAM, scenario=SCENARIO,
                                       case=CASE, port=free_port()))
        text = self.cluster.run("sbatch", "--wait", script)
        said = (self.cluster.folder / "batch.out").read_text()
        cases = json.loads((self.cluster.folder / "batch_run/results.json").read_text())["cases"]
        self.assertEqual([case["verdict"] for case in cases], ["match"], text + said)

    def test_a_batch_script_may_start_ranks_on_its_host(self):
        out, script = self.cluster.folder / "own_ranks", self.cluster.folder / "own_ranks.sh"
        script.write_text(f"#!/bin/bash\n#SBATCH --ntasks=4\n#SBATCH --output={out}.out\ncd {ROOT}\n"
                          f"{PROGRAM} validate examples/validate/short.yaml --ranks 2 --out {out}\n")
        text = self.cluster.run("sbatch", "--wait", script)
        self.assertTrue((out / "validation.json").exists(), text + Path(f"{out}.out").read_text())
        found = json.loads((out / "validation.json").read_text())
        self.assertEqual((found["exit_status"], found["world_size"], found["findings"]), (0, 2, []))

    def test_the_batch_script_of_examples_validates(self):
        out = self.cluster.folder / "validated"
        text = self.cluster.run("sbatch", "--wait", "--nodes=1", "--ntasks-per-node=4", f"--output={out}.out",
                                "examples/cluster/validate.sbatch", "examples/validate/short.yaml", "--out", out,
                                MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), SHARDPROOF=str(PROGRAM))
        self.assertTrue((out / "validation.json").exists(), text + Path(f"{out}.out").read_text())
        found = json.loads((out / "validation.json").read_text())
        self.assertEqual((found["exit_status"], found["world_size"], found["findings"]), (0, 4, []))


def interrupted(*_):
    raise KeyboardInterrupt


if __name__ == "__main__":
    PROGRAM = machines.program()
    missing = [name for name in NEEDS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        print(f"skipped: needs root and {', '.join(NEEDS)} "
              f"(apt-get install slurmctld slurmd slurm-client munge); missing: {', '.join(missing) or 'root'}")
        sys.exit(77)
    signal.signal(signal.SIGTERM, interrupted)
    Srun.cluster = Cluster()
    try:
        try:
            Srun.cluster.begin()
        except OSError as error:
            print(f"skipped: {error}")
            sys.exit(77)
        result = unittest.main(exit=False).result
    finally:
        Srun.cluster.end()
    sys.exit(0 if result.wasSuccessful() else 1)
