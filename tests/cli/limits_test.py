#!/usr/bin/env python3
"""Cases that this machine cannot hold: they are refused before anything starts, with both numbers and the flag that
starts them anyway. What runs out nevertheless is a sentence.

Usage: limits_test.py PROGRAM [unittest arguments]
"""
import os
import re
import resource
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "hostile"))
import case_maker  # noqa: E402

PROGRAM = "build/dev/shardproof-bin"
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


class Limits(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def scenario(self, text):
        with open(self.path("s.yaml"), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path("s.yaml")

    def case(self):
        os.mkdir(self.path("case"))
        case_maker.make_case(self.path("case"), [])
        return self.path("case")

    def call(self, *words, limits=(), status=None):
        def limit():
            for kind, value in limits:
                resource.setrlimit(kind, (value, value))

        done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=LIMIT_S, cwd=self.folder.name,
                              preexec_fn=limit)
        text = " ".join((done.stdout + done.stderr).split())
        self.assertNotIn("a fault in shardproof", text)
        self.assertNotRegex(text, r"c10::|\.so|frame #|std::")
        if status is not None:
            self.assertEqual(done.returncode, status, text)
        return text

    def test_a_batch_that_no_machine_holds_is_refused_at_once(self):
        scenario = self.scenario(LARGE)
        predicted = int(re.search(r"at most at once +(\d+) bytes", subprocess.run(
            [PROGRAM, "describe", scenario], capture_output=True, text=True, check=True).stdout)[1])
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        text = self.call("run", scenario, "--backend", "emulated", "--no-cache", status=2)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        needed, there = (float(number) for number in re.search(
            r"the ranks need at least ([\d.]+) GiB of memory, and ([\d.]+) GiB are available", text).groups())
        self.assertGreater(needed, there)
        self.assertLess(abs(needed * GIB / predicted - 1), 0.2)
        self.assertIn("--ignore-limits", text)
        self.assertLess(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1)

    def test_the_golden_is_held_to_the_machine_too(self):
        text = self.call("golden", self.scenario(LARGE), status=2)
        self.assertRegex(text, r"the golden needs at least [\d.]+ GiB of memory, and [\d.]+ GiB are available")

    def test_a_mesh_with_more_ranks_than_files_or_address_space_is_refused(self):
        case = self.case()
        text = self.call("check", case, "--mesh", "dp=40", "--backend", "gloo", "--no-cache",
                         limits=[(resource.RLIMIT_NOFILE, 64)], status=2)
        self.assertIn("40 rank processes need at least 80 open files, and 64 are allowed", text)
        text = self.call("check", case, "--mesh", "dp=600", limits=[(resource.RLIMIT_AS, 4 * GIB)], status=2)
        self.assertRegex(text, r"the process of the ranks needs to map at least [\d.]+ GiB, and ulimit -v allows "
                               r"[\d.]+ GiB more; .*--ignore-limits")

    def test_memory_that_runs_out_is_a_sentence(self):
        scenario = self.scenario(HALF)
        for gib in (0.8, 1.2, 1.6):  # with less, LibTorch's libraries cannot be loaded
            for flag in ((), ("--ignore-limits",)):
                with self.subTest(gib=gib, flag=flag):
                    text = self.call("run", scenario, "--backend", "emulated", "--no-cache", *flag,
                                     limits=[(resource.RLIMIT_AS, int(gib * GIB))])
                    self.assertRegex(text, r"\d MiB|\d GiB|MATCH|no further thread")

    def test_a_full_disk_is_bad_input_before_and_after_the_start(self):
        disk = self.path("disk")
        os.mkdir(disk)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", disk], capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("a small file system cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", disk])
        case = self.case()
        dump = ("check", case, "--mesh", "tp=2", "--dump", os.path.join(disk, "d.safetensors"))
        text = self.call(*dump, status=2)
        self.assertRegex(text, r"--dump .*at least \d+ KiB will be written, and the disk has room for \d+ KiB")
        text = self.call(*dump, "--ignore-limits", status=2)
        self.assertIn("d.safetensors", text)
        self.assertNotIn("went on", text)
        save = ("check", case, "--mesh", "tp=2", "--ignore-limits", "--save", os.path.join(disk, "model"))
        self.assertNotIn("went on", self.call(*save, status=2))

    def test_what_fits_is_not_refused(self):
        self.call("run", self.scenario(SMALL), "--backend", "emulated", status=0)

    def test_many_ranks_on_a_slow_machine_are_not_hung(self):
        """Each rank computes little, all together longer than the deadline: what counts is that calls go on."""
        case = self.case()
        text = self.call("check", case, "--mesh", "dp=40", "--deadline", "1")
        self.assertIn("MATCH", text)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
