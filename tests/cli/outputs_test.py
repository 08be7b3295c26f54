#!/usr/bin/env python3
"""Tests what commands do to files that are there, to a standard output that takes nothing, and what they write for CI,
with the real program.

Usage: outputs_test.py PROGRAM [unittest arguments]
"""
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import tempfile
import xml.etree.ElementTree

import cli_test
import logprobs_test

MODEL = """
model: {vocab_size: 24, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1}
data: {lengths: [5, 3]}
parallel: {tensor_parallel_size: 2}
"""
GOOD = "name: t/good\n" + MODEL
WRONG = ("name: t/wrong\n" + MODEL +
         "faults: [{kind: duplicate, rank: 1, op: all_reduce, axis: tp, label: down_proj forward}]\n")
FULL = "standard output cannot be written: No space left on device"


class Outputs(cli_test.CommandTest):
    def files(self):
        return {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}

    def refuses(self, said, *words):
        before = self.files()
        self.assertIn(said, self.call(*words, status=2))
        self.assertEqual(before, {path: data for path, data in self.files().items() if path in before})

    def write_logprobs(self):
        for name in ("a", "b"):
            logprobs_test.write_file(self.path(name), {"logprobs": ("float32", [[-1.0, -2.0], [-0.5, -3.0]])})

    def test_logprobs_replaces_its_own_findings_and_no_other_file(self):
        self.write_logprobs()
        self.write("notes.txt", "mine")
        for own in ("a", "./b", os.path.join("..", self.folder.name, "a")):
            self.refuses("the same command reads this file", "logprobs", "a", "b", "--json", own)
            self.refuses("the same command reads this file", "logprobs", "a", "b", "--json", own, "--force")
        self.refuses("notes.txt: this file would be replaced, and is not findings that logprobs wrote", "logprobs", "a",
                     "b", "--json", "notes.txt")
        self.refuses("is a folder", "logprobs", "a", "b", "--json", ".")
        self.call("logprobs", "a", "b", "--json", "notes.txt", "--force")
        self.call("logprobs", "a", "b", "--json", "notes.txt")
        self.assertEqual(1, len(json.loads((self.folder / "notes.txt").read_text())))

    def test_two_outputs_of_a_command_are_apart(self):
        self.write("good.yaml", GOOD)
        for dump in ("out/results.json", "./out/mine.safetensors"):
            os.makedirs(self.path("out"), exist_ok=True)
            self.refuses("it lies in the folder of --out", "run", "good.yaml", "--backend", "emulated", "--out", "out",
                         "--dump", dump)
        self.make_case()
        for words in (("--save", "out", "--dump", "out/model.safetensors"), ("--save", "out", "--out", "out"),
                      ("--out", "out", "--dump", "out/junit.xml")):
            self.refuses("it lies in the folder of", "check", self.case, "--mesh", "tp=2", *words)

    def test_shrink_replaces_its_own_scenario_and_no_other_file(self):
        self.write("own.yaml", WRONG)
        self.write("other.yaml", GOOD)
        os.makedirs(self.path("runs", "shrunk"))
        self.write("runs/shrunk/own.yaml", GOOD)
        self.refuses("the same command reads this file", "shrink", "own.yaml", "--out", "own.yaml", "--force")
        said = "this file would be replaced, and is not a scenario that shrink wrote; name another file, or add --force"
        self.refuses(said, "shrink", "own.yaml", "--out", "other.yaml")
        self.refuses(said, "shrink", "own.yaml")
        self.call("shrink", "own.yaml", "--out", "other.yaml", "--force", "--deadline", "5")
        self.assertIn("Shrunk from own.yaml", (self.folder / "other.yaml").read_text())
        self.call("shrink", "own.yaml", "--out", "other.yaml", "--deadline", "5")

    def test_a_dump_replaces_dumps_and_no_other_tensors(self):
        self.make_case()
        self.write("good.yaml", GOOD)
        weights = shutil.copy(os.path.join(self.case, "model.safetensors"), self.path("weights.safetensors"))
        before = pathlib.Path(weights).read_bytes()
        for words in (["golden", self.case], ["check", self.case],
                      ["run", "good.yaml", "--backend", "emulated", "--out", "out"]):
            self.refuses("this file would be replaced, and is not a file that --dump wrote", *words, "--dump", weights)
            self.call(*words, "--dump", self.path("own"))
            self.call(*words, "--dump", self.path("own"))
        self.assertEqual(before, pathlib.Path(weights).read_bytes())
        self.write("plan.json", "{}")
        self.refuses("the same command reads this file", "check", self.case, "--custom-plan", "plan.json", "--dump",
                     "plan.json", "--force")

    def test_a_folder_of_results_holds_nothing_that_the_command_reads(self):
        self.make_case()
        self.write("wrong.yaml", WRONG)
        self.write("suite.yaml", "stages: [pairs]\n")
        self.refuses("the same command reads this folder", "check", self.case, "--out", self.case, "--force")
        self.refuses("which the same command reads", "validate", "suite.yaml", "--ranks", "2", "--out", ".", "--force")
        self.call("run", "wrong.yaml", "--backend", "emulated", "--out", "first", status=1)
        self.refuses("--out first: the same command reads this folder", "run", "wrong.yaml", "--rerun-failed",
                     "first", "--out", "first")

    def test_fuzz_and_validate_use_a_folder_of_other_files_with_force(self):
        for words in (["fuzz", "--count", "1", "--seed", "1"], ["validate", "--ranks", "1", "suite.yaml"]):
            self.write("suite.yaml", "stages: [environment]\n")
            os.makedirs(self.path("other"), exist_ok=True)
            self.write("other/notes.txt", "mine")
            self.refuses("or add --force", *words, "--out", "other")
            self.call(*words, "--out", "other", "--force")
            self.assertEqual("mine", (self.folder / "other/notes.txt").read_text())

    def test_a_run_replaces_a_link_in_its_folder_and_not_what_it_leads_to(self):
        self.make_case()
        self.write("good.yaml", GOOD)
        for words in (["check", self.case, "--mesh", "tp=2"], ["run", "good.yaml", "--backend", "emulated"]):
            for make in (os.symlink, os.link):
                for name in ("journal", "results.json", "junit.xml"):
                    out = pathlib.Path(tempfile.mkdtemp(dir=self.scratch))
                    self.write("notes.txt", "what took a week")
                    make(self.folder / "notes.txt", out / name)
                    self.call(*words, "--out", str(out), "--force")
                    self.assertEqual("what took a week", (self.folder / "notes.txt").read_text(), (words, make, name))

    def test_a_report_says_what_stands_where_the_results_belong(self):
        out = pathlib.Path(tempfile.mkdtemp(dir=self.scratch))
        (out / "results.json").mkdir()
        self.refuses("results.json is a folder", "report", str(out))


class StandardOutput(cli_test.CommandTest):
    def said_without_output(self, words, target, **more):
        with open(target, "wb") as out:
            done = self.run_program(*words, stdout=out, **more)
        return done.returncode, [line for line in done.stderr.splitlines() if line.startswith("shardproof: standard")]

    def commands(self):
        self.write("good.yaml", GOOD)
        self.make_case()
        return (["list", "good.yaml"], ["list", "--keys"], ["schema"], ["--help"], ["version"], ["completion"],
                ["describe", "good.yaml"], ["calls", "good.yaml"], ["lint", "good.yaml"],
                ["run", "good.yaml", "--backend", "emulated"],
                ["run", "good.yaml", "--backend", "emulated", "--format", "jsonl"], ["check", self.case],
                ["golden", self.case], ["fuzz", "--count", "1"], ["doctor"])

    def test_a_full_standard_output_is_one_sentence(self):
        for words in self.commands():
            with self.subTest(words):
                status, said = self.said_without_output(words, "/dev/full")
                self.assertEqual((2, 1), (status, len(said)), said)
                self.assertIn(FULL, said[0])

    def test_a_closed_standard_output_is_one_sentence_and_no_other_file(self):
        for words in self.commands():
            with self.subTest(words):
                status, said = self.said_without_output(words, os.devnull, preexec_fn=lambda: os.close(1))
                self.assertEqual((2, 1), (status, len(said)), said)
                self.assertIn("standard output cannot be written: Bad file descriptor", said[0])
        for results in self.folder.glob("runs/*/results.json"):
            json.loads(results.read_text())

    def test_a_limit_on_file_sizes_is_a_sentence_and_no_signal(self):
        self.write("good.yaml", GOOD)

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        for words in (["run", "good.yaml", "--backend", "emulated", "--no-cache"], ["schema"]):
            with self.subTest(words), open(self.path("out.txt"), "wb") as out:
                done = self.run_program(*words, stdout=out, preexec_fn=limit)
                text = (self.folder / "out.txt").read_text() + done.stderr
                self.assertEqual(2, done.returncode, text)
                self.assertIn("File too large", text)


class ForCi(cli_test.CommandTest):
    def run_wrong(self):
        self.write("good.yaml", GOOD)
        self.write("wrong.yaml", WRONG)
        self.environment["GITHUB_ACTIONS"] = "true"
        return self.call("run", "good.yaml", "wrong.yaml", "--backend", "emulated", "--out", "out", status=1)

    def test_annotation_and_junit_name_tensor_ranks_pattern_and_cause_in_one_line(self):
        text = self.run_wrong()
        found = next(case["divergence"] for case in self.results("out")["cases"] if case["divergence"])
        self.assertTrue(found["pattern"])
        ranks = ", ".join(map(str, found["ranks"]))
        line = (f"expected match, got mismatch (values): {found['tensor']} on ranks {ranks}: {found['pattern']}" +
                (f"; likely {found['likely']}" if found["likely"] else ""))
        self.assertNotIn("\n", line)
        annotation = re.search(r"^::error .*::(expected .*)$", text, re.MULTILINE)[1]
        self.assertEqual(line, annotation.replace("%25", "%"))
        failures = xml.etree.ElementTree.parse(self.path("out", "junit.xml")).getroot().iter("failure")
        self.assertEqual([line], [failure.get("message") for failure in failures])

    def test_the_summary_of_a_job_has_counts_and_findings(self):
        summary = self.path("summary.md")
        self.write("summary.md", "of the step before\n")
        self.environment["GITHUB_STEP_SUMMARY"] = summary
        self.run_wrong()
        found = next(case["divergence"] for case in self.results("out")["cases"] if case["divergence"])
        text = pathlib.Path(summary).read_text()
        self.assertRegex(text, r"\Aof the step before\n### shardproof: 1 of 2 as expected\n\n2 cases: 1 match, 1 mismatch .*\n\n"
                               r"\| case \| finding \|\n\|---\|---\|\n\| t/wrong \| expected match, got mismatch .* \|\n\n\Z")
        ranks = ", ".join(map(str, found["ranks"]))
        for word in (f"{found['tensor']} on ranks {ranks}", found["pattern"], found["likely"]):
            self.assertIn(word, text.replace("\\", ""))
        self.write("many.yaml", WRONG.replace("t/wrong", "t/many") + "matrix: {seed: [" + ", ".join(map(str, range(23))) + "]}\n")
        self.call("run", "many.yaml", "--backend", "emulated", "--out", "out", status=1)
        text = pathlib.Path(summary).read_text().rpartition("###")[2]
        self.assertEqual(20, text.count("| t/many"))
        self.assertIn("\n3 more are in out/junit.xml.\n", text)

    def test_a_summary_that_cannot_be_written_is_said_before_the_run(self):
        self.write("good.yaml", GOOD)
        os.mkfifo(self.path("fifo"))
        for file, why in ((self.scratch, "Is a directory"), (self.path("no/where.md"), "No such file or directory"),
                          (self.path("fifo"), "No such device or address")):
            self.environment["GITHUB_STEP_SUMMARY"] = file
            for words in (["run", "good.yaml", "--backend", "emulated"], ["validate", "--ranks", "1"]):
                said = self.call(*words, "--out", "out", status=2)
                self.assertIn(f"GITHUB_STEP_SUMMARY names {file}, which cannot be written: {why}", said)
                self.assertFalse(os.path.exists(self.path("out")), said)
        self.environment["GITHUB_STEP_SUMMARY"] = "/dev/full"
        said = self.call("run", "good.yaml", "--backend", "emulated", "--out", "out", status=2)
        self.assertIn("/dev/full, which cannot be written: No space left on device", said)
        self.assertTrue(self.results("out")["cases"])

    def test_junit_has_the_anchor_of_each_case_in_the_page(self):  # the rule is in reports/README.md
        name = "t/a_b.c[seed=1,tp=2]"
        self.write("named.yaml", GOOD.replace("t/good", "t/a_b.c").replace("parallel: {tensor_parallel_size: 2}\n", "") +
                   "matrix: {seed: [1], parallel.tensor_parallel_size: [2]}\n")
        self.call("run", "named.yaml", "--backend", "emulated", "--out", "out")
        root = xml.etree.ElementTree.parse(self.path("out", "junit.xml")).getroot()
        self.assertEqual([f"{name} (emulated)"], [case.get("name") for case in root.iter("testcase")])
        self.assertEqual([("report", "report.html#case-t-a_b.c-seed-1-tp-2-emulated")],
                         [(one.get("name"), one.get("value")) for one in root.iter("property")])

    def test_the_exit_status_is_said_with_what_made_it(self):
        self.assertIn("exit status 1: 1 of 2 cases not as expected\n", self.run_wrong())
        low = self.write("low.yaml", GOOD + "precision: float16\nrun: {steps: 8, optimizer: {name: AdamW, kwargs: {lr: 0.1}}}\n")
        text = self.call("run", low, "--backend", "emulated", "--no-unresolved", "--out", "low", status=1)
        count = len(self.results("low")["cases"][0]["unresolved"])
        self.assertGreater(count, 1)
        self.assertIn(f"exit status 1: {count} tensors could not be judged in this precision\n", text)
        again = self.call("run", "--rerun-failed", "low", "--out", "again", status=1)
        self.assertIn("--rerun-failed: --no-unresolved as in low\n", again)
        self.assertEqual(count, len(self.results("again")["cases"][0]["unresolved"]))
        said = f"{count} of "
        suites = xml.etree.ElementTree.parse(self.path("low", "junit.xml")).getroot()
        self.assertEqual("1", suites.get("failures"))
        self.assertTrue(suites.find(".//failure").get("message").startswith(said))
        self.environment["GITHUB_STEP_SUMMARY"] = self.path("job.md")
        self.call("run", low, "--backend", "emulated", "--out", "low")
        self.assertIn(f"; unresolved {count} tensors in 1 case could not be judged", self.read("job.md"))
        self.assertEqual("0", xml.etree.ElementTree.parse(self.path("low", "junit.xml")).getroot().get("failures"))

    def test_rerun_failed_takes_the_scenarios_of_the_run(self):
        os.makedirs(self.path("elsewhere"))
        self.run_wrong()
        for folder in (self.folder, self.folder / "elsewhere"):
            earlier = os.path.relpath(self.path("out"), folder)
            self.run_to_end("run", "--rerun-failed", earlier, "--backend", "emulated", "--out", "again", cwd=folder,
                            status=1)
            names = [case["name"] for case in json.loads((folder / "again/results.json").read_text())["cases"]]
            self.assertEqual(["t/wrong"], names)
        self.write("wrong.yaml", WRONG.replace("t/wrong", "t/renamed"))
        self.assertIn("1 case that failed in out is there no more: t/wrong; run their scenarios without --rerun-failed",
                      self.call("run", "--rerun-failed", "out", "--backend", "emulated", "--out", "again", status=2))
        self.call("run", "good.yaml", "--backend", "emulated", "--out", "right")
        self.assertIn("every case of right ended as expected",
                      self.call("run", "--rerun-failed", "right", "--out", "b", status=2))

    def test_cases_that_are_left_out_for_their_tag_are_counted(self):
        self.write("folder/two.yaml", GOOD + "matrix: {one: [{name: a, seed: 1}, {name: b, seed: 2, tags: [slow]}]}\n")
        self.environment["GITHUB_STEP_SUMMARY"] = self.path("job.md")
        said = "1 case tagged slow or manual (--all runs them)"
        for command in ("run", "list"):
            text = self.call(command, "folder", "--backend", "emulated")
            self.assertRegex(text, "left out +" + re.escape(said))
            self.assertNotIn("left out", self.call(command, "folder", "--backend", "emulated", "--all"))
        self.assertIn("; left out " + said, self.read("job.md").replace("\\", ""))

    def test_an_empty_share_is_nothing_to_do(self):
        self.write("five.yaml", GOOD + "matrix: {seed: [1, 2, 3, 4, 5]}\n")
        for command in ("run", "list", "describe"):
            text = self.call(command, "five.yaml", "--backend", "emulated", "--shard", "6/6")
            self.assertIn("share 6 of 6 has none of the 5 cases\n", text)
        self.call("run", "five.yaml", "--backend", "emulated", "--shard", "6/6", "--out", "none")
        results = json.loads((self.folder / "none/results.json").read_text())
        self.assertEqual([6, 6], results["run"]["shard"])
        self.assertEqual((results["cases"], results["totals"]["cases"]), ([], 0))
        # Shares of one selection have one digest, and those of another have another.
        digests = [results["run"]["selection"]]
        for words in (["--shard", "1/6"], ["--shard", "1/6", "--seed", "7"], ["--shard", "1/6", "--filter", "1"]):
            self.call("run", "five.yaml", "--backend", "emulated", *words, "--out", "none")
            digests.append(json.loads((self.folder / "none/results.json").read_text())["run"]["selection"])
        self.assertEqual(digests[0], digests[1])
        self.assertEqual(len(set(digests)), 3, digests)
        self.assertIn("<testsuites", (self.folder / "none/junit.xml").read_text())
        self.assertIn("no case was selected", self.call("run", "five.yaml", "--backend", "emulated", "--shard", "1/6",
                                                        "--filter", "nothing_like_this", status=2))


if __name__ == "__main__":
    cli_test.main()
