#!/usr/bin/env python3
"""What a rank does not observe is missing on that rank: each planted silence, in the emulated and in the Gloo world.

  silence_test.py PROGRAM
"""

import re
from pathlib import Path

import cli_test

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
SMALL = ("workload: train\nmodel: {vocab_size: 40, hidden_size: 24, intermediate_size: 40, num_attention_heads: 4, "
         "num_hidden_layers: 1}\ndata: {lengths: [6, 4, 5, 3], token_mask_probability: 1.0}\nseed: 11\n")
PLANTED = re.compile(r"kind: silence, rank: (\d+), step: (\d+), .*?label: ([\w.]+)")


def planted(file):
    """{name of the case: its silences, (rank, step, label) each}"""
    _, *rows = re.split(r"^    - name: (\w+)$", file.read_text(), flags=re.MULTILINE)
    found = {name: PLANTED.findall(row) for name, row in zip(rows[::2], rows[1::2])}
    return {name: silences for name, silences in found.items() if silences}


class Silence(cli_test.CommandTest):
    def check(self, scenario, kinds):
        cases = planted(SCENARIOS / f"{scenario}.yaml")
        self.assertEqual(len(cases), kinds)
        for backend in ("emulated", "gloo"):
            self.run_to_end("run", SCENARIOS / f"{scenario}.yaml", "--filter", "silence", "--backend", backend,
                            "--no-skips", "--out", backend)
            results = {re.search(r"\[(\w+)", one["name"])[1]: one for one in self.results(backend)["cases"]}
            self.assertEqual(set(results), set(cases))
            for name, silences in cases.items():
                with self.subTest(backend=backend, case=name):
                    found = results[name]["divergence"]
                    ranks, steps, labels = (set(column) for column in zip(*silences))
                    if len(ranks) == results[name]["world_size"]:
                        self.assertIn("no rank observed it", found["pattern"])
                        self.assertEqual(found["ranks"], [])
                    else:
                        self.assertEqual(found["ranks"], sorted(map(int, ranks)))
                    self.assertEqual({str(found["step"])}, steps)
                    self.assertTrue(all(found["tensor"].endswith(label) for label in labels), found["tensor"])

    def test_of_each_kind_of_observation(self):
        self.check("faults/silence", kinds=10)

    def test_on_a_stage_and_at_its_boundaries(self):
        self.check("pp/faults", kinds=4)

    def test_of_the_outputs_of_a_function(self):
        """Another rank has the same values; this one returned them, and is not excused."""
        for workload, label, rank, more in (
                ("column_parallel_linear", "y", 1, "options: {gather_output: true}\n"),
                ("vocab_parallel_cross_entropy", "loss", 0, ""),
                ("refit", "param.model.embed_tokens.weight", 7, "options: {replicas: 2}\n")):
            size = 4 if workload == "refit" else 1
            case = (f"workload: {workload}\n{more}parallel: {{data_parallel_size: {size}, tensor_parallel_size: 2}}\n"
                    f"faults: [{{kind: silence, rank: {rank}, label: {label}}}]\n")
            for backend in ("emulated", "gloo"):
                with self.subTest(workload, backend=backend):
                    said = self.call("run", self.write("function.yaml", case), "--backend", backend, status=1)
                    self.assertRegex(said, rf"tensor +{re.escape(label)} ")
                    self.assertIn(f"it was not observed on rank {rank} only", said)

    def said_of(self, name, case, status=1):
        return " ".join(self.call("run", self.write(f"{name}.yaml", case), "--backend", "emulated", status=status).split())

    def test_of_whole_microbatches(self):
        """No rank observes its second microbatch, but for the logprobs."""
        hidden = ", ".join(f"{{kind: silence, rank: {rank}, at_call: {at}, label: {label}}}" for rank in (0, 1)
                           for at, label in ((16, "output"), (20, "grad_input")))
        case = SMALL + "run: {train_micro_batch_size: 1}\nparallel: {data_parallel_size: 2}\n"
        self.assertIn("all as expected", self.said_of("whole", case, status=0))
        self.assertRegex(self.said_of("hidden", case + f"faults: [{hidden}]\n"), "missing .*microbatch")

    def test_of_a_copy_of_the_logprobs(self):
        case = SMALL + ("run: {train_micro_batch_size: 1}\nparallel: {data_parallel_size: 2, tensor_parallel_size: 2}\n"
                        "faults: [{kind: silence, rank: 3, label: logprobs, at_call: 1}]\n")
        self.assertRegex(self.said_of("copy", case), "tensor logprobs .*not observed on rank 3 only")

    def test_of_the_weights_that_a_pipeline_begins_with(self):
        """Its golden names them; that of a policy and a layout that takes the golden's place do not."""
        case = SMALL.replace("num_hidden_layers: 1}", "num_hidden_layers: 2}") + (
            "parallel: {pipeline_parallel_size: 2, data_parallel_size: 2}\nfaults: [FAULTS]\n")
        def with_silence(of, *ranks):
            return of.replace("FAULTS", ", ".join(f"{{kind: silence, rank: {rank}, label: initial.model.embed_tokens}}"
                                                  for rank in ranks))
        for ranks, where in (((1,), "not observed on rank 1 only"), ((0, 1), "do not hold every element of it")):
            with self.subTest(ranks=ranks):
                self.assertRegex(self.said_of("initial", with_silence(case, *ranks)),
                                 f"tensor initial.model.embed_tokens.weight .*{where}")
        policy = case.replace("train", "policy", 1) + "run: {stages: [{do: train}]}\n"
        for name, other in (("policy", policy), ("reference", case + "reference: {mesh: {tp: 2}}\n")):
            with self.subTest(name):
                self.assertIn("observed no tensor of the golden", self.said_of(name, with_silence(other, 1), status=2))

    def test_of_a_boundary_beside_a_reference(self):
        """Each layout has boundaries of its own, so that they are not compared, and a silence there acts on nothing."""
        case = SMALL.replace("num_hidden_layers: 1}", "num_hidden_layers: 2}") + (
            "parallel: {pipeline_parallel_size: 2}\nreference: {mesh: {tp: 2}}\n"
            "faults: [{kind: silence, rank: 1, label: model.layers.1.boundary}]\n")
        self.assertIn("observed no tensor of the golden", self.said_of("reference", case, status=2))

    def test_where_float16_may_skip_the_step(self):
        """What a skip leaves out is excused, and no more."""
        case = (SCENARIOS / "found/part_of_a_sum_overflows.yaml").read_text()
        case += "\nfaults: [{kind: silence, rank: 1, label: layers.0.input_layernorm.output}]\n"
        self.assertRegex(self.said_of("skips", case), "tensor model.layers.0.input_layernorm.output .*on rank 1 only")

    def test_of_refits_and_beside_them(self):
        """Ranks that a policy sends weights have none of its gradients, and those of the mesh no refits."""
        case = SMALL.replace("train", "policy") + (
            "parallel: {data_parallel_size: 2}\n"
            "run: {refit: {tensor_parallel_size: 2}, stages: [{do: score}, {do: train}, {do: refit}]}\nfaults: [FAULTS]\n")
        for ranks, label, where in (((3,), "refit.model.norm.weight", "not observed on rank 3"),
                                    ((2, 3), "refit.model.norm.weight", "no rank observed it"),
                                    ((0, 1), "grad_norm", "no rank observed it"), ((1,), "grad_norm", "not observed on rank 1")):
            faults = ", ".join(f"{{kind: silence, rank: {rank}, label: {label}}}" for rank in ranks)
            with self.subTest(label, ranks=ranks):
                self.assertIn(where, self.said_of("refits", case.replace("FAULTS", faults)))

    def test_a_silence_hides_tensors_and_no_calls(self):
        self.assertIn("a silence hides tensors, and it has an op or an axis of calls",
                      self.call("run", self.write("op.yaml", SMALL + "parallel: {data_parallel_size: 2}\nfaults: "
                                                  "[{kind: silence, rank: 0, op: all_reduce, label: loss}]\n"), status=2))

    def test_a_function_of_nothing_proves_nothing(self):
        for case, said in (("workload: mapping\noptions: {shape: [0, 24]}", "no output and no gradient has an element"),
                           ("workload: column_parallel_linear\noptions: {samples: 0}", "all outputs and gradients are 0")):
            case += "\nparallel: {tensor_parallel_size: 2}\nworld: {backend: emulated}\n"
            self.assertIn(said, self.call("run", self.write("empty.yaml", case), status=2))
            self.call("run", self.write("empty.yaml", case + "expect: {nothing_counted: true}\n"), status=0)

    def test_what_no_golden_names_cannot_be_silent(self):
        # The proofs of the optimizer: nothing would miss them.
        text = (SCENARIOS / "faults/silence.yaml").read_text()
        case = text[:text.index("matrix:")] + "faults: [{kind: silence, rank: 1, label: LABEL}]\n"
        for label in ("fed.param.model.norm.weight", "initial.model.norm.weight"):
            text_of_run = self.call("run", self.write("silence.yaml", case.replace("LABEL", label)), status=2)
            self.assertIn("observed no tensor of the golden", " ".join(text_of_run.split()))


if __name__ == "__main__":
    cli_test.main()
