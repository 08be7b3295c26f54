#!/usr/bin/env python3
"""Tests `calls`, the list of a case's collective calls, and the labels in messages about a fault that fits none.

Usage: calls_test.py PROGRAM [unittest arguments]
"""
import json
import math

import cli_test

WIDTHS = {"float64": 8, "float32": 4, "bfloat16": 2, "int64": 8}

SCENARIO = """
name: t/two
model: {vocab_size: 24, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1}
data: {lengths: [5, 3, 4, 2]}
run: {steps: 2}
parallel: {tensor_parallel_size: 2}
matrix:
  rows:
    - {name: plain}
    - {name: sp_dp2, parallel.sequence_parallel: true, parallel.data_parallel_size: 2}
    - {name: kill, faults: [{kind: kill, rank: 1, at_call: 2}]}
    - {name: refused, model.num_attention_heads: 3, model.head_dim: 4}
"""


class Calls(cli_test.CommandTest):
    def setUp(self):
        super().setUp()
        self.scenario = self.write("s.yaml", SCENARIO)

    def lines(self, case):
        text = self.call("calls", self.scenario, "--only", case, "--format", "jsonl")
        lines = [json.loads(line) for line in text.splitlines()]
        return [line for line in lines if "rank" in line], [line for line in lines if "rank" not in line]

    def logged(self, case):
        """The calls that the ranks of a run wrote into their logs."""
        self.call("run", self.scenario, "--only", case, "--backend", "emulated", "--out", self.path("out"))
        logs = [rank["log"] for rank in self.results("out")["cases"][0]["ranks"]]
        out = []
        for log in logs:
            text = self.read("out", log)
            calls = text[text.index(" collective calls\n"):].splitlines()[1:]
            out.append([line.split(maxsplit=1)[1] for line in calls if line.strip()])
        return out

    def test_they_are_those_of_the_run_in_its_order(self):
        for case in ("t/two[plain]", "t/two[sp_dp2]"):
            logged = self.logged(case)
            calls, _ = self.lines(case)
            for rank, own in enumerate(logged):
                mine = [one for one in calls if one["rank"] == rank]
                self.assertEqual([one["call"] for one in mine], list(range(len(own))))
                for one, text in zip(mine, own):
                    self.assertTrue(text.startswith(one["op"]), text)
                    self.assertIn(f" {one['axis']}{one['ranks']}".replace(", ", ","), text)
                    self.assertTrue(text.endswith(f"'{one['label']}'"), text)
                    self.assertIn(f"{one['shape']} {one['dtype']} ".replace(", ", ","), text)
                    self.assertEqual(one["bytes"], WIDTHS[one["dtype"]] * math.prod(one["shape"]))

    def test_steps_phases_and_sums(self):
        calls, sums = self.lines("t/two[sp_dp2]")
        self.assertEqual({one["step"] for one in calls}, {1, 2})
        self.assertEqual({one["phase"] for one in calls}, {"forward", "backward", ""})
        for total in sums:
            same = [one for one in calls if (one["axis"], one["op"]) == (total["axis"], total["op"])]
            self.assertEqual((total["calls"], total["bytes"]), (len(same), sum(one["bytes"] for one in same)))
        self.assertEqual(sum(total["calls"] for total in sums), len(calls))
        self.assertEqual({total["axis"] for total in sums} & {"dp", "tp"}, {"dp", "tp"})

    def test_text_and_one_label(self):
        text = self.call("calls", self.scenario, "--only", "t/two[plain]", "--label", "down_proj*forward")
        self.assertIn("t/two[plain]: tp=2\nrank 0: 2 calls\n", text)
        self.assertRegex(text, r"step 1  all_reduce\(sum\) tp\[0,1\] \[4,5,16\] float64 "
                               r"'model.layers.0.mlp.down_proj forward', 2560 bytes")
        self.assertRegex(text, r"tp +all_reduce +4 +10240\n")

    def test_planted_faults_are_left_out_and_a_refusal_is_said(self):
        self.assertEqual(self.lines("t/two[kill]"), self.lines("t/two[plain]"))
        self.assertIn("the case did not run to its end", self.call("calls", self.scenario, "--only", "t/two[refused]",
                                                                   status=4))

    def test_a_label_that_fits_nothing_is_answered_with_the_nearest(self):
        for label, near in (("mlp.donw_proj", "model.layers.0.mlp.down_proj "), ("grad_nrom", "grad_norm")):
            self.write("s.yaml", SCENARIO.replace("at_call: 2", f"label: {label}").replace("kind: kill", "kind: throw"))
            text = " ".join(self.call("run", self.scenario, "--only", "t/two[kill]", "--backend", "emulated",
                                      "--out", self.path("out"), status=2).split())
            self.assertRegex(text, rf"the labels of its calls are '{near}[^']*', '")
            text = self.call("calls", self.scenario, "--only", "t/two[kill]", "--label", label, status=2)
            self.assertRegex(text, rf"no call of t/two\[kill\] has a label with '{label}'; its labels are '{near}")


if __name__ == "__main__":
    cli_test.main()
