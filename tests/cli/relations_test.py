#!/usr/bin/env python3
"""Tests `run --relations` through the program: the relations of a small case hold, cases that have none say why, and a
changed case that stays behind runs as a case folder.

Usage: relations_test.py PROGRAM [unittest arguments]
"""
import collections
import pathlib

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

STAGED = """
name: t/staged
workload: logprobs
model: {vocab_size: 32, hidden_size: 16, num_attention_heads: 2, num_key_value_heads: 2, num_hidden_layers: 4}
data: {lengths: [5, 3, 4, 6]}
parallel: {pipeline_parallel_size: 2, pp: {schedule: zb1p}}
"""
EXPERTS = """
name: t/experts
model: {family: qwen3_moe, vocab_size: 16, hidden_size: 8, intermediate_size: 6, num_hidden_layers: 2, num_attention_heads: 2,
        head_dim: 2, config: {num_experts: 6, num_experts_per_tok: 2, moe_intermediate_size: 6, norm_topk_prob: true}}
data: {lengths: [5, 8, 3, 6, 4, 7, 2, 5]}
parallel: {data_parallel_size: 4, expert_parallel_size: 2, expert_tensor_parallel_size: 2}
matrix:
  row:
    - {name: plain}
    - {name: balanced, run.experts: {balance: {coefficient: 0.5}, capacity: {factor: 1}}}
"""
HEADS = """
name: t/heads
model: {vocab_size: 16, hidden_size: 8, intermediate_size: 6, num_hidden_layers: 2, num_attention_heads: 2}
data: {lengths: [5, 8, 3, 6]}
run: {train_micro_batch_size: 1}
parallel: {pipeline_parallel_size: 2}
matrix:
  row:
    - {name: llama, model.family: llama_mtp, model.num_nextn_predict_layers: 2}
    - name: deepseek
      model.family: deepseek_v3
      model.num_nextn_predict_layers: 1
      model.config: {n_routed_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 6, n_group: 1, topk_group: 1,
        first_k_dense_replace: 1, q_lora_rank: null, kv_lora_rank: 4, qk_nope_head_dim: 4, qk_rope_head_dim: 2, v_head_dim: 4}
      run.experts: {balance: {coefficient: 0.5}, bias: {rate: 0.01}}
"""
OF_STAGES = {"stages_joined", "another_table", "another_split"}
OF_EXPERTS = {"experts_reversed", "experts_joined", "dispatched_otherwise", "experts_recomputed"}


class Relations(cli_test.CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "small.yaml").write_text(SMALL)

    def ran(self, name, text):
        """{row: {relation: verdict}} of the scenario's cases."""
        self.write(f"{name}.yaml", text)
        self.run_to_end("run", f"{name}.yaml", "--relations", "--backend", "emulated", "--out", "out")
        found = collections.defaultdict(dict)
        for case in self.results("out")["cases"]:
            row, _, relation = case["name"].removeprefix(f"t/{name}[").removesuffix("]").partition(",relation=")
            found[row][relation] = case["verdict"]
        return found

    def test_the_relations_of_every_family_hold(self):
        scenario = pathlib.Path(__file__).parents[2] / "scenarios/explore/relations.yaml"
        self.run_to_end("run", scenario, "--relations", "--out", "out")
        verdicts = collections.Counter(case["verdict"] for case in self.results("out")["cases"])
        self.assertEqual(set(verdicts), {"match", "refused"})
        self.assertLess(50 * verdicts["refused"], verdicts["match"])

    def test_relations_of_experts_hold_beside_those_of_batches_and_losses_of_routers_leave_the_first(self):
        ran = self.ran("experts", EXPERTS)
        self.assertEqual(set(ran), {"plain", "balanced"})
        self.assertEqual(set(ran["plain"].values()), {"match"})
        self.assertLess(OF_EXPERTS | {"experts_as_mlp", "files", "samples_reversed", "later_tokens_changed"}, set(ran["plain"]))
        self.assertFalse({"heads_reversed", "channels_changed"} & set(ran["plain"]))
        self.assertEqual(ran["balanced"], dict.fromkeys(OF_EXPERTS, "match"))

    def test_relations_hold_beside_extra_heads_and_those_of_stages_beside_losses_of_routers(self):
        ran = self.ran("heads", HEADS)
        self.assertEqual(set(ran), {"llama", "deepseek"})
        self.assertEqual(set(ran["llama"].values()), {"match"})
        self.assertLess(OF_STAGES | {"samples_reversed", "loss_scaled", "later_tokens_changed", "heads_reversed"}, set(ran["llama"]))
        self.assertFalse({"residual_reversed", "residual_scaled", "temperature_doubled", "layer_added"} & set(ran["llama"]))
        self.assertEqual(ran["deepseek"], dict.fromkeys(OF_STAGES | {"experts_reversed", "experts_recomputed"}, "match"))

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

    def test_a_relation_compares_no_reference_and_no_sample(self):
        (self.folder / "sampled.yaml").write_text(SMALL + "sample_rows: 1\n")
        (self.folder / "against.yaml").write_text(SMALL + "reference: {mesh: {dp: 2}}\n")
        for name in ("sampled", "against"):
            done = self.run_to_end("run", f"{name}.yaml", "--relations", "--filter", "relation=files", "--backend", "emulated")
            self.assertRegex(done.stdout, r"match .*relation=files")
            self.assertNotRegex(done.stdout, "row of each|match against")

    def test_a_refused_change_is_as_expected_and_refusals_alone_compare_nothing(self):
        self.write("staged.yaml", STAGED)
        of_layers = ("run", "staged.yaml", "--relations", "--backend", "emulated", "--filter")
        done = self.run_to_end(*of_layers, "relation=layer_added", "--out", "refused", status=2)
        self.assertIn("every changed case was refused: nothing was compared; ", done.stderr)
        [case] = self.results("refused")["cases"]
        self.assertEqual((case["verdict"], case["as_expected"], case["may_be_refused"]), ("refused", True, True))
        self.run_to_end(*of_layers, "relation=", "--out", "all")
        self.assertEqual({case["verdict"]: case.get("may_be_refused") for case in self.results("all")["cases"]},
                         {"refused": True, "match": None})

    def test_what_shows_nothing_is_no_match(self):
        """Gradients that are all 0 beside a loss that is not, a change that changes nothing, and cases without relations."""
        run = ("run", "case.yaml", "--relations", "--backend", "emulated", "--out", "nothing")
        self.write("case.yaml", SMALL.split("run:")[0] + "run: {loss: {kind: preference, beta: 0}}\n")
        self.run_to_end(*run, "--filter", "relation=channels_changed", status=2)
        [case] = self.results("nothing")["cases"]
        self.assertIn("nothing was compared that is not 0", case["message"])
        self.write("case.yaml", "name: t/one\nworkload: train\ndata: {lengths: [5]}\nparallel: {tensor_parallel_size: 2}\n")
        for relation in ("samples_reversed", "microbatches"):
            done = self.run_to_end(*run, "--filter", f"relation={relation}", status=2)
            self.assertIn("the case is what it was, which shows nothing", done.stdout)
        self.write("case.yaml", "name: t/none\nworkload: mapping\nparallel: {tensor_parallel_size: 2}\n")
        self.assertIn("no relation says anything about these cases: nothing was compared", self.run_to_end(*run, status=2).stderr)
        done = self.run_to_end("run", "case.yaml", "--only", "t/none[relation=files]", status=2)
        self.assertIn("a relation is a case of `run --relations` alone", done.stderr)

    def test_relations_run_instead_of_schedules(self):
        done = self.run_to_end("run", "small.yaml", "--relations", "--schedules", 2, status=2)
        self.assertIn("--schedules", done.stderr)


if __name__ == "__main__":
    cli_test.main()
