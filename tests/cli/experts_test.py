#!/usr/bin/env python3
"""Tests experts on several ranks with the real program: both views of the mesh, what a run writes of them, and sizes that do
not fit.

Usage: experts_test.py PROGRAM [unittest arguments]
"""
import json
import pathlib
import shutil

import cli_test

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASE = str(ROOT / "golden/hf/qwen3_moe_dense_layer")


def tensors(path):
    """{name: (shape, values)} of a file of float64 tensors."""
    return {name: (shape, values) for name, (dtype, shape, _, values) in cli_test.read_safetensors(path).items()
            if dtype == "F64"}


class Experts(cli_test.CommandTest):
    def test_describe_shows_both_views_of_the_mesh(self):
        text = self.call("describe", str(ROOT / "scenarios/ep/meshes.yaml"), "--only", "ep/meshes[dp4_ep2]")
        self.assertIn("dp=4, experts edp=2 ep=2, 4 ranks\n", text)
        self.assertIn("the same ranks for experts\n         ep  0  1\n  edp 0      0  1\n  edp 1      2  3\n", text)
        self.assertRegex(text, r"model\.layers\.0\.mlp\.experts\.gate_up_proj +Experts +S\(0\)ep +\[6,16,16\] +\[3,16,16\] +"
                               r"summed over edp, for the mean over all ranks with other tokens\n")
        self.assertRegex(text, r"model\.layers\.0\.mlp\.gate\.weight +\w+ +R +\[6,16\] +\[6,16\]\n")

    def test_a_run_says_what_each_rank_sends_to_experts_how_near_and_what_is_dropped(self):
        out = self.folder / "run"
        self.call("run", str(ROOT / "scenarios/ep/capacity.yaml"), "--only", "ep/capacity[sequence]", "--backend", "emulated",
                  "--out", str(out))
        case = json.loads((out / "results.json").read_text())["cases"][0]
        routes = [rank["metrics"]["routes"] for rank in case["ranks"]]
        self.assertEqual(routes[0]["dropped"], routes[1]["dropped"])
        self.assertGreater(min(routes[0]["dropped"]), 0)
        layers = ["model.layers.0.mlp.gate", "model.layers.2.mlp.gate"]
        self.assertEqual([sorted(of_rank["layers"]) for of_rank in routes], [layers, layers])
        tokens = case["ranks"][0]["metrics"]["tokens"]
        for layer in layers:
            rows = [of_rank["layers"][layer]["rows"] for of_rank in routes]
            self.assertEqual([len(of_rank) for of_rank in rows], [6, 6])
            self.assertGreaterEqual(sum(map(sum, rows)), 3 * tokens)  # the first token of a sample predicts nothing
            for of_rank in routes:
                margins = of_rank["layers"][layer]["margins"]
                self.assertEqual((len(margins), margins), (5, sorted(margins)))
                self.assertGreater(margins[0], 1e-8)

    def test_the_dumped_gradients_of_experts_are_whole(self):
        files = [self.folder / "spread.safetensors", self.folder / "one.safetensors"]
        for mesh, file in zip(("dp=2,tp=2,ep=2,etp=2", "dp=1"), files):
            flags = ["--sequence-parallel"] if "tp=2" in mesh else []
            self.call("check", CASE, "--mesh", mesh, *flags, "--dump", str(file))
        spread, one = map(tensors, files)
        self.assertEqual(spread.keys(), one.keys())
        experts = [name for name in one if ".mlp.experts." in name and "grad" in name]
        self.assertGreater(len(experts), 0)
        for name in experts:
            self.assertEqual(spread[name][0], one[name][0])
            for here, there in zip(spread[name][1], one[name][1]):
                self.assertAlmostEqual(here, there, delta=1e-12)

    def test_sizes_that_do_not_divide_the_ranks_are_refused_with_those_that_do(self):
        text = self.call("check", CASE, "--mesh", "dp=4,ep=3", status=2)
        self.assertIn("ep=3 times etp=1 does not divide the 4 ranks that hold a layer; choose sizes whose product is 1, 2, 4",
                      text)
        self.assertIn("unknown mesh axis 'edp'", self.call("check", CASE, "--mesh", "edp=2", status=2))
        self.write("ep.yaml", "parallel: {data_parallel_size: 4, expert_parallel_size: 3}\n")
        self.assertIn("ep.yaml:1:35: parallel.expert_parallel_size: ep=3", self.call("lint", "ep.yaml", status=2))

    def test_a_family_with_experts_is_given_by_sizes(self):
        def run(config, status=0):
            scenario = self.folder / "sizes.yaml"
            scenario.write_text("model: {family: mixtral, hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, "
                                f"config: {json.dumps(config)}}}\ndata: {{lengths: [3, 4]}}\n")
            return self.call("run", str(scenario), "--backend", "emulated", "--out", str(self.folder / "sizes"), "--force",
                             status=status).replace("\n", " ")

        self.assertIn("1 match", run({"num_local_experts": 3}))
        self.assertIn("4 of 3 experts cannot be chosen", run({"num_local_experts": 3, "num_experts_per_tok": 4}, status=2))
        for key in ("n_group", "norm_topk_prob", "moe_intermediate_size", "mlp_only_layers"):  # of others
            self.assertIn(f"nothing reads {key} of model.config in family mixtral", run({key: 3}, status=2))
        self.assertIn("did you mean num_local_experts?", run({"num_local_expert": 3}, status=2))
        self.assertIn("model.config has 'hidden_size', which model.hidden_size sets", run({"hidden_size": 8}, status=2))

    def test_refused_sizes_come_with_those_that_work(self):
        text = self.call("check", CASE, "--mesh", "dp=4,ep=4", status=4)
        self.assertIn("ep=4 does not divide the 6 experts of a layer; ep = 1, 2 would work", text.replace("\n", " "))
        text = self.call("check", CASE, "--mesh", "dp=3,etp=3", status=4)
        self.assertIn("etp=3 does not divide the width 8 of an expert; etp = 1 would work", text.replace("\n", " "))

    def test_every_schedule_and_each_run_of_processes_gives_the_same_bits(self):
        case = [str(ROOT / "scenarios/ep/meshes.yaml"), "--only", "ep/meshes[dp4_ep2_etp2]"]
        self.call("run", *case, "--backend", "emulated", "--schedules", "4")
        for out in ("a", "b"):
            self.call("run", *case, "--backend", "gloo", "--out", str(self.folder / out))
        self.assertIn("1 the same to the bit, 0 differ",
                      self.call("compare-runs", str(self.folder / "a"), str(self.folder / "b")))

    def test_another_layout_is_the_reference_of_a_model_with_experts(self):
        def run(*lines, data=f"data: {{uneven: true, case: {CASE}}}", status=0):
            scenario = self.folder / "reference.yaml"
            scenario.write_text("\n".join([data, "parallel: {data_parallel_size: 2}",
                                           "reference: {mesh: {dp: 4, ep: 2, etp: 2}}", *lines]))
            return self.call("run", str(scenario), "--backend", "emulated", "--out", str(self.folder / "out"), "--force",
                             status=status).replace("\n", " ")

        self.assertIn("match against dp4 ep2 etp2, not against one device", run())
        case = json.loads((self.folder / "out/results.json").read_text())["cases"][0]
        self.assertTrue({"model.layers.0.mlp.gate.ids.output", "grad.model.layers.2.mlp.experts.gate_up_proj"} <=
                        {tensor["name"] for tensor in case["tensors"]})
        self.assertIn("in float32 than those of the case", run(
            "precision: float32", data=f"model: {{folder: {CASE}}}\nworkload: train", status=4))
        self.assertIn("another layout has other microbatches", run("run.experts.z_coefficient: 0.1", status=4))
        self.assertIn("other tokens on a rank", run("run.experts.capacity: {factor: 1, scope: rank}", status=4))

    def folder_with(self, name, case, config):
        """A case of golden/hf with other keys in config.json and nothing pinned."""
        folder = self.folder / name
        shutil.copytree(ROOT / "golden/hf" / case, folder)
        (folder / "expected.safetensors").unlink()
        content = json.loads((folder / "config.json").read_text()) | config
        (folder / "config.json").write_text(json.dumps(content))
        return str(folder)

    def router_gradient(self, name, config, case="mixtral", mesh="dp=1"):
        file = self.folder / f"{name}.safetensors"
        self.call("check", self.folder_with(name, case, config), "--mesh", mesh, "--steps", "1", "--dump", str(file))
        found = tensors(file)
        return list(found[next(key for key in found if key.endswith("layers.0.mlp.gate.weight") and "grad" in key)][1])

    def test_the_balancing_loss_of_config_json_acts_as_in_transformers(self):
        def with_loss(coefficient):
            return {"output_router_logits": True, "router_aux_loss_coef": coefficient}

        without = self.router_gradient("without", {"router_aux_loss_coef": 0.5})
        self.assertEqual(without, self.router_gradient("zero", with_loss(0)))
        once = self.router_gradient("once", with_loss(0.5))
        self.assertGreater(max(abs(a - b) for a, b in zip(once, without)), 1e-4)
        for twice, one, none in zip(self.router_gradient("twice", with_loss(1.0)), once, without):
            self.assertAlmostEqual(twice - none, 2 * (one - none), delta=1e-12)
        for here, there in zip(self.router_gradient("cut", with_loss(0.5), mesh="cp=2"), once):
            self.assertAlmostEqual(here, there, delta=1e-12)

    def test_a_loss_without_labels_does_not_inherit_the_balancing_loss(self):
        case = "qwen3_moe_dense_layer"  # of clipped_pg
        self.assertEqual(self.router_gradient("with", {"output_router_logits": True}, case),
                         self.router_gradient("without", {}, case))


if __name__ == "__main__":
    cli_test.main()
