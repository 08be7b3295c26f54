#!/usr/bin/env python3
"""Tests that a pass begins clean whatever one before left, with a compiler that copies and a linker that joins."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))
from rows import Edit, Row
from run import Outcome, Run
from scratch import BuildError, SameProgram, Scratch, digest_of

# A source that holds SLOW is read at once and written late, as by a compiler that takes its time.
COMPILER = """\
text=$(cat "$1")
case "$text" in *SLOW*) touch "{root}/reading"; sleep 1 ;; esac
case "$text" in *BROKEN*) echo "error: $1" >&2; exit 1 ;; esac
printf '%s\\n' "$text" > "$2"
"""
NINJA = """\
rule compile
  command = sh {root}/compiler $in $out
rule link
  command = cat $in > $out
build a.o: compile ../../src/a.cpp
build b.o: compile ../../src/b.cpp
build shardproof-bin: link a.o b.o
build unit_a: link a.o
"""
CLEAN = "int a() { return 1; }\nint b() { return 1; }\n"
KILLED = """\
import sys
sys.path.insert(0, {here!r})
from scratch_test import bug, scratch_of
scratch = scratch_of({root!r})
list(scratch.begin())
scratch.plant(bug("a", "SLOW"))
scratch.compile()
"""


def scratch_of(root):
    return Scratch(1, Path(root), Path(root) / "place")


def bug(name, to):
    return Row(f"{name}-bug", "", "", [Edit(f"src/{name}.cpp", "return 1", f"return {to}", name)])


@unittest.skipUnless(shutil.which("ninja"), "ninja is not installed")
class Passes(unittest.TestCase):
    def setUp(self):
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for folder in ("src", "golden/hf", "golden/witness"):
            (self.root / folder).mkdir(parents=True)
        for name in ("a", "b"):
            (self.root / "src" / f"{name}.cpp").write_text(f"int {name}() {{ return 1; }}\n")
        (self.root / "compiler").write_text(COMPILER.format(root=self.root))
        build = self.root / "place" / "tree" / "build" / "release"
        build.mkdir(parents=True)
        (build / "build.ninja").write_text(NINJA.format(root=self.root))
        self.scratch, self.said = None, []

    def begin(self):
        """A pass like any other; it is closed at the end of the test, where it is not given up before."""
        self.scratch = scratch_of(self.root)
        self.said = list(self.scratch.begin())
        self.addCleanup(self.scratch.lock.close)

    def give_up(self):
        """What a kill leaves: the lock is free, and everything else as it stands."""
        self.scratch.lock.close()

    def program(self):
        return self.scratch.program.read_text()

    def built(self, row):
        self.scratch.plant(row)
        try:
            self.scratch.compile()
            return self.program()
        finally:
            self.scratch.restore()

    def test_each_row_has_its_own_bug_alone(self):
        self.begin()
        self.assertEqual((self.program(), self.said), (CLEAN, []))
        self.assertEqual(self.built(bug("a", "2")), CLEAN.replace("a() { return 1", "a() { return 2"))
        self.assertEqual(self.built(bug("b", "3")), CLEAN.replace("b() { return 1", "b() { return 3"))

    def test_a_pass_that_ended_leaves_nothing_to_put_right(self):
        self.begin()
        self.built(bug("a", "2"))
        self.scratch.close()
        self.begin()
        self.assertEqual((self.program(), self.said), (CLEAN, []))

    def test_a_compiler_that_outlives_a_killed_pass_spoils_nothing(self):
        killed = subprocess.Popen([sys.executable, "-B", "-c",
                                   KILLED.format(here=str(Path(__file__).parent), root=str(self.root))])
        while not (self.root / "reading").exists():
            self.assertIsNone(killed.poll())
            time.sleep(0.01)
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        self.begin()
        self.assertIn("waiting: another pass works", self.said[0])
        self.assertIn("src/a.cpp is restored", self.said[1])
        self.assertEqual(self.program(), CLEAN)
        time.sleep(1.2)  # longer than that compiler takes
        self.assertEqual(self.built(bug("b", "3")), CLEAN.replace("b() { return 1", "b() { return 3"))

    def test_a_bug_that_a_killed_pass_left_in_the_tree_is_restored(self):
        self.begin()
        self.scratch.plant(bug("a", "2"))
        self.give_up()
        self.begin()
        self.assertEqual(self.said, ["a pass before was stopped in the middle: 0 outputs are made anew, "
                                     "src/a.cpp is restored"])
        self.assertEqual(self.program(), CLEAN)

    def test_an_object_with_a_bug_is_made_anew_though_it_is_newer_than_its_source(self):
        self.begin()
        self.scratch.plant(bug("a", "2"))
        self.scratch.compile()
        self.scratch.restore()
        self.give_up()
        earlier = time.time() - 100
        os.utime(self.scratch.tree / "src" / "a.cpp", (earlier, earlier))
        self.begin()
        self.assertEqual(self.said, ["a pass before was stopped in the middle: 2 outputs are made anew"])
        self.assertEqual(self.program(), CLEAN)

    def test_an_object_that_another_row_spoils_is_made_anew(self):
        self.begin()
        spoiled = self.scratch.build / "a.o"
        spoiled.write_text("int a() { return 2; }\n")
        os.utime(spoiled, (time.time() + 100,) * 2)
        self.assertEqual(self.built(bug("b", "3")), CLEAN.replace("b() { return 1", "b() { return 3"))

    def test_a_build_of_which_nothing_is_known_is_made_anew(self):
        self.begin()
        self.give_up()
        (self.scratch.build / "clean.json").write_text("{")
        (self.scratch.build / "a.o").write_text("int a() { return 2; }\n")
        self.begin()
        self.assertEqual(self.program(), CLEAN)

    def test_sources_that_changed_between_two_passes_are_built(self):
        self.begin()
        self.scratch.close()
        (self.root / "src" / "a.cpp").write_text("int a() { return 7; }\n")
        self.begin()
        self.assertEqual((self.program(), self.said), (CLEAN.replace("a() { return 1", "a() { return 7"), []))

    def test_a_bug_that_is_not_in_the_program_is_an_error(self):
        self.begin()
        (self.root / "place/tree/build/release/build.ninja").write_text(
            NINJA.format(root=self.root).replace("link a.o b.o", "link b.o b.o"))
        self.give_up()
        self.begin()
        with self.assertRaisesRegex(BuildError, "the same as without the bug"):
            self.built(bug("a", "2"))

    def test_a_tree_that_something_else_changes_is_an_error(self):
        self.begin()
        (self.scratch.tree / "src" / "b.cpp").write_text("int b() { return 9; }\n")
        with self.assertRaisesRegex(BuildError, "changed while it was compiled"):
            self.built(bug("a", "2"))

    def test_a_bug_that_does_not_compile_is_an_error_and_the_next_row_is_built(self):
        self.begin()
        with self.assertRaisesRegex(BuildError, "error: .*a.cpp"):
            self.built(bug("a", "BROKEN"))
        self.assertEqual(self.built(bug("b", "3")), CLEAN.replace("b() { return 1", "b() { return 3"))

    def test_a_program_of_unit_tests_is_built_alone_and_says_when_a_bug_is_not_in_it(self):
        self.scratch = Scratch(1, self.root, self.root / "place", test="unit_a")
        list(self.scratch.begin())
        self.addCleanup(self.scratch.lock.close)
        self.scratch.plant(bug("b", "3"))
        with self.assertRaises(SameProgram):
            self.scratch.compile(self.scratch.test)
        self.assertEqual(self.program(), CLEAN)
        self.scratch.compile()
        self.assertEqual(self.program(), CLEAN.replace("b() { return 1", "b() { return 3"))
        self.scratch.restore()
        self.scratch.write({"src/a.cpp": "int a() { return 2; }\n"})
        self.scratch.compile(self.scratch.test)
        self.assertEqual(self.scratch.test.read_text(), "int a() { return 2; }\n")
        self.scratch.restore()
        self.assertEqual((self.scratch.tree / "src/a.cpp").read_text(), "int a() { return 1; }\n")

    def test_a_gate_runs_only_the_program_of_its_row(self):
        run = Run(1, 1)
        run.say = lambda outcome: None
        outcome, program = Outcome(bug("a", "2")), self.root / "shardproof-bin"
        program.write_text("another one")
        outcome.digest = digest_of(self.root / "compiler")
        run.judge(outcome, program)
        self.assertIn("not the one that was built", outcome.problem)

    def test_a_gate_that_cannot_run_catches_no_bug(self):
        run = Run(1, 1)
        run.say = lambda outcome: None
        for verdict in ("broken", "endless"):
            outcome, program = Outcome(bug("a", "2")), self.root / "programs" / verdict / "shardproof-bin"
            program.parent.mkdir(parents=True)
            program.write_text("program")
            outcome.digest = digest_of(program)
            said = {"verdict": verdict, "message": "exit status 2: No space left on device"}
            with mock.patch("run.run_gate", return_value=said):
                run.judge(outcome, program)
            self.assertEqual((outcome.verdict(), outcome.marks.caught), ("ERROR", False))
            self.assertIn("No space left", outcome.problem)

    def test_a_row_may_expect_that_the_gate_cannot_run(self):
        run = Run(1, 1)
        run.say = lambda outcome: None
        for said, verdict in (("a tensor 'w' that a model of this config has not", "caught"), ("the disk is full", "ERROR")):
            row = bug("a", "2")
            row.expect = {"verdict": "broken", "message": "that a model of this config has not"}
            outcome, program = Outcome(row), self.root / "programs" / verdict / "shardproof-bin"
            program.parent.mkdir(parents=True)
            program.write_text("program")
            outcome.digest = digest_of(program)
            with mock.patch("run.run_gate", return_value={"verdict": "broken", "message": said}):
                run.judge(outcome, program)
            self.assertEqual(outcome.verdict(), verdict, outcome.problem)


if __name__ == "__main__":
    unittest.main()
