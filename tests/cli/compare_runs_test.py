#!/usr/bin/env python3
"""Tests compare-runs, and scenarios that name a registered workload, with the real program.

Usage: compare_runs_test.py PROGRAM [unittest arguments]
"""
import json
import os
import re
import shlex
import shutil
import struct

import cli_test  # makes tests/support importable
import case_maker  # noqa: E402

MODEL = """
name: t/model
model: {vocab_size: 24, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1}
data: {lengths: [5, 3]}
parallel: {tensor_parallel_size: 2}
"""
FAULT = MODEL + "faults: [{kind: corrupt, rank: 1, op: all_reduce, axis: tp, bit: %d}]\n" \
        "expect: {verdict: mismatch}\n"
LAYER = """
name: t/layer
workload: column_parallel_linear
parallel: {tensor_parallel_size: 3}
"""


class Runs(cli_test.CommandTest):
    def run_text(self, text, out, *more, status=None):
        scenario = self.write("s.yaml", text)
        return self.run_to_end("run", scenario, "--backend", "emulated", "--out", self.path(out), *more, status=status)


class CompareRuns(Runs):
    def compare(self, a, b, status=None):
        return self.run_to_end("compare-runs", self.path(a), self.path(b), status=status)

    def copied(self, name):
        return os.path.basename(shutil.copytree(self.path(name), self.path(name + "2"), dirs_exist_ok=True))

    def write_results(self, out, results):
        self.write(f"{out}/results.json", json.dumps(results))

    def test_two_emulated_runs_are_the_same_to_the_bit(self):
        for out in ("a", "b"):
            self.run_text(MODEL, out, status=0)
        done = self.compare("a", "b")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("1 the same to the bit, 0 differ", done.stdout)

    def test_a_run_that_keeps_little_is_compared_by_phases(self):
        for out, text, flags in (("a", MODEL, ("--keep", "unexpected")), ("all", MODEL, ()),
                                 ("f", FAULT % 50, ("--keep", "unexpected")), ("g", FAULT % 49, ())):
            self.run_text(text, out, *flags, status=0)
        little, whole = self.results("a")["cases"][0], self.results("all")["cases"][0]
        self.assertEqual((little["kept"], little["tensors"], whole["kept"]), ("digests", [], "all"))
        self.assertEqual(little["digests"], whole["digests"])
        self.assertEqual(sum(entry["tensors"] for entry in whole["digests"]), len(whole["tensors"]))
        self.assertFalse(os.path.exists(self.path("a", "logs")))
        self.assertEqual(len(self.results("a", "timeline.json")["traceEvents"]), 1)
        done = self.compare("a", "all")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        counts = re.findall("   (.* tensors and .*)\n", done.stdout)
        self.says(done.stdout, "1 the same to the bit, 0 differ")
        self.says(self.compare("all", self.copied("all")).stdout, *counts)
        self.assertEqual(sum(int(n) for n in re.findall(r"\d+", counts[0])), len(whole["tensors"]))
        done = self.compare("f", "g", status=1)
        self.assertRegex(done.stdout, r"first     the tensors of forward of step 1\n  on        rank")
        self.says(done.stdout, "Tensors: run both with", little["replay"].partition(" run ")[2].split()[0])

    def test_what_did_not_end_as_expected_is_kept_whole(self):
        wrong = MODEL + ("matrix:\n  row:\n    - {name: right}\n    - {name: wrong, faults: [{kind: corrupt, rank: 1, "
                         "op: all_reduce, axis: tp, bit: 50}]}\n")
        self.run_text(wrong, "a", "--keep", "unexpected", status=1)
        right, bad = self.results("a")["cases"]
        self.assertEqual((right["kept"], bad["kept"]), ("digests", "all"))
        self.assertTrue(bad["tensors"])
        self.assertEqual(os.listdir(self.path("a", "logs")), [bad["id"]])
        # As many cases as nobody reads one by one.
        many = MODEL + f"matrix: {{seed: {list(range(51))}}}\n"
        self.run_text(many, "many", status=0)
        self.assertEqual({case["kept"] for case in self.results("many")["cases"]}, {"digests"})
        self.run_text(many, "kept", "--keep", "all", status=0)
        self.assertEqual({case["kept"] for case in self.results("kept")["cases"]}, {"all"})
        self.compare("many", "kept", status=0)

    def test_digests_that_are_not_there_are_not_the_same(self):
        self.run_text(MODEL, "a")
        for digest in (None, [], ["0" * 16], "x"):
            results = self.results("a")
            results["cases"][0]["tensors"][3]["digest"] = digest
            self.write_results("b", results)
            for pair in (("a", "b"), ("b", "a"), ("b", self.copied("b"))):
                done = self.compare(*pair)
                if "a" in pair or digest != ["0" * 16]:
                    self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done)
                    self.assertIn("without one digest for each rank", done.stderr)

    def test_a_run_is_not_compared_with_itself(self):
        self.run_text(MODEL, "a")
        os.symlink("a", self.path("latest"))
        for one, other in (("a", "a"), ("a", "latest"), ("a/results.json", "a")):
            self.assertIn("are the same", self.compare(one, other, status=2).stderr)

    def test_another_seed_is_one_line_and_leaves_nothing_to_compare(self):
        two = MODEL + "matrix: {parallel.tensor_parallel_size: [1, 2]}\n"
        self.run_text(two, "a")
        self.run_text(two, "b", "--seed", "5")
        done = self.compare("a", "b")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(done.stderr, "shardproof: other seed: nothing to compare (seed 0 in A, 5 in B); "
                         "run both with the same --seed\n")
        self.run_text(MODEL + "seed: 0\nmatrix: {seed: [0, 5]}\n", "c")
        results = self.results("c")
        results["cases"][1]["seed"] = 6
        self.write_results("d", results)
        done = self.compare("c", "d", status=1)
        self.assertRegex(done.stdout, r"(?m)^DIFFERS   t/model\[seed=5\] on emulated   other seed \(5 in A, 6 in B\): nothing to "
                         r"compare$\n^2 cases in both runs: 1 the same to the bit, 1 differ$")

    def test_what_repeats_the_values_of_a_run_has_its_seed(self):
        self.run_text(FAULT % 50, "a", "--seed", "9")
        self.run_text(FAULT % 49, "b", "--seed", "9")
        done = self.compare("a", "b")
        self.assertRegex(done.stdout, r"from the golden \S+ of an allowance in A, \S+ in B")
        self.assertRegex(done.stdout, r"Values: run both with\n +shardproof run .* --seed 9 --dump FILE")

    def test_tensors_are_counted_as_in_run(self):
        said = re.search(r"   (\d+ tensors), ", self.run_text(MODEL, "a").stdout)[1]
        self.assertRegex(self.compare("a", self.copied("a")).stdout, rf"t/model on emulated   {said} and \d+ parameters that the "
                         "golden's gradients gave\n")

    def test_other_settings_are_said(self):
        self.run_text(MODEL, "a")
        for key, old, new, said in (
                ("precision", "name:", "precision: float32\nname:", "other precision: float64 in A, float32 in B"),
                ("mesh", "tensor", "data", "other mesh: tp=2 in A, dp=2 in B"),
                ("lr", "parallel:", "run: {optimizer: {kwargs: {lr: 0.5}}}\nparallel:",
                 "other settings or files of the model, the batch or the optimizer")):
            with self.subTest(key):
                self.run_text(MODEL.replace(old, new, 1), "b", status=0)
                done = self.compare("a", "b", status=1)
                self.assertIn("  " + said + "\n", done.stdout)

    def test_other_commands_are_given_for_both_runs(self):
        for out, rate in (("a", 0.5), ("b", 0.25)):
            self.run_to_end("run", self.write(f"{out}.yaml", MODEL + f"run: {{optimizer: {{kwargs: {{lr: {rate}}}}}}}\n"),
                            "--backend", "emulated", "--out", self.path(out))
        text = self.compare("a", "b", status=1).stdout
        commands = re.search(r"Values: run\n    A: shardproof (.*) --dump FILE\n    B: shardproof (.*) --dump FILE\n", text)
        self.assertTrue(commands, text)
        for command, dump in zip(commands.groups(), ("a.safetensors", "b.safetensors")):
            self.run_to_end(*shlex.split(command), "--dump", self.path(dump))
        self.compare("a.safetensors", "b.safetensors", status=1)

    def test_another_program_is_said(self):
        self.run_text(MODEL, "a")
        results = self.results("a")
        digest = results["run"]["program"]
        results["run"]["program"] = "00000000"
        self.write_results("b", results)
        done = self.compare("a", "b", status=0)
        self.assertRegex(done.stdout, f"^other program: .*, digest {digest} in A, .*, digest 00000000 in B\n")

    def test_values_that_the_folders_hold_are_compared(self):
        self.run_text(FAULT % 50, "a")
        self.run_text(FAULT % 49, "b")
        done = self.compare("a", "b", status=1)
        by = re.search(r"by +(\d+) of \d+ elements differ, at most by (\S+), relatively by", done.stdout)
        self.assertTrue(by, done.stdout)
        pieces = []
        for out in ("a", "b"):
            case = self.results(out)["cases"][0]
            tensors = cli_test.read_safetensors(self.path(out, "tensors", case["id"] + ".safetensors"))
            first = next(t for t in case["tensors"] if not t["ok"])["name"]
            pieces.append([value for name, (*_, values) in tensors.items() if name.endswith(f"/{first}/actual")
                           for value in values])
        worst = max(abs(x - y) for x, y in zip(*pieces))
        self.assertAlmostEqual(float(by.group(2)) / worst, 1, delta=0.01)

    def test_two_dumps_are_compared_by_value(self):
        for name, more in (("a", ()), ("b", ()), ("c", ("--seed", "5"))):
            self.run_text(MODEL, "out" + name, "--dump", self.path(name + ".safetensors"), *more)
        same = self.compare("a.safetensors", "b.safetensors")
        self.assertEqual((same.returncode, same.stdout), (0, "all values are equal\n"))
        other = self.compare("a.safetensors", "c.safetensors", status=1)
        self.assertRegex(other.stdout, r"(?m)^loss +1 of 1 element differs, at most by \S+, relatively by \S+$")

    def test_a_dump_without_a_tensor_differs(self):
        doubles = ("F64", [2], struct.pack("<2d", 1, 2))
        files = {"a": {"same": doubles, "shape": doubles, "dtype": doubles, "lost": doubles,
                       "single": ("F32", [2], struct.pack("<2f", 1, 2))},
                 "b": {"same": doubles, "shape": ("F64", [1, 2], doubles[2]), "more": doubles,
                       "dtype": ("F32", [2], struct.pack("<2f", 1, 2)),
                       "single": ("F32", [2], struct.pack("<2f", 1, 2.5))}}
        for name, tensors in files.items():
            self.write(name + ".safetensors", case_maker.safetensors(tensors))
        done = self.compare("a.safetensors", "b.safetensors")
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        self.assertEqual(dict(re.split(" {2,}", line) for line in done.stdout.splitlines()),
                         {"dtype": "float64 in A, float32 in B", "lost": "only in A", "more": "only in B",
                          "single": "1 of 2 elements differ, at most by 0.5, relatively by 0.2",
                          "shape": "[2] in A, [1, 2] in B"})

    def test_cases_without_tensors_are_not_the_same(self):
        refused = MODEL.replace("hidden_size: 16", "hidden_size: 16, num_attention_heads: 3, head_dim: 4") \
                       .replace("t/model", "t/refused") + "expect: {verdict: refused}\n"
        for out in ("a", "b"):
            self.run_text(refused, out, status=0)
        done = self.compare("a", "b")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("nothing to compare: none of the 1 case in both runs has a tensor", done.stderr)
        self.run_text(MODEL, "c")
        results = self.results("c")
        results["cases"] += self.results("a")["cases"]
        self.write_results("both", results)
        done = self.compare("both", self.copied("both"), status=0)
        self.assertIn("nothing   t/refused on emulated   no tensors to compare", done.stdout)
        self.assertIn("2 cases in both runs: 1 the same to the bit, 0 differ, 1 without tensors", done.stdout)

    def test_the_first_in_the_order_of_execution_is_named_with_its_rank(self):
        self.run_text(MODEL, "a")
        results = self.results("a")
        tensors = results["cases"][0]["tensors"]
        for place in (len(tensors) - 1, 7):
            tensors[place]["digest"][1] = "0" * 16
        self.write_results("b", results)
        done = self.compare("a", "b", status=1)
        self.says(done.stdout, f"first     {tensors[7]['name']}, ", "on        rank 1: ",
                  f"in all    2 of {len(tensors)} tensors differ")

    def test_a_tensor_that_only_one_run_has_differs(self):
        self.run_text(MODEL, "a")
        results = self.results("a")
        gone = results["cases"][0]["tensors"].pop(3)
        self.write_results("b", results)
        self.assertRegex(self.compare("a", "b").stdout, f"first +{gone['name']}, .*\n +on +only A has it")
        self.assertRegex(self.compare("b", "a").stdout, f"first +{gone['name']}, .*\n +on +only B has it")

    def test_what_cannot_be_compared_is_a_sentence(self):
        self.run_text(MODEL, "a")
        results = self.results("a")
        os.makedirs(self.path("empty"))
        self.write_results("old", {"format": "shardproof-results/0"})
        self.write_results("other", {**results, "cases": [{**results["cases"][0], "name": "t/else"}]})
        results["cases"][0]["tensors"][0].pop("digest")
        self.write_results("without", results)
        for other in ("nowhere", "empty", "old", "other", "without"):
            for pair in ((other, "a"), ("a", other)):
                with self.subTest(pair):
                    done = self.compare(*pair, status=2)
                    self.assertEqual(done.stdout, "")
                    self.assertTrue(done.stderr.startswith("shardproof: "), done.stderr)


class RegisteredWorkloads(Runs):
    def refusal(self, text):
        done = self.run_text(text, "out", status=2)
        self.assertFalse(os.path.exists(self.path("out")))
        return done.stderr

    def test_a_layout_that_the_mesh_cannot_cut_is_refused(self):
        self.run_text(LAYER + "options: {sequence_parallel: true, tokens: 7}\n", "out", status=4)

    def test_options_are_checked_where_they_stand(self):
        self.assertRegex(self.refusal(LAYER + "options: {in_featuers: 3}\n"),
                         r"s\.yaml:5:1: workload column_parallel_linear has no option 'in_featuers'.*"
                         r"did you mean in_features\?")
        self.assertRegex(self.refusal(LAYER + "options: {bias: 3}\n"), r"option bias is 3, of another type")
        self.assertRegex(self.refusal(LAYER + "options: {tokens: 3.5}\n"), r"option tokens is 3\.5")

    def test_a_model_is_not_asked_of_a_workload_without_one(self):
        self.assertRegex(self.refusal(LAYER + "model: {hidden_size: 8}\n"),
                         r"s\.yaml:5:\d+: workload column_parallel_linear has no model, so no model\.hidden_size")
        self.assertRegex(self.refusal(MODEL + "options: {bias: true}\n"), r"workload train has no options")

    def test_an_unknown_one_is_answered_with_the_nearest(self):
        self.assertRegex(self.refusal(LAYER.replace("parallel_linear", "paralel_linear")),
                         r"s\.yaml:3:1: workload is 'column_paralel_linear'; .*did you mean column_parallel_linear\?")

    def test_a_removed_one_is_answered_with_what_shows_its_subject_now(self):
        for workload, said in (("layer_parameters", r"was removed; .*model\.init: own_stream.*run\.stages"),
                               ("inference_pair", r"was removed; .*run\.scoring\.fused_norm: true"),
                               ("accumulated_linear", r"was removed; .*run\.gradients: main"),
                               ("layers_in_flight", r"was removed; .*parallel\.tp\.gather_buffer: true"),
                               ("vocab_parallel_embedding", r"was removed; .*workload: train")):
            with self.subTest(workload):
                self.assertRegex(self.refusal(f"name: t/old\nseed: 1\nworkload: {workload}\n"),
                                 rf"s\.yaml:3:1: workload {workload} {said}")

    def test_what_a_caller_gets_wrong_is_bad_input_with_a_sentence_of_its_own(self):
        wrong = [
            ("dropout_regions", "tp_ranks: 2, fork: model-paralel-rng",
             r"model-paralel-rng.*did you mean 'model-parallel-rng'\?"),
            ("dropout_regions", "tp_ranks: 2, extra_seed: 40",
             r"'extra-rng' has seed 40, which is that of stream 'data-parallel-rng' already"),
            ("broadcast_data", "missing: idz", r"the batch of the group's first rank has no 'idz'"),
            ("broadcast_data", "other_dtype: true", r"'mask' of the batch is Bool, but the dtype of the call is Long"),
            ("stream_init", "ranks: 2, stream: models", r"random stream 'models'"),
        ]
        for workload, options, said in wrong:
            with self.subTest(workload + " " + options):
                done = self.run_text(f"name: t/wrong\nworkload: {workload}\nparallel: "
                                     f"{{tensor_parallel_size: 2}}\noptions: {{{options}}}\n", "out")
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertRegex((done.stdout + done.stderr).replace("\n", " "), said)

    def test_describe_shows_what_it_is(self):
        self.run_text(LAYER, "out")
        done = self.run_program("describe", self.path("s.yaml"))
        self.says(done.stdout, "y = x W^T + b", "in_features 5")


if __name__ == "__main__":
    cli_test.main()
