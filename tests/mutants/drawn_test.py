#!/usr/bin/env python3
"""Tests of the changes that drawn.py draws and of the lines that it keeps; nothing is built."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent))
from cpp_tokens import spelling_of
from drawn import Change, Draw, Records, changes_of, drawn_changes, failing_files
from scratch import ROOT, NotCompiled, SameProgram

SOURCE = """\
#include "a/b2.h"  // 1 + 1
/* 2 < 3 */
std::vector<int> f(const T&& x, int* p) {
  if (!done && x < 10) return at("dim 0 - 1", x.front() * 2);
  return sum(x) == 1.5 ? "a" + true : 1e-6;
}
"""


class Changes(unittest.TestCase):
    def folder(self, **files):
        place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (place / "src/part").mkdir(parents=True)
        for name, text in files.items():
            (place / f"src/part/{name}.cpp").write_text(text)
        return place

    def test_comments_texts_types_and_preprocessor_lines_are_left(self):
        found = [(change.old, change.new) for change in changes_of("f.cpp", SOURCE)]
        self.assertEqual(found, [("!", ""), ("&&", "||"), ("<", "<="), ("10", "11"), ("front", "back"), ("*", "/"),
                                 ("2", "3"), ("==", "!="), ("1.5", "2.5"), ("+", "-"), ("true", "false")])

    def test_each_change_changes_one_token(self):
        before = spelling_of(SOURCE)
        for change in changes_of("f.cpp", SOURCE):
            after = spelling_of(change.text(SOURCE))
            if change.new:
                self.assertEqual([(a, b) for a, b in zip(before, after) if a != b], [(change.old, change.new)])
            self.assertEqual(len(after), len(before) - (not change.new))

    def test_the_seed_alone_decides_and_nothing_is_drawn_twice(self):
        root = self.folder(a=SOURCE, b=SOURCE, c_plugin=SOURCE)
        drawn = drawn_changes("src/part", 3, root)
        self.assertEqual(drawn, drawn_changes("src/part", 3, root))
        self.assertNotEqual(drawn, drawn_changes("src/part", 4, root))
        self.assertEqual(len(set(drawn)), 2 * len(changes_of("f.cpp", SOURCE)))
        self.assertEqual(len(set((change.file, change.text(SOURCE)) for change in drawn)), len(drawn))
        self.assertEqual({change.file for change in drawn}, {"src/part/a.cpp", "src/part/b.cpp"})

    def test_a_place_is_a_line(self):
        change = next(each for each in changes_of("f.cpp", SOURCE) if each.old == "==")
        self.assertEqual(change.place(SOURCE), ("f.cpp:5", 'return sum(x) == 1.5 ? "a" + true : 1e-6;'))


class Failures(unittest.TestCase):
    SAID = ("../../tests/unit/a_test.cpp:12: failed: x == 1 for: 2 == 1\n../../tests/unit/b_test.cpp:9: skipped: why\n"
            "../../tests/unit/a_test.cpp:30: failed: unexpected exception with message: 'b_test.cpp'\n")

    def test_files_are_those_of_failed_assertions(self):
        self.assertEqual(failing_files(self.SAID + "Failed 1 test case, failed 2 assertions.\n"), ["a_test"])

    def test_a_report_without_its_end_or_of_a_signal_names_none(self):
        self.assertEqual(failing_files(self.SAID), [])
        signal = "../../tests/unit/c_test.cpp:3: failed: fatal error condition with message: 'SIGABRT'\n"
        self.assertEqual(failing_files(self.SAID + signal + "Failed 2 test cases, failed 3 assertions.\n"), [])


class Lines(unittest.TestCase):
    def setUp(self):
        place = self.enterContext(tempfile.TemporaryDirectory())
        self.path = Path(place) / "drawn" / "part_1.jsonl"

    def test_a_stopped_run_keeps_its_lines_and_the_last_of_a_change_counts(self):
        one, two = Change("a.cpp", 3, "+", "-"), Change("a.cpp", 9, "1", "2")
        records = Records(self.path, resume=False)
        records.add(one, {"state": "judged", "tests": ["a_test"], "scenario": "", "whole": False})
        records.add(two, {"state": "does not compile"})
        again = Records(self.path, resume=True)
        self.assertEqual(list(again.of), [one, two])
        self.assertEqual(again.of_tests_alone(), [again.of[one]])
        again.add(one, {"state": "judged", "tests": ["a_test"], "scenario": "smoke/llama", "whole": True})
        last = Records(self.path, resume=True)
        self.assertEqual((len(last.of), len(last.judged()), last.of_tests_alone()), (2, 1, []))
        self.assertEqual(Records(self.path, resume=False).of, {})

    def test_what_does_not_compile_or_changes_nothing_is_kept_and_not_counted(self):
        draw = Draw.__new__(Draw)
        draw.records = Records(self.path, resume=False)
        draw.scratch = SimpleNamespace(tree=ROOT, write=lambda texts: None, restore=lambda: None)
        change = changes_of("tests/mutants/drawn.py", "a + 1")[0]

        def fails(error):
            raise error
        with contextlib.redirect_stdout(io.StringIO()) as said:
            draw._take(change, lambda: fails(NotCompiled("error: a.cpp")))
            draw._take(change._replace(start=4), lambda: fails(SameProgram("the same")))
        self.assertEqual([record["state"] for record in draw.records.of.values()],
                         ["does not compile: error: a.cpp", "the same program"])
        self.assertEqual(draw.records.judged(), [])
        self.assertEqual(len(said.getvalue().splitlines()), 4)


if __name__ == "__main__":
    unittest.main()
