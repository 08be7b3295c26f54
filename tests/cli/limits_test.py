#!/usr/bin/env python3
"""Cases that this machine cannot hold: they are refused before anything starts, with both numbers and the flag that
starts them anyway. What runs out nevertheless is a sentence.

Usage: limits_test.py PROGRAM [unittest arguments]
"""
import json
import os
import re
import resource
import subprocess

import cli_test

LIMIT_S = 300  # a hang, not a wall-time test
GIB = 1 << 30

LARGE = """
name: t/large
model: {vocab_size: 24, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2}
data: {batch_size: 4000, sequence_length: 4000}
"""
SMALL = LARGE.replace("4000, sequence_length: 4000", "4, sequence_length: 8")
# Held at once: about 0.5 GiB on each of two ranks, of it most in activations.
HALF = LARGE.replace("4000, sequence_length: 4000", "64, sequence_length: 1024") + "precision: float64\n"

# One rank, which makes no call, computes for seconds.
SLOW = """
name: t/slow
workload: logprobs
precision: float64
model: {vocab_size: 1000, hidden_size: 384, intermediate_size: 1024, num_hidden_layers: 6}
data: {batch_size: 8, sequence_length: 320}
world: {deadline_s: 0.5}
"""
# A second rank sleeps before its first call.
ASLEEP = """
parallel: {tensor_parallel_size: 2}
faults: [{kind: hang, rank: 1, at_call: 0}]
expect: {verdict: failed, kind: hung}
"""


class Limits(cli_test.CommandTest):
    def scenario(self, text):
        return self.write("s.yaml", text)

    def call(self, *words, limits=(), status=None):
        def limit():
            for kind, value in limits:
                resource.setrlimit(kind, (value, value))

        done = subprocess.run([cli_test.PROGRAM, *words], capture_output=True, text=True, timeout=LIMIT_S, cwd=self.scratch,
                              env=self.environment, preexec_fn=limit)
        text = " ".join((done.stdout + done.stderr).split())
        self.assertNotIn("a fault in shardproof", text)
        self.assertNotRegex(text, r"c10::|\.so|frame #|std::")
        if status is not None:
            self.assertEqual(done.returncode, status, text)
        return text

    def test_a_batch_that_no_machine_holds_is_refused_at_once(self):
        scenario = self.scenario(LARGE)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        text = self.call("run", scenario, "--backend", "emulated", "--no-cache", status=2)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        needed, there = (float(number) for number in re.search(
            r"the ranks need at least ([\d.]+) GiB of memory, and ([\d.]+) GiB are available", text).groups())
        self.assertGreater(needed, there)
        self.assertIn("--ignore-limits", text)
        self.assertLess(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 10)

    def test_the_golden_is_held_to_the_machine_too(self):
        text = self.call("golden", self.scenario(LARGE), status=2)
        self.assertRegex(text, r"the golden needs at least [\d.]+ GiB of memory, and [\d.]+ GiB are available")

    def test_a_mesh_with_more_ranks_than_files_or_address_space_is_refused(self):
        self.make_case()
        text = self.call("check", self.case, "--mesh", "dp=40", "--backend", "gloo", "--no-cache",
                         limits=[(resource.RLIMIT_NOFILE, 64)], status=2)
        self.assertIn("40 rank processes need at least 80 open files, and 64 are allowed", text)
        text = self.call("check", self.case, "--mesh", "dp=30000", status=2)
        needed, there = map(float, re.search(r"the ranks need at least ([\d.]+) GiB of memory, and ([\d.]+) GiB are "
                                             r"available; .*--ignore-limits", text).groups())
        self.assertGreater(needed, 800)  # 1.2 KiB for each pair of ranks
        self.assertGreater(needed, there)
        text = self.call("check", self.case, "--mesh", "dp=600", limits=[(resource.RLIMIT_AS, 4 * GIB)], status=2)
        self.assertRegex(text, r"the process of the ranks needs to map at least [\d.]+ GiB, and ulimit -v allows "
                               r"[\d.]+ GiB more; .*--ignore-limits")

    def test_memory_that_runs_out_is_a_sentence(self):
        scenario = self.scenario(HALF)
        for gib in (0.5, 0.8, 1.2, 1.6):
            for flag in ((), ("--ignore-limits",)):
                with self.subTest(gib=gib, flag=flag):
                    text = self.call("run", scenario, "--backend", "emulated", "--no-cache", *flag,
                                     limits=[(resource.RLIMIT_AS, int(gib * GIB))])
                    self.assertRegex(text, r"\d MiB|\d GiB|MATCH|no further thread")

    def test_too_little_memory_to_load_libtorch_is_a_sentence(self):
        for gib in (0.4, 0.41):
            for words in (("version",), ("check", self.path("none")), ("run", self.scenario(SMALL))):
                with self.subTest(gib=gib, words=words):
                    text = self.call(*words, limits=[(resource.RLIMIT_AS, int(gib * GIB))], status=2)
                    self.assertRegex(text, r"^shardproof: memory ran out: LibTorch needs at least \d+ MiB of address "
                                           r"space to be loaded, and its limit is \d+ MiB \(ulimit -v\); raise the limit$")

    def test_a_rank_that_computes_for_longer_than_the_deadline_without_a_call_is_slow(self):
        """It goes on with ops, and so does the golden. One that does nothing is hung."""
        slow = self.scenario(SLOW)
        out = self.path("out")
        text = self.call("run", slow, "--backend", "emulated,gloo", "--no-cache", "--jobs", "1", "--out", out, status=0)
        self.assertIn("2 match", text)
        with open(os.path.join(out, "results.json"), encoding="utf-8") as file:
            cases = json.load(file)["cases"]
        for case in cases:  # longer than the deadline: the case shows what it is to show
            self.assertGreater(case["seconds"] - case["golden_seconds"], 2 * 0.5)
        text = self.call("run", self.scenario(SLOW + ASLEEP), "--backend", "emulated,gloo", "--jobs", "1", status=0)
        self.assertEqual(text.count("as expected: "), 2)
        self.assertIn("no rank entered a collective", text)

    def test_a_full_disk_is_bad_input_before_and_after_the_start(self):
        disk = self.path("disk")
        os.mkdir(disk)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", disk], capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("a small file system cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", disk])
        self.make_case()
        dump = ("check", self.case, "--mesh", "tp=2", "--dump", os.path.join(disk, "d.safetensors"))
        text = self.call(*dump, status=2)
        self.assertRegex(text, r"--dump .*at least \d+ KiB will be written, and the disk has room for \d+ KiB")
        text = self.call(*dump, "--ignore-limits", status=2)
        self.assertIn("d.safetensors", text)
        self.assertNotIn("went on", text)
        save = ("check", self.case, "--mesh", "tp=2", "--ignore-limits", "--save", os.path.join(disk, "model"))
        self.assertNotIn("went on", self.call(*save, status=2))

    def test_what_fits_is_not_refused(self):
        self.call("run", self.scenario(SMALL), "--backend", "emulated", status=0)

    def test_many_ranks_on_a_slow_machine_are_not_hung(self):
        """Each rank computes little, all together longer than the deadline: what counts is that calls go on."""
        self.make_case()
        text = self.call("check", self.case, "--mesh", "dp=40", "--deadline", "1")
        self.assertIn("MATCH", text)


if __name__ == "__main__":
    cli_test.main()
