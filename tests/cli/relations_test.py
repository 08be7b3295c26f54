#!/usr/bin/env python3
"""Tests `run --relations` through the program: the relations of a small case hold, cases that have none say why, and a
changed case that stays behind runs as a case folder.

Usage: relations_test.py PROGRAM [unittest arguments]
"""

import cli_test

SMALL = """
name: t/small
model: {vocab_size: 16, hidden_size: 8, intermediate_size: 6, num_hidden_layers: 1, num_attention_heads: 4,
        num_key_value_heads: 2, head_dim: 2}
data: {lengths: [5, 8]}
run: {steps: 2, noise_std: 0.1}
matrix:
  row:
    - {name: tp2, parallel.tensor_parallel_size: 2}
    - {name: rounded, precision: bfloat16}
    - {name: faulty, faults: [{kind: throw, rank: 0}], expect.verdict: failed}
"""

EXPERTS = """
name: t/experts
model: {family: qwen3_moe, vocab_size: 16, hidden_size: 8, intermediate_size: 6, num_hidden_layers: 2, num_attention_heads: 2,
        head_dim: 2, config: {num_experts: 6, num_experts_per_tok: 2, moe_intermediate_size: 6, norm_topk_prob: true}}
data: {lengths: [5, 8, 3, 6]}
parallel: {data_parallel_size: 4, expert_parallel_size: 2, expert_tensor_parallel_size: 2}
matrix:
  row:
    - {name: plain}
    - {name: balanced, run.experts: {balance: {coefficient: 0.5}, capacity: {factor: 1}}}
"""
OF_EXPERTS = {"experts_reversed", "experts_joined", "dispatched_otherwise", "experts_recomputed"}


class Relations(cli_test.CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "small.yaml").write_text(SMALL)

    def test_relations_of_experts_hold_beside_those_of_batches_and_losses_of_routers_leave_the_first(self):
        (self.folder / "experts.yaml").write_text(EXPERTS)
        self.run_to_end("run", "experts.yaml", "--relations", "--backend", "emulated", "--out", "out")
        ran = {"plain": {}, "balanced": {}}
        for case in self.results("out")["cases"]:
            row, _, relation = case["name"].removeprefix("t/experts[").removesuffix("]").partition(",relation=")
            ran[row][relation] = case["verdict"]
        self.assertEqual(set(ran["plain"].values()), {"match"})
        self.assertLess(OF_EXPERTS | {"experts_as_mlp", "files", "samples_reversed", "later_tokens_changed"}, set(ran["plain"]))
        self.assertFalse({"heads_reversed", "channels_changed"} & set(ran["plain"]))
        self.assertEqual(ran["balanced"], dict.fromkeys(OF_EXPERTS, "match"))

    def test_the_relations_of_a_case_hold_and_each_is_a_result(self):
        self.run_to_end("run", "small.yaml", "--relations", "--backend", "emulated", "--out", "out")
        results = self.results("out")
        names = [case["name"] for case in results["cases"]]
        ran = [case for case in results["cases"] if case["name"].startswith("t/small[tp2,relation=")]
        self.assertGreaterEqual(len(ran), 15, names)
        self.assertIn("t/small[tp2,relation=kv_heads_repeated]", names)
        matched = [case for case in ran if case["verdict"] == "match"]
        self.assertEqual({case["verdict"] for case in ran} - {"match", "refused"}, set())
        self.assertGreaterEqual(len(matched), 15)
        for case in matched:
            self.assertTrue(case["as_expected"])
            self.assertGreater(case["tensors_compared"], 0, case["name"])
        skipped = {case["name"]: case["reason"] for case in results["skipped"]}
        self.assertIn("float64", skipped["t/small[rounded]"])
        self.assertIn("without faults", skipped["t/small[faulty]"])
        self.assertFalse((self.folder / "out/relations").exists())

    def test_one_relation_is_chosen_by_its_name(self):
        done = self.run_to_end("run", "small.yaml", "--relations", "--backend", "emulated", "--only",
                             "t/small[tp2,relation=another_mesh]")
        self.assertIn("1 case", done.stdout)

    def test_relations_run_instead_of_schedules(self):
        done = self.run_program("run", "small.yaml", "--relations", "--schedules", 2)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--schedules", done.stderr)


if __name__ == "__main__":
    cli_test.main()
