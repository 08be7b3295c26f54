#!/usr/bin/env python3
"""Tests of the reader of rows and of the marks that a finding gets."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent))
from marks import marks_of
from rows import BadRow, Row, read_row, read_rows
from run import selected


def written(text, patch="+++ b/src/a.cpp\n"):
    folder = Path(tempfile.mkdtemp()) / "a-bug"
    folder.mkdir()
    (folder / "mutant.yaml").write_text(text)
    (folder / "change.patch").write_text(patch)
    return folder


GOOD = "id: a-bug\nsource: issue 1\nwhat: 'It''s: wrong'\nexpect:\n  tensor: grad.*\n  ranks: [0, 2]\n"


class Rows(unittest.TestCase):
    def test_without_git_there_is_a_sentence(self):
        done = subprocess.run([sys.executable, Path(__file__).with_name("run.py"), "--check-patches"],
                              env={"PATH": "/nowhere"}, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("shardproof: git is not installed", done.stderr)

    def test_texts_lists_and_the_block_are_read(self):
        row = read_row(written(GOOD))
        self.assertEqual(row.what, "It's: wrong")
        self.assertEqual(row.expect, {"tensor": "grad.*", "ranks": [0, 2]})
        self.assertEqual(row.files(), ["src/a.cpp"])

    def test_what_is_no_row_is_said_with_its_line(self):
        for text, said in ((GOOD + "colour: red\n", "mutant.yaml:7: unknown key 'colour'"),
                           (GOOD + "  tensor: again\n", "'tensor' a second time"),
                           (GOOD.replace("a-bug", "b-bug"), "the id is 'b-bug'"),
                           ("id: a-bug\nwhat: x\ncontrol: true\n", "has no source"),
                           (GOOD + "control: true\n", "a control nothing"),
                           (GOOD + "survives: 'open\n", "the quote is not closed")):
            with self.assertRaises(BadRow) as raised:
                read_row(written(text))
            self.assertIn(said, str(raised.exception))

    def test_every_row_of_the_tree_can_be_read(self):
        rows = read_rows()
        self.assertGreaterEqual(sum(not row.control for row in rows), 40)
        self.assertGreaterEqual(sum(row.control for row in rows), 5)
        for row in rows:
            self.assertTrue(row.files(), row.id)
            self.assertTrue(all(name.startswith("src/") for name in row.files()), row.id)

    def test_a_row_names_scenarios_of_the_default_set(self):
        scenarios = Path(__file__).parents[2] / "scenarios"
        for row in read_rows():
            name = row.scenario.split("[")[0]
            if row.control or name == "golden/hf":
                continue
            file = scenarios / f"{name}.yaml"
            self.assertTrue(file.is_file(), f"{row.id}: {row.scenario}")
            tags = [line for line in file.read_text().splitlines() if line.startswith("tags:")]
            self.assertFalse(any(tag in " ".join(tags) for tag in ("slow", "manual")), row.id)


class Selection(unittest.TestCase):
    def chosen(self, **arguments):
        everything = {"filter": "", "sample": 0, "seed": 1}
        return selected(read_rows(), SimpleNamespace(**(everything | arguments)))

    def test_controls_come_last(self):
        control = [row.control for row in self.chosen()]
        self.assertEqual(control, sorted(control))
        self.assertEqual(len(control), len(read_rows()))

    def test_a_seed_draws_the_same_rows_again_and_another_one_others(self):
        first = [row.id for row in self.chosen(sample=10)]
        self.assertEqual(len(set(first)), 10)
        self.assertEqual(first, [row.id for row in self.chosen(sample=10)])
        self.assertNotEqual(first, [row.id for row in self.chosen(sample=10, seed=2)])

    def test_a_filter_takes_parts_of_ids_and_sources(self):
        rows = self.chosen(filter="CTL-,pr 115967")
        self.assertTrue(all(row.control or "115967" in row.source for row in rows))
        self.assertTrue(any(not row.control for row in rows))


def finding(**divergence):
    ranks = [{"rank": rank, "coordinates": {"dp": rank // 2, "tp": rank % 2}} for rank in range(4)]
    base = {"tensor": "grad.w", "ranks": [0, 1, 2, 3], "pattern": "0.5 x golden", "likely": "averaged"}
    return {"verdict": "mismatch", "kind": "values", "ranks": ranks, "divergence": base | divergence}


class MarksOfAFinding(unittest.TestCase):
    def marks(self, expect, found):
        return marks_of(Row("a", "", "", Path(), expect=expect), found)

    def test_silence_is_not_caught(self):
        self.assertFalse(self.marks({"tensor": "*"}, None).caught)

    def test_tensor_ranks_and_pattern_are_judged_one_by_one(self):
        expect = {"tensor": "grad.*", "ranks": "all", "pattern": "0.5 .* averaged"}
        good = self.marks(expect, finding())
        self.assertTrue(good.caught and good.tensor and good.ranks and good.pattern)
        other = self.marks(expect, finding(tensor="loss"))
        self.assertTrue(other.caught)
        self.assertFalse(other.tensor or other.ranks or other.pattern)
        self.assertFalse(self.marks(expect, finding(ranks=[0])).ranks)
        self.assertFalse(self.marks(expect, finding(likely="summed")).pattern)

    def test_ranks_by_coordinate(self):
        self.assertTrue(self.marks({"tensor": "*", "ranks": "tp!=0"}, finding(ranks=[1, 3])).ranks)
        self.assertTrue(self.marks({"tensor": "*", "ranks": "dp=1"}, finding(ranks=[2, 3])).ranks)
        self.assertFalse(self.marks({"tensor": "*", "ranks": "dp=1"}, finding(ranks=[1, 3])).ranks)

    def test_a_pattern_of_none_wants_no_cause(self):
        self.assertFalse(self.marks({"tensor": "*", "pattern": "none"}, finding()).pattern)
        self.assertTrue(self.marks({"tensor": "*", "pattern": "none"}, finding(likely="")).pattern)

    def test_a_failed_world_is_judged_by_its_kind(self):
        failed = {"verdict": "failed", "kind": "deadlock", "message": "rank 1 waits", "ranks": [],
                  "divergence": None}
        expect = {"verdict": "failed", "kind": "deadlock|disagreement", "message": "waits"}
        marks = self.marks(expect, failed)
        self.assertTrue(marks.tensor and marks.ranks and marks.pattern)
        self.assertFalse(self.marks(expect, failed | {"kind": "threw"}).tensor)
        self.assertFalse(self.marks(expect, finding()).tensor)


if __name__ == "__main__":
    unittest.main()
