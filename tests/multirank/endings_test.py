#!/usr/bin/env python3
"""However a run ends, nothing of it is left, and what is found is the same on every world: the real program,
real signals.

  endings_test.py PROGRAM
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from processes import descendants, process_of, wait_for  # noqa: E402
from said import SaidTest, ended  # noqa: E402

PROGRAM = ROOT / "build/dev/shardproof-bin"

# Four ranks in mid-step for as long as the test likes: rank 3 sleeps before its fifth call.
SCENARIO = """
name: endings
workload: train
model: {{vocab_size: 40, hidden_size: 24, intermediate_size: 40, num_attention_heads: 4, num_hidden_layers: 1}}
data: {{lengths: [6, 4], sequence_length: 6}}
seed: 4
parallel: {{data_parallel_size: 2, tensor_parallel_size: 2}}
world: {{backend: {backend}, hang_s: 600, deadline_s: 1200}}
faults: [{{kind: hang, rank: 3, at_call: 4}}]
expect: {{verdict: failed, kind: died}}
"""


def used_by(pids):
    """The CPU time of each process; None if one of them waits for the processor or the disk."""
    found = {pid: process_of(pid) for pid in pids}
    sleeps = all(one and one.state == "S" for one in found.values())
    return {pid: one.cpu_time for pid, one in found.items()} if sleeps else None


class Endings(SaidTest):
    def start(self, folder, backend):
        """A run whose ranks are all in the case, and every process of it."""
        scenario = Path(folder) / "endings.yaml"
        scenario.write_text(SCENARIO.format(backend=backend))
        run = subprocess.Popen([PROGRAM, "run", scenario, "--out", Path(folder) / "run"], cwd=ROOT,
                               text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(run.kill)
        names = [f"sp-rank-{rank}" for rank in range(4)] if backend == "gloo" else ["sp-world-4"]
        here = lambda: sorted(descendants(run.pid).values())
        self.assertTrue(wait_for(lambda: set(names) <= set(here())), here())
        seen = [None, None]

        def are_waiting():
            """All are in the step, where three ranks wait for the fourth, which sleeps."""
            time.sleep(0.5)
            seen[:] = [used_by({run.pid, *descendants(run.pid)}), seen[0]]
            return seen[0] is not None and seen[0] == seen[1]
        self.assertTrue(wait_for(are_waiting), seen)
        return run, descendants(run.pid)

    def test_ctrl_c_and_sigterm(self):
        for backend in ("emulated", "gloo"):
            for number in (signal.SIGINT, signal.SIGTERM):
                with self.subTest(backend=backend, signal=number), tempfile.TemporaryDirectory() as folder:
                    run, family = self.start(folder, backend)
                    run.send_signal(number)
                    text = self.expect(ended(run, 200), 130)
                    self.assertEqual([pid for pid in family if process_of(pid)], [], text)

    def test_launcher_killed(self):
        for backend in ("emulated", "gloo"):
            with self.subTest(backend=backend), tempfile.TemporaryDirectory() as folder:
                run, family = self.start(folder, backend)
                run.kill()
                run.communicate(timeout=200)
                self.assertTrue(wait_for(lambda: not any(map(process_of, family)), 60), family)

    def test_rank_or_world_killed_from_outside(self):
        for backend, victim, said in (("gloo", "sp-rank-2", "rank 2: its process was killed by SIGKILL"),
                                      ("emulated", "sp-world-4",
                                       "the process of the emulated world was killed by SIGKILL")):
            with self.subTest(backend=backend), tempfile.TemporaryDirectory() as folder:
                run, family = self.start(folder, backend)
                os.kill(next(pid for pid, name in family.items() if name == victim), signal.SIGKILL)
                text = self.expect(ended(run, 200), 0, said)  # as expected
                self.assertEqual([pid for pid in family if process_of(pid)], [], text)

    def test_golden_killed_from_outside(self):
        """Its case failed: nothing in the program is wrong. A scenario that expects a death means that of a rank."""
        large = ("name: t/large\nworkload: logprobs\nprecision: float64\n"
                 "model: {vocab_size: 4000, hidden_size: 1024, intermediate_size: 4096, num_hidden_layers: 8}\n"
                 "data: {batch_size: 16, sequence_length: 256}\nexpect: {verdict: failed, kind: died}\n")
        for words in (["golden"], ["run", "--backend", "emulated", "--no-cache"]):
            with self.subTest(words[0]), tempfile.TemporaryDirectory() as folder:
                scenario = Path(folder) / "large.yaml"
                scenario.write_text(large)
                out = [] if words == ["golden"] else ["--out", Path(folder) / "run"]
                run = subprocess.Popen([PROGRAM, words[0], scenario, *words[1:], *out], cwd=ROOT, text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                self.addCleanup(run.kill)
                goldens = lambda: [pid for pid, name in descendants(run.pid).items() if name == "sp-golden"]
                self.assertTrue(wait_for(goldens))
                time.sleep(0.3)
                os.kill(goldens()[0], signal.SIGKILL)
                self.expect(ended(run, 200), 3, "the process of the golden was killed by SIGKILL")

    def test_planted_faults_are_one_finding_on_every_world(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([PROGRAM, "run", "scenarios/faults/calls.yaml", "scenarios/faults/ranks.yaml", "--backend",
                            "emulated", "--backend", "gloo", "--out", folder], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            cases = json.loads((Path(folder) / "results.json").read_text())["cases"]
        found = {}
        for case in cases:
            # Where ranks are processes, one may be further on when it is found out.
            message = re.sub(r" \(last collective: .*\)$", "", case["message"], flags=re.MULTILINE)
            found.setdefault(case["name"], {})[case["backend"]] = (case["verdict"], case["kind"], message)
        self.assertGreaterEqual(len(found), 10, found.keys())
        for name, worlds in found.items():
            if "kill" not in name:  # the process of one rank, or of all
                with self.subTest(case=name):
                    self.assertEqual(worlds["emulated"], worlds["gloo"])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        PROGRAM = Path(sys.argv.pop(1)).resolve()
    unittest.main()
