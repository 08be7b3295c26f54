#!/usr/bin/env python3
"""shardproof-first beside the whole program: the same answers, and a sentence for what it lacks.
usage: first_program_test.py shardproof-first shardproof-bin"""

import json
import re
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import loaded  # noqa: E402

FIRST, WHOLE = "build/release/shardproof-first", "build/release/shardproof-bin"

# Of a case's result what no clock and no machine decides.
SAME = ("name", "verdict", "kind", "text", "tensors_compared", "elements", "worst_ratio", "worst_tensor", "divergence", "golden")

# What the script ./shardproof starts the whole program for.
LACKS = re.search(r"\n    (describe[^)]*)\) ;;\n", (ROOT / "shardproof").read_text())[1].split(" | ")


class FirstProgram(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="first.")))

    def call(self, program, *words):
        done = loaded.run([program, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=600)
        return done.returncode, done.stdout, done.stderr

    def assert_answers_alike(self, *words, status=0):
        """Up to seconds, and what follows from them. Returns what both print."""
        answers = []
        for program in (FIRST, WHOLE):
            ended, out, err = self.call(program, *words)
            self.assertEqual(ended, status, err)
            answers.append(re.sub(r"\d+(\.\d+)? m?s\b", "N s", out))
        self.assertEqual(*answers)
        return answers[0]

    def results(self, program, *words):
        out = self.folder / Path(program).name
        ended, _, err = self.call(program, "run", *words, "--quiet", "--out", out)
        self.assertEqual(ended, 0, err)
        return [{key: value for key, value in case.items() if key in SAME}
                for case in json.loads((out / "results.json").read_text())["cases"]]

    def test_a_run_has_the_same_verdicts(self):
        for words in (["scenarios/smoke", "--backend", "emulated"], ["scenarios/smoke/llama.yaml", "--backend", "gloo"],
                      ["scenarios/faults/values.yaml", "--backend", "emulated"]):
            with self.subTest(words):
                found = self.results(FIRST, *words)
                self.assertGreater(len(found), 0)
                self.assertEqual({key for case in found for key in case}, set(SAME))
                self.assertEqual(found, self.results(WHOLE, *words))

    def test_a_case_folder_has_the_same_verdict(self):
        said = self.assert_answers_alike("check", "golden/hf/llama_untied", "--mesh", "tp=2", "--no-cache")
        self.assertIn("MATCH", said)

    def test_every_help_and_list_is_the_same(self):
        commands = re.findall(r"^  ([a-z-]+) {2,}", self.assert_answers_alike("--help"), re.MULTILINE)
        self.assertIn("fuzz", commands)
        for command in commands:
            if command not in ("model", "score"):  # of the Python package
                self.assert_answers_alike(command, "--help")
        for words in (["list"], ["lint"], ["schema"], ["schema", "--workloads"], ["completion"], ["version"]):
            self.assertNotEqual(self.assert_answers_alike(*words), "")

    def test_what_it_lacks_is_a_sentence_that_names_the_script(self):
        arguments = {"describe": ["scenarios/smoke"], "judge": ["a", "--golden", "b"], "logprobs": ["a", "b"],
                     "shrink": ["scenarios/smoke/llama.yaml", "--only", "x"]}
        for command, words in [(command, arguments.get(command, [])) for command in LACKS] \
                + [("run", ["scenarios/smoke", "--shrink"])]:
            status, out, err = self.call(FIRST, command, *words)
            name = "run --shrink" if command == "run" else command
            self.assertEqual((status, out, err), (2, "", f"shardproof: {name} is not in this program, which is built for a "
                                                  "first verdict; run ./shardproof, which builds the whole program for it\n"))


if __name__ == "__main__":
    FIRST, WHOLE = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
