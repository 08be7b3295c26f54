#!/usr/bin/env python3
"""Bad input through the real program: each row of hostile_cases.py is one case of it.

Usage: hostile_test.py PROGRAM [NAME...]
"""
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case_maker  # noqa: E402
import hostile_cases  # noqa: E402
import loaded  # noqa: E402

LIMIT_S = 240  # a hang, not a wall-time test: these end in well under a second
PROGRAM = "build/dev/shardproof-bin"


class Outcome:
    def __init__(self, name):
        self.here, self.expect = os.path.join(hostile_cases.HERE, name), hostile_cases.CASES[name]
        scratch = tempfile.mkdtemp(prefix="hostile-")
        try:
            self.run(scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def run(self, scratch):
        case, out = os.path.join(scratch, "case"), os.path.join(scratch, "out")
        os.makedirs(case)
        case_maker.make_case(case, self.expect.edits)
        words = [word.format(case=case, here=self.here, out=out, scratch=scratch)
                 for word in self.command()]
        environment = dict(os.environ, HOME=scratch, XDG_CACHE_HOME=os.path.join(scratch, "cache"))
        try:
            done = loaded.run([PROGRAM, *words], cwd=scratch, env=environment, timeout=LIMIT_S,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.status, self.text = done.returncode, done.stdout.decode(errors="replace")
        except subprocess.TimeoutExpired as hang:
            self.status, self.text = "hung", (hang.stdout or b"").decode(errors="replace")
        self.made_output = os.path.exists(out)
        self.left_folder = os.path.exists(os.path.join(scratch, "runs"))

    def command(self):
        if self.expect.command is not None:
            return self.expect.command
        has_scenario = os.path.isfile(os.path.join(self.here, "scenario.yaml"))
        return hostile_cases.RUN if has_scenario else hostile_cases.CHECK

    def problems(self):
        wanted = self.expect.exit
        if self.status != wanted:
            yield f"exit status {self.status} instead of {wanted}"
        for piece in self.expect.says:
            if piece not in self.text:
                yield f"does not say: {piece}"
        if wanted == 2 and (self.made_output or self.left_folder):
            yield "left a partial result"
        for word in ("terminate called", "Segmentation", "nlohmann", "std::", "c10::Error",
                     "fault in shardproof itself"):
            if word in self.text:
                yield f"says {word}"


class Hostile(unittest.TestCase):
    def test_every_case(self):
        chosen = self.chosen or list(hostile_cases.CASES)
        started = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for name, outcome in zip(chosen, pool.map(Outcome, chosen)):
                with self.subTest(name):
                    self.assertEqual([], list(outcome.problems()),
                                     f"\n{name}: {outcome.expect.why}\nit said:\n{outcome.text}")
                if self.chosen:
                    print(outcome.text)
        print(f"{len(chosen)} hostile inputs in {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        PROGRAM = os.path.abspath(sys.argv[1])
    Hostile.chosen = sys.argv[2:]
    unittest.main(argv=sys.argv[:1])
