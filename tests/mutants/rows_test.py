#!/usr/bin/env python3
"""Tests of the reader of rows, of the selection, and of the marks that a finding gets."""

import contextlib
import io
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))
import gate
from fuzz_bugs import DECLARED, DEFINED_IN, all_of_them, chosen, sizes_of, too_large
from fuzz_rows import ROWS, TP
from marks import marks_of
from plain_yaml import BadYaml, read_yaml
from plant import Sources, plant
from rows import FOLDER, BadRow, Edit, Row, read_rows
from run import ROOT, check, selected

try:
    import yaml
except ImportError:
    yaml = None

GOOD = """\
# rows
- id: a-bug
  source: issue 1
  what: 'It''s: wrong'
  plant:
    file: src/a.cpp
    function: run
    from: |
      if (x) {
        go();
      }
    to: ''
  expect:
    tensor: grad.*
    ranks: [0, 2]

- id: b-bug
  source: issue 2
  what: Two places.
  edits:
    - file: src/a.cpp
      from: a(1)
      to: "a(\\"2\\")"
    - file: src/b.h
      function: S
      nth: 2
      from: int b
      to: long b
  control: true
"""


def rows_of(text):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.yaml").write_text(text)
        return read_rows(Path(folder))


class Reader(unittest.TestCase):
    def test_without_git_changed_is_a_sentence(self):
        done = subprocess.run([sys.executable, Path(__file__).with_name("run.py"), "--changed", "HEAD"],
                              env={"PATH": "/nowhere"}, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("shardproof: git is not installed", done.stderr)

    def test_rows_of_one_place_and_of_several(self):
        one, two = rows_of(GOOD)
        self.assertEqual(one, Row("a-bug", "issue 1", "It's: wrong", expect={"tensor": "grad.*", "ranks": [0, 2]},
                                  edits=[Edit("src/a.cpp", "if (x) {\n  go();\n}\n", "", "run")]))
        self.assertEqual(two, Row("b-bug", "issue 2", "Two places.", control=True,
                                  edits=[Edit("src/a.cpp", "a(1)", 'a("2")'),
                                         Edit("src/b.h", "int b", "long b", "S", 2)]))

    def test_what_is_no_row_is_said_with_its_name(self):
        for old, new, said in (("ranks: [", "colour: [", "a.yaml: a-bug: unknown key 'colour'"),
                               ("function: run", "method: run", "a-bug: unknown key 'method'"),
                               ("  source: issue 1\n", "", "a-bug: there is no source"),
                               ("    to: ''\n", "", "a-bug: there is no to"),
                               ("    - file: src/a.cpp\n      from", "    - from",
                                "there is neither file nor function"),
                               ("source: issue 2", "source: issue 2\n  backend: nccl",
                                "b-bug: 'backend' is nccl; known are emulated, gloo"),
                               ("id: b-bug", "id: a-bug", "two rows are named a-bug"),
                               ("  control: true\n", "", "b-bug: a bug says what to expect"),
                               ("  plant:", "  control: true\n  plant:", "a control nothing"),
                               ("from: a(1)", "from: 1", "'from' is a text: put it in quotes"),
                               ("from: a(1)", "from: // a", "'from' has no tokens"),
                               ("from: int b", "from: long  b", "the edit changes nothing"),
                               ("from: int b", "from: it's", "line 1: a text or comment that does not end"),
                               ("nth: 2", "nth: 0", "'nth' is a number from 1 on"),
                               ("  edits:\n", "  plant:\n", "'plant' has the keys of an edit"),
                               ("  plant:\n", "  placed:\n", "unknown key 'placed'")):
            self.assertEqual(GOOD.count(old), 1, old)
            with self.assertRaises(BadRow) as raised:
                rows_of(GOOD.replace(old, new))
            self.assertIn(said, str(raised.exception))

    def test_what_is_no_plain_yaml_is_said_with_its_line(self):
        for text, said in (("a: 'open", "f:1: the quote is not closed"), ("a: b: c", "f:1: the value needs single"),
                           ("\na: b #c", "f:2: the value needs"), ("a: *b", "f:1: the value needs"),
                           ("a: - b", "f:1: the value needs"), ("a: b:", "f:1: the value needs"),
                           ("a: 1\na: 2", "f:2: 'a' a second time"), ("a:\nb: 1", "f:1: 'a' has no value"),
                           ("a: 1\n  b: 2", "f:2: an indent that fits nothing"), ("a", "f:1: not `key: value`"),
                           ("a: [1,", "f:1: a list ends on its own line"), ("a: 'it's'", "is written twice"),
                           ("a: |\n    b\n  c\n", "the least indent")):
            with self.assertRaises(BadYaml) as raised:
                read_yaml(text, "f")
            self.assertIn(said, str(raised.exception))

    @unittest.skipUnless(yaml, "PyYAML is not installed")
    def test_a_yaml_library_reads_the_same(self):
        for path in sorted(FOLDER.glob("*.yaml")):
            text = path.read_text()
            self.assertEqual(read_yaml(text, path), yaml.safe_load(text), path)
        self.assertEqual(read_yaml(GOOD, "f"), yaml.safe_load(GOOD))


class Tree(unittest.TestCase):
    def test_every_row_can_be_read(self):
        rows = read_rows()
        self.assertGreaterEqual(sum(not row.control for row in rows), 275)
        self.assertGreaterEqual(sum(row.control for row in rows), 16)

    def test_a_row_is_in_the_file_of_its_prefix(self):
        files = {path.stem for path in FOLDER.glob("*.yaml")}
        for path in FOLDER.glob("*.yaml"):
            for row in read_yaml(path.read_text(), path):
                prefix = row["id"].split("-")[0]
                self.assertEqual(path.stem, prefix if prefix in files else "other", row["id"])

    def test_a_row_names_scenarios_of_the_default_set(self):
        scenarios = ROOT / "scenarios"
        for row in read_rows():
            name = row.scenario.split("[")[0]
            if row.control or name == "golden/hf":
                continue
            file = scenarios / f"{name}.yaml"
            self.assertTrue(file.is_file(), f"{row.id}: {row.scenario}")
            if row.relations:  # its gate runs that scenario alone
                continue
            tags = [line for line in file.read_text().splitlines() if line.startswith("tags:")]
            self.assertFalse(any(tag in " ".join(tags) for tag in ("slow", "manual")), row.id)

    def test_a_row_that_cannot_be_planted_fails_the_check_and_is_named(self):
        good = read_rows()[0]
        bad = Row("bad-row", "", "", [Edit(good.edits[0].file, "no such tokens", "", good.edits[0].function)])
        for rows, status, said in (([good], 0, "1 rows, 0 that"), ([good, bad], 1, "bad-row: `from` is not in")):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                self.assertEqual(check(rows), status)
            self.assertIn(said, out.getvalue())


class RowsForFuzz(unittest.TestCase):
    def test_all_go_into_one_program_each_behind_its_switch(self):
        texts, moved = plant(Sources.below(ROOT), all_of_them())
        self.assertEqual((moved, [row.number for row in ROWS]), ([], list(range(1, 41))))
        for file, text in texts.items():
            self.assertEqual(text.count(DECLARED), 1, file)
        self.assertIn("getenv", texts[DEFINED_IN])
        everything = "".join(texts.values())
        for row in ROWS:
            self.assertIn(f"planted({row.number})", everything, row.id)

    def test_a_shrunk_case_has_no_more_ranks_and_layers_than_its_row_needs(self):
        row = next(row for row in ROWS if row.needs == {TP: 3})
        small = "# tensor_parallel_size: 8\nmodel: {num_hidden_layers: 1}\nparallel: {tensor_parallel_size: 3}\n"
        self.assertEqual(too_large(row, sizes_of(small), True), [])
        self.assertEqual(too_large(row, sizes_of(small.replace("size: 3", "size: 4")), True), [f"{TP} 4"])
        self.assertEqual(too_large(row, sizes_of("parallel: {ulysses_size: 2}"), True),
                         ["num_hidden_layers 2", "ulysses_size 2"])
        self.assertEqual(too_large(row, sizes_of("parallel: {ulysses_size: 2}"), False), ["ulysses_size 2"])

    def test_a_seed_draws_the_same_rows_again(self):
        drawn = [chosen(SimpleNamespace(rows="", draw=12, seed=seed)) for seed in (1, 1, 2)]
        self.assertEqual([row.id for row in drawn[0]], [row.id for row in drawn[1]])
        self.assertNotEqual(drawn[0], drawn[2])
        self.assertEqual(len({row.id for row in drawn[0]}), 12)


class Gate(unittest.TestCase):
    def worlds(self, row):
        """The world and the first scenario of each step of the row's gate."""
        steps = []
        listed = SimpleNamespace(returncode=2 if "none" in row.scenario else 0, stdout="emulated  1 rank ..")
        with (mock.patch.object(gate, "_run", lambda program, words, *rest: steps.append(words)),
              mock.patch.object(gate.subprocess, "run", lambda *words, **rest: listed)):
            gate.run_gate(None, row, SimpleNamespace(tree=ROOT))
        self.only = [words[words.index("--only") + 1] for words in steps if "--only" in words]
        return [(words[words.index("--backend") + 1], words[1]) for words in steps if words[0] == "run"]

    def test_code_that_only_processes_run_is_run_over_gloo_first(self):
        row = Row("a", "", "", [], scenario="fsdp/modes[hybrid2]")
        named, everything = ("emulated", "scenarios/fsdp/modes.yaml"), ("emulated", "scenarios/clock")
        self.assertEqual(self.worlds(row), [named, named, everything])
        self.assertEqual(self.only, ["fsdp/modes[hybrid2]"])
        row.backend = "gloo"
        few = ("gloo", f"scenarios/{gate.OVER_GLOO[0]}.yaml")
        over_gloo = ("gloo", named[1])
        self.assertEqual(self.worlds(row), [over_gloo, over_gloo, few, everything])
        row.scenario = "fsdp/modes[none]"  # several cases, or a name of before
        self.assertEqual(self.worlds(row), [over_gloo, few, everything])
        self.assertEqual(self.only, [])
        row.scenario = ""
        self.assertEqual(self.worlds(row), [few, everything])

    def test_code_that_golden_and_ranks_share_is_run_for_its_relations_alone(self):
        row = Row("a", "", "", [], scenario="explore/relations", relations=True)
        steps = []
        with mock.patch.object(gate, "_run", lambda program, words, *rest: steps.append(words)):
            gate.run_gate(None, row, SimpleNamespace(tree=ROOT))
        self.assertEqual(len(steps), 1)
        self.assertEqual(steps[0][:3], ["run", "scenarios/explore/relations.yaml", "--relations"])

    def test_the_scenarios_over_gloo_are_there(self):
        for name in gate.OVER_GLOO:
            self.assertTrue((ROOT / "scenarios" / f"{name}.yaml").is_file(), name)


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
        return marks_of(Row("a", "", "", [], expect=expect), found)

    def test_silence_is_not_caught(self):
        self.assertFalse(self.marks({"tensor": "*"}, None).caught)

    def test_tensor_ranks_and_pattern_are_judged_one_by_one(self):
        expect = {"tensor": "grad.*", "pattern": "0.5 .* averaged"}
        good = self.marks(expect, finding())
        self.assertTrue(good.caught and good.tensor and good.ranks and good.pattern)
        other = self.marks(expect, finding(tensor="loss"))
        self.assertTrue(other.caught)
        self.assertFalse(other.tensor or other.ranks or other.pattern)
        self.assertFalse(self.marks(expect, finding(ranks=[0])).ranks)
        self.assertTrue(self.marks(expect | {"ranks": "any"}, finding(ranks=[0])).ranks)
        self.assertFalse(self.marks(expect, finding(likely="summed")).pattern)

    def test_ranks_by_coordinate(self):
        self.assertTrue(self.marks({"tensor": "*", "ranks": "tp!=0"}, finding(ranks=[1, 3])).ranks)
        self.assertTrue(self.marks({"tensor": "*", "ranks": "dp=1"}, finding(ranks=[2, 3])).ranks)
        self.assertFalse(self.marks({"tensor": "*", "ranks": "dp=1"}, finding(ranks=[1, 3])).ranks)

    def test_a_pattern_of_none_wants_no_cause(self):
        self.assertFalse(self.marks({"tensor": "*"}, finding()).pattern)
        self.assertTrue(self.marks({"tensor": "*"}, finding(likely="")).pattern)
        self.assertTrue(self.marks({"tensor": "*", "pattern": "any"}, finding()).pattern)

    def test_a_failed_world_is_judged_by_its_kind(self):
        failed = {"verdict": "failed", "kind": "deadlock", "message": "rank 1 waits", "ranks": [],
                  "divergence": None}
        expect = {"kind": "deadlock|disagreement", "message": "waits"}
        marks = self.marks(expect, failed)
        self.assertTrue(marks.tensor and marks.ranks and marks.pattern)
        self.assertFalse(self.marks(expect, failed | {"kind": "threw"}).tensor)
        self.assertFalse(self.marks(expect, finding()).tensor)

    def test_the_verdict_is_a_regular_expression_for_all_of_it(self):
        failed = {"verdict": "bad_input", "kind": "bad_input", "message": "", "ranks": [], "divergence": None}
        self.assertTrue(self.marks({"verdict": "failed|bad_.*"}, failed).tensor)
        self.assertFalse(self.marks({"verdict": "bad"}, failed).tensor)


if __name__ == "__main__":
    unittest.main()
