#!/usr/bin/env python3
"""Cases of which some rows of each tensor are judged: what a match says, what is found, and how small the golden is.

  sample_rows_test.py PROGRAM
"""

import json
import tempfile
from pathlib import Path

import cli_test

ROOT = Path(__file__).resolve().parents[2]

SMALL = """
name: small
workload: train
model: {vocab_size: 97, hidden_size: 48, intermediate_size: 96, num_attention_heads: 4, num_key_value_heads: 2,
        num_hidden_layers: 2}
parallel: {tensor_parallel_size: 2, data_parallel_size: 2}
data: {lengths: [%s], sequence_length: 8}
run: {steps: 2, max_grad_norm: 0.3}
""" % ", ".join(str(1 + 5 * i % 8) for i in range(40))


class SampleRows(cli_test.CommandTest):
    def run_it(self, text, *flags, status=0):
        """The run's text and its cases."""
        out = Path(tempfile.mkdtemp(dir=self.folder)) / "run"
        done = self.run_to_end("run", self.write("scenario.yaml", text), "--backend", "emulated", "--out", out, *flags,
                               status=status)
        results = out / "results.json"
        self.junit = (out / "junit.xml").read_text() if results.exists() else ""
        return done.stdout + done.stderr, json.loads(results.read_text())["cases"] if results.exists() else []

    def cached(self):
        return sum(file.stat().st_size for file in (self.folder / "cache").rglob("*.golden"))

    def test_a_match_says_on_how_many_rows(self):
        text, (case,) = self.run_it(SMALL, "--sample-rows", "4")
        self.assertIn("match on 4 rows of each tensor", text)
        self.assertIn("an error outside of them is not seen", case["text"])
        self.assertIn("on 4 rows of each tensor", self.junit)
        self.assertEqual(case["sample_rows"], 4)
        elements = case["elements"]
        self.assertGreater(elements["excused"]["not_drawn"], 5 * elements["judged"])
        self.assertEqual(elements["demanded"], elements["judged"] + sum(elements["excused"].values()))
        whole = self.run_it(SMALL)[1][0]
        self.assertIsNone(whole["sample_rows"])
        # What is fed with whole gradients is left out, where they are not there.
        self.assertEqual({t["name"] for t in case["tensors"] if not t["name"].startswith("fed.")},
                         {t["name"] for t in whole["tensors"] if not t["name"].startswith("fed.")})

    def test_the_golden_has_a_key_of_its_own_and_is_small(self):
        first = self.run_it(SMALL, "--sample-rows", "2")[1][0]
        sampled = self.cached()
        second = self.run_it(SMALL)[1][0]
        whole = self.cached() - sampled
        self.assertNotEqual(first["golden"], second["golden"])
        self.assertLess(8 * sampled, whole, "bytes of the golden's file")
        both = self.cached()
        self.run_it(SMALL, "--sample-rows", "2")
        self.assertEqual(self.cached(), both, "it was computed again")

    def test_an_error_in_all_rows_is_found_and_explained(self):
        text, (case,) = self.run_it(SMALL + "run.grad_norm.counts: each_of_tp\n", "--sample-rows", "4", status=1)
        self.assertIn("grad_norm", text)
        # The mean of gradients over dp becomes the sum of a part: the call of rank 1 sends zeros.
        dropped = "faults: [{kind: drop, rank: 1, axis: dp, op: all_reduce}]\n"
        text, (case,) = self.run_it(SMALL + dropped, "--sample-rows", "4", status=1)
        self.assertEqual((case["verdict"], case["kind"]), ("mismatch", "values"), text)
        self.assertRegex(case["replay"], "--sample-rows 4")
        whole = self.run_it(SMALL + dropped, status=1)[1][0]
        self.assertEqual(case["divergence"]["tensor"], whole["divergence"]["tensor"])

    def test_copies_and_calls_are_judged_in_all_rows(self):
        """One element of the output of a call, on one rank: its sample need not be drawn."""
        fault = "faults: [{kind: corrupt, rank: 0, axis: tp, side: output, op: all_reduce, at_call: 4, element: 5}]\n"
        for seed in ("1", "2", "3"):
            text, (case,) = self.run_it(SMALL + fault, "--sample-rows", "1", "--seed", seed, status=1)
            self.assertEqual(case["verdict"], "mismatch", text)

    def test_a_case_folder_with_answers_of_its_own_is_checked_on_rows(self):
        case = ROOT / "golden/hf/llama_untied"
        done = self.run_to_end("check", case, "--mesh", "tp=2", "--sample-rows", "2", "--no-cache")
        self.says(done.stdout, "on 2 rows of each tensor", "expected.safetensors agrees with the golden")

    def test_what_is_no_number_of_rows_is_refused(self):
        for flags in (["--sample-rows", "0"], ["--sample-rows", "-2"], ["--sample-rows", "some"]):
            self.assertIn("--sample-rows", self.run_it(SMALL, *flags, status=2)[0])
        self.assertIn("sample_rows", self.run_it(SMALL + "sample_rows: -1\n", status=2)[0])
        self.assertIn("sample_row", self.run_it(SMALL + "sample_row: 1\n", status=2)[0])


if __name__ == "__main__":
    cli_test.main()
