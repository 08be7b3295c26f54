#!/usr/bin/env python3
"""Tests `fuzz` and `shrink` through the program: drawn cases match, their files replay them, and a failing case becomes
a small one that fails in the same way.

Usage: explore_test.py PROGRAM [unittest arguments]
"""
import json
import re

import cli_test

# One rank of tp corrupts the sum behind a layer's MLP; the rest of the case has no part in it.
FAILING = """
name: t/failing
model: {vocab_size: 48, hidden_size: 24, intermediate_size: 32, num_hidden_layers: 4, num_attention_heads: 4}
data: {lengths: [9, 4, 7, 11]}
run: {steps: 2, loss: {kind: clipped_pg}, optimizer: {name: SGD, kwargs: {momentum: 0.5}}}
parallel: {tensor_parallel_size: 2, data_parallel_size: 2, data_parallel: fsdp, activation_checkpointing: layer}
world: {digests: true, nodes: 2}
faults: [{kind: corrupt, rank: 1, op: all_reduce, axis: tp, label: mlp.down_proj, side: input}]
expect: {verdict: mismatch}
"""

# Two cases, one of which has a fault in each step.
ALL_SCHEDULES = """
name: t/all
workload: train
model: {num_hidden_layers: 1, hidden_size: 8, num_attention_heads: 2, intermediate_size: 8, vocab_size: 7}
data: {batch_size: 2, sequence_length: 4}
parallel.data_parallel_size: 2
world.compute: fixed
matrix:
  memory:
    - {name: strict, world.strict: true}
    - {name: loose, world.strict: false}
"""
SCHEDULED = """
name: t/two
model: {vocab_size: 12, hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 2}
data: {lengths: [5, 5]}
world: {backend: emulated}
parallel: {tensor_parallel_size: 2}
matrix:
  row:
    - {name: right}
    - {name: wrong, faults: [{kind: corrupt, rank: 1, op: all_reduce, axis: tp, label: mlp.down_proj, side: input}],
       expect: {verdict: mismatch}}
"""

STAGED = """
name: t/staged
workload: train
model: {vocab_size: 12, hidden_size: 8, intermediate_size: 8, num_hidden_layers: 4, num_attention_heads: 2}
data: {lengths: [5, 3, 4, 2, 5, 3, 4, 2]}
run: {train_micro_batch_size: 1}
world: {backend: emulated, strict: false}
parallel: {pipeline_parallel_size: 2}
matrix:
  row:
    - {name: 1f1b}
    - {name: interleaved, parallel.pp.schedule: interleaved, parallel.pp.chunks: 2}
    - {name: zbv, parallel.pp.schedule: zbv, parallel.pp.chunks: 2}
"""


class Explore(cli_test.CommandTest):
    def test_a_run_whose_cases_are_all_refused_has_judged_nothing(self):
        for seed in range(10):  # a plan of its own may cut no heads
            done = self.run_to_end("fuzz", "--workload", "train", "--set", "parallel.tensor_parallel_size=3", "--set",
                                   "model.num_attention_heads=4", "--set", "model.family=llama", "--count", 1, "--seed", seed,
                                   "--out", f"of{seed}", status=None)
            cases = json.loads((self.folder / f"of{seed}/coverage.json").read_text())["cases"]
            self.assertEqual((done.returncode, cases["refused_by_ranks"]), (2, 1) if cases["run"] == 0 else (0, 0))
            if done.returncode == 2:
                self.assertIn("the ranks refused all cases: nothing was judged; ", done.stderr)
                return
        self.fail("no case was refused")

    def test_drawn_cases_match_and_their_files_replay_them(self):
        done = self.run_to_end("fuzz", "--count", 30, "--seed", 1, "--out", "found")
        last = done.stdout[done.stdout.rindex("\n\n") + 2:].splitlines()
        self.assertRegex(last[0], r"^30 random cases \(seed 1\): \d+ match, \d+ refused, 0 failed$")
        coverage = json.loads((self.folder / "found/coverage.json").read_text())
        undecided = coverage["cases"]["undecided"]
        self.assertEqual(len(last), 2 + (undecided > 0), last)  # the last one names the folder
        if undecided:
            self.assertEqual(last[1], f"{undecided} of them had tensors that could not be judged in their precision")
        self.assertEqual(coverage["unexpected"], [])
        self.assertEqual(coverage["cases"]["drawn"], 30)
        self.assertGreaterEqual(coverage["cases"]["run"], 20)
        self.assertEqual(coverage["cases"]["run"] + coverage["cases"]["refused_by_ranks"], 30)
        self.assertGreater(coverage["pairs"]["run"], 10000)
        self.assertTrue((self.folder / "found/rounds/1/results.json").exists())
        kept = sorted((self.folder / "found/corpus").glob("*.yaml"))
        self.assertGreater(len(kept), 10)
        self.run_to_end("run", kept[0], "--backend", "emulated", "--out", "again")

        counts = [int(number) for number in re.findall(r"\d+ (?=match|refused|failed)", last[0])]
        self.assertEqual(counts, [coverage["cases"]["run"], coverage["cases"]["refused_by_ranks"], 0])
        more = self.run_to_end("fuzz", "--count", 3, "--seed", 2, "--corpus", "found/corpus", "--out", "more", "--coverage")
        self.assertRegex(more.stdout, r"\d+ of \d+ kinds of values have run, and \d+ pairs of them\n")
        grown = json.loads((self.folder / "more/coverage.json").read_text())
        self.assertGreaterEqual(grown["pairs"]["run"], coverage["pairs"]["run"])

    def test_cases_are_drawn_with_the_given_values_of_a_key_alone(self):
        self.run_to_end("fuzz", "--count", 3, "--seed", 4, "--set", "parallel.pipeline_parallel_size=2,3", "--set",
                      "parallel.pp.layout=Ett|tL", "--workload", "train", "--out", "found")
        coverage = json.loads((self.folder / "found/coverage.json").read_text())
        self.assertEqual(set(coverage["values"]["parallel.pipeline_parallel_size"]), {"even", "odd"})
        self.assertGreater(sum(coverage["values"]["parallel.pipeline_parallel_size"].values()), 0)
        self.assertEqual(coverage["unexpected"], [])
        for words, said in (("seed", "--set seed: a value is missing"), ("none=1", "--set none=1: no option with this key"),
                            ("seed=x", "--set seed is the text 'x'; it must be an integer")):
            done = self.run_to_end("fuzz", "--set", words, status=2)
            self.assertIn(said, done.stderr)

    def test_a_given_value_that_no_case_has_is_named(self):
        done = self.run_to_end("fuzz", "--count", 4, "--workload", "train", "--set",
                               "parallel.tensor_parallel_size=2,64", "--out", "found")
        self.assertIn("no case with parallel.tensor_parallel_size=64 ran; ", done.stdout)
        self.assertNotIn("parallel.tensor_parallel_size=2 ran", done.stdout)
        self.assertEqual(json.loads((self.folder / "found/coverage.json").read_text())["choices_not_run"],
                         ["parallel.tensor_parallel_size=64"])

    def test_a_failing_case_becomes_small_and_fails_in_the_same_way(self):
        (self.folder / "failing.yaml").write_text(FAILING)
        done = self.run_to_end("shrink", "failing.yaml", "--only", "t/failing", "--out", "small.yaml")
        small = (self.folder / "small.yaml").read_text()
        self.assertTrue(small.startswith("# mismatch (values): "), small)
        described = self.run_program("describe", "small.yaml").stdout
        for left_out in ("data_parallel", "activation_checkpointing", "run.loss", "run.optimizer", "world.nodes"):
            self.assertNotIn(left_out, small)
        self.assertIn("parallel.tensor_parallel_size: 2", small)
        self.assertRegex(described, r"model +llama: 1 layer,")
        self.assertRegex(done.stdout, r"(?m)^shrunk from \d+ ranks and \d+ settings to 2 ranks and \d+ settings in [\d.]+ s: "
                                      r"\d+ smaller cases were tried in \d+ rounds?$")
        kept = done.stdout[done.stdout.index("not smaller:\n"):].splitlines()[1:-1]
        self.assertTrue(kept)
        for line in kept:
            self.assertNotIn("#", line)
        self.run_to_end("run", "small.yaml", "--backend", "emulated", "--out", "again")

    def run_schedules(self, out, *words, status=0):
        """The cases of a run of this file, and its standard error."""
        (self.folder / "two.yaml").write_text(SCHEDULED)
        done = self.run_to_end("run", "two.yaml", "--out", out, *words, status=status)
        file = self.folder / out / "results.json"
        return json.loads(file.read_text())["cases"] if file.exists() else [], done

    def test_the_schedules_of_a_case_run_together(self):
        names = []
        for shard in ("1/2", "2/2"):
            cases, _ = self.run_schedules(shard.replace("/", "of"), "--schedules", 3, "--shard", shard)
            names.append(sorted(case["name"] for case in cases))
        self.assertEqual(names, [[f"t/two[{case},schedule={k}]" for k in (1, 2, 3)] for case in ("right", "wrong")])
        _, done = self.run_schedules("both", "--schedules", 3, "--only", "t/two[right]")
        self.assertIn("schedules    t/two[right]: the values of 3 schedules are equal to the bit\n", done.stdout)
        for out, words in (("one", ("--schedules", 3)), ("named", ())):
            cases, _ = self.run_schedules(out, *words, "--only", "t/two[right,schedule=2]")
            self.assertEqual([case["name"] for case in cases], ["t/two[right,schedule=2]"])
        for words, said in (
                (("--only", "t/two[right,schedule=5]", "--schedules", 3), "add --schedules 5"),
                (("--backend", "gloo", "--schedules", 3), "no selected case runs in the emulated world")):
            _, done = self.run_schedules("none", *words, status=2)
            self.assertIn(said, done.stderr)

    def test_messages_between_stages_arrive_in_other_orders(self):
        (self.folder / "staged.yaml").write_text(STAGED)
        done = self.run_to_end("run", "staged.yaml", "--schedules", 6, "--out", "staged")
        for row in ("1f1b", "interleaved", "zbv"):
            self.assertIn(f"schedules    t/staged[{row}]: the values of 6 schedules are equal to the bit\n", done.stdout)

    def test_a_case_that_fails_under_schedules_is_run_again_under_them(self):
        (self.folder / "fails.yaml").write_text(SCHEDULED.replace("verdict: mismatch", "verdict: match"))
        done = self.run_to_end("run", "fails.yaml", "--schedules", 2, "--out", "first", status=1)
        cases = self.results("first")["cases"]
        failed = [case for case in cases if not case["as_expected"]]
        self.assertEqual([case["kind"] for case in failed], ["values"] * 2)
        self.assertEqual([case["replay"].split("--schedules ")[1] for case in failed], ["1", "2"])
        done = self.run_to_end("run", "fails.yaml", "--rerun-failed", "first", "--schedules", 1, "--out", "second", status=2)
        self.assertIn("add --schedules 2", done.stderr)
        done = self.run_to_end("run", "fails.yaml", "--rerun-failed", "first", "--out", "second", status=1)
        self.assertEqual("--rerun-failed: --schedules 2 as in first\n", done.stderr)
        again = self.results("second")["cases"]
        self.assertEqual([case["name"] for case in again], [case["name"] for case in failed])
        name = failed[1]["name"]
        self.run_to_end("shrink", "fails.yaml", "--only", name, "--out", "small.yaml")
        self.assertIn(f"case {name}", (self.folder / "small.yaml").read_text().replace("\n# ", " "))

    def test_all_schedules_that_can_differ_are_counted(self):
        (self.folder / "all.yaml").write_text(ALL_SCHEDULES)
        done = self.run_to_end("run", "all.yaml", "--schedules", "all", "--out", "all")
        said = dict(re.findall(r"^schedules +t/all\[(\w+)\]: (.*)", done.stdout, re.MULTILINE))
        # The gradients' all_reduce ends before or after what each of two ranks does until it waits.
        self.assertEqual(said, {"strict": "1 schedule explored in 1 run: all that can differ",
                                "loose": "4 schedules explored in 4 runs: all that can differ"})
        # Transfers take no time there, so that no time is virtual.
        self.assertNotIn("virtual", done.stdout)
        emulated = [case["virtual_time"] for case in self.results("all")["cases"] if case["backend"] == "emulated"]
        self.assertEqual(emulated, [None, None])
        done = self.run_to_end("run", "all.yaml", "--schedules", "all", "--only", "t/all[loose]", "--time-budget", 0,
                             "--out", "some", status=2)
        # One that begins and cannot end within its budget is not run to its end either.
        (self.folder / "many.yaml").write_text(
            "name: t/many\nworkload: train\nmodel: {hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 2,\n"
            "  num_key_value_heads: 2, vocab_size: 11}\nworld: {strict: false}\n"
            "parallel: {data_parallel_size: 2, data_parallel: fsdp}\n")
        words = ("run", "many.yaml", "--backend", "emulated", "--schedules", "all", "--time-budget", 0.5, "--out")
        done = self.run_to_end(*words, "many", status=2)
        self.assertRegex(done.stdout, "not run +t/many +[0-9]+ schedules? explored in [0-9]+ runs?: NOT ALL that can differ, as the run was to stop")
        self.assertEqual(self.results("many")["cases"], [])
        self.run_to_end(*words, "many again", "--allow-partial")
        self.run_to_end("run", "all.yaml", "--schedules", "some", status=2)

    def test_a_run_that_does_not_finish_leaves_schedules_unknown(self):
        (self.folder / "throws.yaml").write_text(ALL_SCHEDULES + "faults: [{kind: throw, rank: 1, op: all_reduce}]\n"
                                                 "expect: {verdict: failed}\n")
        done = self.run_to_end("run", "throws.yaml", "--schedules", "all", "--only", "t/all[loose]", "--out", "throws")
        self.assertIn("1 schedule explored in 1 run: NOT ALL that can differ, as this ended the search", done.stdout)

    def test_a_corpus_that_is_read_stays(self):
        words = ("fuzz", "--count", 6, "--seed", 7, "--workload", "mapping", "--precision", "float64", "--out", "F")
        self.run_to_end(*words)
        before = {path.name: path.read_bytes() for path in (self.folder / "F/corpus").iterdir()}
        self.run_to_end(*words, "--corpus", "F/corpus")
        after = {path.name: path.read_bytes() for path in (self.folder / "F/corpus").iterdir()}
        self.assertEqual(before, {name: after.get(name) for name in before})

    def test_a_key_is_restricted_once(self):
        for words in (("--precision", "float64", "--set", "precision=float32"), ("--set", "seed=1", "--set", "seed=2")):
            done = self.run_to_end("fuzz", "--count", 1, *words, status=2)
            self.assertIn("are restricted twice; give all of them at once", done.stderr)

    def test_what_cannot_be_shrunk_leaves_the_others_and_the_exit_status(self):
        place = self.folder / "runs/shrunk/t_two_wrong_.yaml"
        place.parent.mkdir(parents=True)
        place.write_text("name: mine\n")
        (self.folder / "wrong.yaml").write_text(SCHEDULED.replace("verdict: mismatch", "verdict: match") +
                                                "    - {name: throws, faults: [{kind: throw, rank: 1, op: all_reduce}]}\n")
        done = self.run_to_end("run", "wrong.yaml", "--shrink", "--format", "jsonl", "--out", "out", status=3)
        for line in done.stdout.splitlines():
            json.loads(line)
        self.assertIn("not shrunk: --out runs/shrunk/t_two_wrong_.yaml", done.stderr)
        self.assertTrue((self.folder / "runs/shrunk/t_two_throws_.yaml").is_file())

    def test_a_case_that_matches_is_not_shrunk(self):
        (self.folder / "right.yaml").write_text("model: {num_hidden_layers: 1}\n")
        done = self.run_to_end("shrink", "right.yaml", status=2)
        self.assertIn("the case matches, so there is nothing to shrink; a race, or expect.collectives, is not shrunk",
                      done.stderr)


if __name__ == "__main__":
    cli_test.main()
