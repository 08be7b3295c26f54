#!/usr/bin/env python3
"""Tests of how a row is planted, and of which rows a change touches."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from changed import NoCommit, changed_rows, default_base
from plant import CannotPlant, Sources, plant
from rows import Edit, Row

A = """\
// return x + 1;
namespace n {
int f(int x) {
\treturn x + /* one */ 1;  // kept
}
int f(double x) { return twice(x); }
struct S {
  S() : a_(1), b_(2) {}
  int g() const { return a_ + a_; }
  int a_, b_;
};
const int kSize = 16 << 20;
}
"""


def row(*edits):
    return Row("a-bug", "", "", list(edits))


def edit(old, new, function="", file="src/a.cpp", nth=0):
    return Edit(file, old, new, function, nth)


def sources(**texts):
    files = {"src/a.cpp": A, "src/b.cpp": "int other() { return 0; }\r\n"} | {
        f"src/{name}.cpp": text for name, text in texts.items()}
    return Sources(files, files.__getitem__)


class Plant(unittest.TestCase):
    def planted(self, *edits, **texts):
        files, self.moved = plant(sources(**texts), row(*edits))
        return files

    def says(self, words, *edits, **texts):
        with self.assertRaises(CannotPlant) as raised:
            self.planted(*edits, **texts)
        for word in words:
            self.assertIn(word, str(raised.exception))

    def test_tokens_are_replaced_and_all_else_stays_to_the_byte(self):
        files = self.planted(edit("return x+1;", "return x;\n", "f"))
        self.assertEqual(files, {"src/a.cpp": A.replace("return x + /* one */ 1;", "return x;")})
        self.assertEqual(self.planted(edit("0", "1", "other", "src/b.cpp")),
                         {"src/b.cpp": "int other() { return 1; }\r\n"})

    def test_a_comment_is_no_place(self):
        self.assertIn("// return x + 1;\n", self.planted(edit("x + 1", "x"))["src/a.cpp"])

    def test_a_function_is_named_with_or_without_its_namespaces(self):
        for name in ("g", "S::g", "n::S::g"):
            self.assertIn("return a_;", self.planted(edit("a_ + a_", "a_", name))["src/a.cpp"])
        self.says(["g::S is defined nowhere in src, sim, golden, not in src/a.cpp"], edit("a_ + a_", "a_", "g::S"))

    def test_arguments_initializers_and_members_can_be_named(self):
        self.assertIn("a_(3)", self.planted(edit("a_(1)", "a_(3)", "S::S"))["src/a.cpp"])
        self.assertIn("int f(int& x)", self.planted(edit("int x", "int& x", "f"))["src/a.cpp"])
        self.assertIn("int a_;", self.planted(edit("a_, b_;", "a_;", "S"))["src/a.cpp"])
        self.assertIn("kSize = 1;", self.planted(edit("16 << 20", "1"))["src/a.cpp"])

    def test_overloads_are_one_place(self):
        self.assertIn("return x;", self.planted(edit("twice(x)", "x", "f"))["src/a.cpp"])

    def test_what_is_there_several_times_needs_more_tokens_or_nth(self):
        self.says(["2 times in S::g of src/a.cpp, in lines 9, 9", "`nth`"], edit("a_", "b_", "S::g"))
        self.assertIn("return a_ + b_;", self.planted(edit("a_", "b_", "S::g", nth=2))["src/a.cpp"])
        self.says(["only 2 times", "`nth` is 3"], edit("a_", "b_", "S::g", nth=3))
        self.says(["3 times in src/a.cpp", "lines 4, 6, 9"], edit("return", "", ""))

    def test_what_is_not_there_is_said_with_the_nearest_tokens(self):
        self.says(["not in f of src/a.cpp", "the nearest is line 4: return x + /* one */ 1"],
                  edit("return x + 2", "", "f"))
        self.says(["none of its tokens is there"], edit("nothing", "", "f"))

    def test_a_function_that_moved_is_found_and_said(self):
        files = self.planted(edit("return 5", "return 6", "moved"), c="int moved() { return 5; }")
        self.assertEqual(files, {"src/c.cpp": "int moved() { return 6; }"})
        self.assertEqual(self.moved, ["moved is in src/c.cpp now, not in src/a.cpp"])
        self.planted(edit("return 5", "return 6", "moved", ""), c="int moved() { return 5; }")
        self.assertEqual(self.moved, [])

    def test_a_function_that_is_in_two_other_files_is_not_guessed(self):
        text = "int moved() { return 5; }"
        self.says(["in src/c.cpp, src/d.cpp, not in src/a.cpp"], edit("5", "6", "moved"), c=text, d=text)
        self.says(["there is no src/gone.cpp"], edit("5", "6", "", "src/gone.cpp"))

    def test_edits_of_one_file_are_made_together(self):
        first, second = edit("16 << 20", "x + 1"), edit("x + 1", "x", "f")
        for pair in ((first, second), (second, first)):
            text = self.planted(*pair)["src/a.cpp"]
            self.assertIn("return x;", text)
            self.assertIn("kSize = x + 1;", text)
        self.says(["overlap"], edit("x + 1", "x", "f"), edit("1;", "2;", "f"))

    def test_what_would_grow_together_is_refused(self):
        self.says(["grows together"], edit("+", "", "t"), t="int t() { return a+b; }")
        self.says(["grows together"], edit("5;", "5; // why", "t"), t="int t() { return 5; }")

    def test_a_file_that_cannot_be_read_is_named(self):
        self.says(["src/a.cpp: line 1: '{' is not closed"], edit("a", "b"), a="int f() {")



class Changed(unittest.TestCase):
    def setUp(self):
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.git("init", "-q")
        self.write(f="return 1;", g="return 2;")
        self.commit()

    def git(self, *words):
        return subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x", *words], cwd=self.root,
                              check=True, capture_output=True, text=True).stdout.strip()

    def write(self, file="a", **bodies):
        for folder in ("src", "sim", "golden"):
            (self.root / folder).mkdir(exist_ok=True)
        text = "".join(f"int {name}() {{ {body} }}\n" for name, body in bodies.items())
        (self.root / "src" / f"{file}.cpp").write_text(text)

    def commit(self):
        self.git("add", ".")
        self.git("commit", "-q", "-m", "x")

    def changed(self, commit="HEAD"):
        rows = [Row(name, "", "", [edit("return", "throw", name)]) for name in ("f", "g")]
        return [each.id for each in changed_rows(rows, self.root, commit)]

    def test_a_row_counts_when_a_token_of_its_function_differs(self):
        self.write(f="return 1; /* why */", g="return   2;")
        self.assertEqual(self.changed(), [])
        self.write(f="return 1;", g="return 3;")
        self.assertEqual(self.changed(), ["g"])
        self.commit()
        self.assertEqual(self.changed(), [])
        self.assertEqual(self.changed("HEAD~1"), ["g"])

    def test_a_function_that_only_moved_does_not_count_and_one_that_is_gone_does(self):
        self.write("b", f="return 1;")
        self.write("a", h="return 2;")
        self.assertEqual(self.changed(), ["g"])

    def test_the_base_is_where_the_branch_left_main(self):
        self.commit_of("second")
        self.assertEqual(default_base(self.root), "HEAD~1")
        self.git("update-ref", "refs/remotes/origin/main", "HEAD~1")
        self.assertEqual(default_base(self.root), self.git("rev-parse", "HEAD~1"))
        self.git("update-ref", "refs/remotes/origin/main", "HEAD")
        self.assertEqual(default_base(self.root), "HEAD~1")

    def commit_of(self, body):
        self.write(f=body)
        self.commit()

    def test_a_commit_that_is_not_there_is_said(self):
        with self.assertRaisesRegex(NoCommit, "nowhere"):
            self.changed("nowhere")


if __name__ == "__main__":
    unittest.main()
