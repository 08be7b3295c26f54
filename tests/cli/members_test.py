#!/usr/bin/env python3
"""The members of a golden in a lower precision: few are computed where they decide, and a verdict does not depend on
how many there are.

  members_test.py PROGRAM
"""

import json

import cli_test

CASE = """
name: small
workload: train
model: {vocab_size: 29, hidden_size: 16, intermediate_size: 24, num_attention_heads: 4, num_key_value_heads: 2,
        num_hidden_layers: 1}
parallel: {tensor_parallel_size: 2}
data: {lengths: [9, 7, 5, 3], sequence_length: 9}
precision: %s
run: {steps: 2}
"""
FAULT = "faults: [{kind: drop, rank: 1, axis: tp, op: all_reduce}]\n"
# Found by fuzz: at the second training no gradient of a user of the tied weight overflows in float16, but their sum
# does, which the golden adds in float16 and the ranks in float32.
TIED = """
name: tied
seed: 1
workload: policy
precision: float16
record_activations: false
model: {family: gemma3, head_dim: 4, num_attention_heads: 10, attention_bias: true, tie_word_embeddings: true,
        layer_types: [sliding_attention, full_attention], rms_norm_eps: 5.0e-7, pad_token_id: 1,
        rope_scaling: {rope_type: llama3, factor: 4, low_freq_factor: 1, high_freq_factor: 4,
                       original_max_position_embeddings: 8}}
data: {lengths: [3, 3, 3, 3], dropped_samples: [0, 1], huge_advantage: {sample: 3}}
parallel: {tensor_parallel_size: 2, discarded_outputs: both, tp: {deferred_wgrad: 1}}
run:
  stages: [{do: train}, {do: score}, {do: train}]
  frozen: ["model.layers.[12].*"]
  temperature: 0.5
  max_grad_norm: 0.5
  sequence_packing: {enabled: true}
  optimizer: {kwargs: {lr: 0.003, weight_decay: 0.005, foreach: true}}
"""
WITHOUT_WALL_TIME = ("name", "outcome", "ratio", "digest", "allowance", "worst_error")


class Members(cli_test.CommandTest):
    def run_it(self, text, *flags, status=0):
        out = self.path("run")
        self.run_to_end("run", self.write("scenario.yaml", text), "--backend", "emulated", "--out", out, "--force",
                        *flags, status=status)
        (case,) = self.results("run")["cases"]
        return case

    def goldens(self):
        """(of few members, of all) in the cache."""
        keys = [file.read_text() for file in (self.folder / "cache").rglob("*.key")]
        few = sum(key.endswith("few_members") for key in keys)
        return few, len(keys) - few

    def test_few_members_decide_a_right_case_and_all_a_wrong_one(self):
        for precision in ("float32", "bfloat16", "float16"):
            text = CASE % precision
            before = self.goldens()
            first = self.run_it(text)
            self.assertEqual(first["verdict"], "match", first["text"])
            few, all_of_them = self.goldens()
            self.assertEqual((few - before[0], all_of_them - before[1]), (1, 0), precision)
            # A drop in a sum over tp is wrong by any allowance.
            wrong = self.run_it(text + FAULT, status=1)
            self.assertEqual(wrong["verdict"], "mismatch")
            self.assertEqual(self.goldens(), (few, all_of_them + 1))
            # The right case has the golden of all members now, and the same rows.
            again = self.run_it(text)
            self.assertEqual(self.goldens(), (few, all_of_them + 1))
            for one, other in zip(first["tensors"], again["tensors"], strict=True):
                for key in WITHOUT_WALL_TIME:
                    self.assertEqual(one[key], other[key], f"{one['name']} {key}")

    def test_users_of_a_tied_weight_may_overflow_only_as_they_are_added(self):
        case = self.run_it(TIED)
        self.assertEqual(case["verdict"], "match", case["text"])
        (skipped,) = [row for row in case["tensors"] if row["name"] == "metric.skipped" and row["step"] == 3]
        self.assertEqual(skipped["outcome"], "unresolved")
        self.assertEqual(self.goldens(), (1, 0), "what few members leave unresolved is unresolved by all")

    def test_an_error_that_nobody_expects_is_judged_by_all_members(self):
        text = CASE % "float32" + "run.grad_norm.counts: each_of_tp\n"
        cold = self.run_it(text, status=1)
        self.assertEqual(self.goldens(), (1, 1))
        warm = self.run_it(text, status=1)
        self.assertEqual(self.goldens(), (1, 1))
        anew = self.run_it(text, "--no-cache", status=1)
        for case in (warm, anew):
            self.assertEqual(case["divergence"], cold["divergence"])
            self.assertEqual(json.dumps(case["tensors"]), json.dumps(cold["tensors"]))

    def test_a_float64_golden_has_no_members(self):
        self.run_it(CASE % "float64")
        self.assertEqual(self.goldens(), (0, 1))


if __name__ == "__main__":
    cli_test.main()
