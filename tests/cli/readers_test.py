#!/usr/bin/env python3
"""The strict readers of what the commands are given, through the real program: a key that stands twice in any JSON is
bad input, named with its place.

Usage: readers_test.py PROGRAM [unittest arguments]
"""
import copy
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
import cli_test  # noqa: E402
import recorded_test  # noqa: E402

ONE = """
name: t/one
model: {vocab_size: 24, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1}
data: {lengths: [5, 3]}
"""
SCHEMA = os.path.join(HERE, "..", "..", "python", "shardproof", "run.schema.json")
TWICE = "stands twice in one object; keep one"


def doubled(text, key):
    """The text with this key before everything else, and where it stands the second time: (text, line, column)."""
    text = "{" + json.dumps(key) + ": null, " + text[text.index("{") + 1:]
    at = text.index(json.dumps(key), 2)
    return text, text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


class Readers(cli_test.CommandTest):
    def edit(self, path, change):
        """Writes change(text), a text or (text, what to return)."""
        changed, *place = [made] if isinstance(made := change(self.read(path)), str) else made
        self.write(path, changed)
        return place

    def refused(self, path, place, key, *words):
        """The command says one sentence, of this key and place."""
        text = self.call(*words, status=2)
        line, column = place
        self.assertEqual([one for one in text.splitlines() if one],
                         [f"shardproof: {path}:{line}:{column}: the key \"{key}\" {TWICE}"])

    def test_results_json_and_timeline_json(self):
        self.call("run", self.write("one.yaml", ONE), "--backend", "emulated", "--out", self.path("a"))
        for name, key, commands in (("results.json", "totals", (["compare-runs", self.path("a"), self.path("b")],
                                                               ["compare-runs", self.path("b"), self.path("a")],
                                                               ["run", self.path("one.yaml"), "--rerun-failed",
                                                                self.path("b")],
                                                               ["report", self.path("b")])),
                                    ("timeline.json", "traceEvents", (["report", self.path("b")],))):
            shutil.copytree(self.path("a"), self.path("b"))
            path = os.path.join(self.path("b"), name)
            place = self.edit(path, lambda text: doubled(text, key))
            for words in commands:
                with self.subTest(" ".join(words)):
                    self.refused(path, place, key, *words)
            shutil.rmtree(self.path("b"))

    def test_the_page_maker_alone_refuses_it_too(self):
        sys.path.insert(0, os.path.join(HERE, "..", "..", "reports"))
        import run_data
        self.write("results.json", '{"format": 1, "format": "shardproof-results/1"}')
        with self.assertRaisesRegex(run_data.BadRun, "the key 'format' stands twice in one object"):
            run_data.read_results(self.scratch)

    def test_a_journal_that_a_run_goes_on_with(self):
        out = self.path("a")
        scenario = self.write("two.yaml", ONE + "matrix: {seed: [1, 2]}\n")
        self.call("run", scenario, "--backend", "emulated", "--out", out, "--maxfail", "1", "--time-budget", "0",
                  status=2)
        path = os.path.join(out, "journal")
        self.assertTrue(os.path.exists(path), os.listdir(out))

        def change(text):
            lines = text.splitlines()
            _, kind, number, record = lines[0].split(" ", 3)
            rest = f"{kind} {number} " + doubled(record, "version")[0]
            lines[0] = f"{zlib.crc32(rest.encode()):08x} {rest}"
            return "\n".join(lines) + "\n"
        self.edit(path, change)
        text = self.call("run", "--resume", out, status=2)
        self.assertRegex(text, rf'journal:1:\d+: the key "version" {TWICE}')

    def test_files_of_a_case(self):
        self.make_case()
        for name, key in (("case.json", "loss"), ("config.json", "vocab_size")):
            path = os.path.join(self.case, name)
            shutil.copy(path, self.path("kept"))
            self.edit(path, lambda text: json.dumps({key: 1, **json.loads(text)}, indent=1))
            place = self.edit(path, lambda text: doubled(text, key))
            self.refused(path, place, key, "check", self.case, "--mesh", "dp=2")
            shutil.copy(self.path("kept"), path)

    def test_a_recorded_run(self):
        golden, run = self.path("golden"), self.path("run")
        recorded_test.recorded().write(golden)
        for name, key in (("run.json", "steps"), ("rank1.jsonl", "kind")):
            recorded_test.recorded([("tp", 2)]).write(run)
            place = self.edit(os.path.join(run, name), lambda text: doubled(text, key))
            self.refused(os.path.join(run, name), place, key, "judge", run, "--golden", golden)
            shutil.rmtree(run)

    def test_the_precision_of_a_recorded_run_is_a_known_one(self):
        golden, run = self.path("golden"), self.path("run")
        recorded_test.recorded().write(golden)
        recorded_test.recorded([("tp", 2)]).write(run)
        for word, says in (("flaot64", "did you mean float64?"), ("", "known are float64, float32"), ("f8", "known are")):
            self.edit(os.path.join(run, "run.json"),
                      lambda text: json.dumps({**json.loads(text), "precision": word}))
            self.says(self.call("judge", run, "--golden", golden, status=2),
                      f"run.json: precision is '{word}'; ", says)

    def test_a_recorded_run_has_no_other_keys_than_its_schema(self):
        """In each object of run.json and of a line, a key that the schema lacks is refused with those that it has."""
        schema = json.loads(self.read(SCHEMA))["$defs"]
        head = schema["header"]["properties"]
        optimizer = head["optimizer"]["properties"]
        rule = {"type": "AdamW", "rule": "adamw", "lr": [0.01]}
        matrix = {"state": "momentum_buffer", "momentum": 0.9, "nesterov": True, "average": False, "iterations": 1,
                  "coefficients": [1, 1, 1], "blocks": [1], "parameters": ["x"]}
        golden, count = self.path("golden"), itertools.count()
        recorded_test.recorded().write(golden)
        more = {"batch": {"rows": 2, "parts": 1}, "parts": [{"axis": "ep", "stride": 1, "size": 2}],
                "matrices": [matrix],
                "optimizer": {**rule, "groups": [{**rule, "parameters": ["x"]}, {**rule, "parameters": ["y"]}]}}
        sum_of = {"partial": {"axes": ["tp"], "op": "sum"}}
        hashed = {"kind": "hash", "digest": "0" * 16}
        for name, number, where, known, change in (
                ("run.json", 0, [], head, {}), ("run.json", 0, ["batch"], head["batch"]["properties"], {}),
                ("run.json", 0, ["mesh", 0], head["mesh"]["items"]["properties"], {}),
                ("run.json", 0, ["parts", 0], head["parts"]["items"]["properties"], {}),
                ("run.json", 0, ["matrices", 0], head["matrices"]["items"]["properties"], {}),
                ("run.json", 0, ["optimizer"], optimizer, {}),
                ("run.json", 0, ["optimizer", "groups", 1], optimizer["groups"]["items"]["properties"], {}),
                ("rank1.jsonl", 1, [], schema["piece"]["properties"], {}),
                ("rank1.jsonl", 1, [], schema["hash"]["properties"], hashed),
                ("rank1.jsonl", 1, ["partial"], schema["piece"]["properties"]["partial"]["properties"], sum_of),
                ("rank1.jsonl", -1, [], schema["end"]["properties"], {})):
            def edit(text):
                lines = text.splitlines()
                found = whole = {**json.loads(lines[number]), **copy.deepcopy(more if name == "run.json" else change)}
                if known is schema["hash"]["properties"]:
                    del whole["key"]
                for key in where:
                    found = found[key]
                found["unheard_of"] = 1
                lines[number] = json.dumps(whole)
                return "\n".join(lines) + "\n"
            with self.subTest(file=name, where=where, change=change):
                run = self.path(f"run{next(count)}")
                recorded_test.recorded([("tp", 2)]).write(run)
                self.edit(os.path.join(run, name), edit)
                text = self.call("judge", run, "--golden", golden, status=2)
                said = re.search(r"unheard_of is not a key here; known are ([a-z_, ]+)", text)
                self.assertTrue(said, text)
                self.assertEqual(sorted(said[1].split(", ")), sorted(known))

    def test_a_config_of_a_scenario(self):
        """Errors with their places, and the keys that nothing reads, as `check` says them."""
        self.make_case()
        config = os.path.join(self.case, "config.json")
        scenario = self.write("folder.yaml", "name: t/folder\nmodel: {folder: case}\ndata: {lengths: [3]}\n")
        self.edit(config, lambda text: json.dumps({"torch_dtype": "float32", **json.loads(text)}, indent=1))
        note = f"note: {config}: nothing reads torch_dtype"
        for words in (["lint", scenario], ["describe", scenario], ["golden", scenario],
                      ["run", scenario, "--backend", "emulated"], ["check", self.case]):
            with self.subTest(words[0]):
                self.assertEqual(self.call(*words).splitlines().count(note), 1)
        self.edit(config, lambda text: text.replace('"hidden_size": ', '"hidden_size": -'))
        self.edit(config, lambda text: text.replace('"num_hidden_layers"', '"num_hiden_layers"'))
        lines = self.read(config).splitlines()
        size = next(re.search(r"-\d+", line)[0] for line in lines if "hidden_size" in line and "-" in line)
        places = {key: next(i + 1 for i, line in enumerate(lines) if line.startswith(f' "{key}"'))
                  for key in ("hidden_size", "num_hiden_layers")}
        for words in (["lint", scenario], ["run", scenario], ["check", self.case], ["golden", scenario]):
            with self.subTest(words[0]):
                text = self.call(*words, status=2)
                said = [f"{config}:{places['hidden_size']}:2: hidden_size={size} is not in 1..16777216; ",
                        f"{config}:{places['num_hiden_layers']}:2: 'num_hiden_layers' is unknown; did you mean "]
                for one in said:
                    self.assertEqual(text.count(one), 1, text)
                order = sorted(said, key=text.index)
                self.assertEqual(order == said, places["hidden_size"] < places["num_hiden_layers"])
                self.assertNotIn("missing", text)

    def test_a_failure_of_the_golden_is_printed_as_any_other(self):
        """A broken header, and a weight whose name would move the cursor."""
        self.make_case()
        path = os.path.join(self.case, "batch.safetensors")
        for content in (b'{"a": {"dtype" "F64"}}', b'{"\x1b[2J": 3}'):
            self.write(path, len(content).to_bytes(8, "little") + content)
            text = self.call("golden", self.case, status=2)
            self.assertTrue(text.startswith("shardproof: "), text)
            self.assertEqual(len(text.splitlines()), 1)
            for word in ("json.exception", "\x1b"):
                self.assertNotIn(word, text)

    def test_report_passes_its_options_to_the_page_maker(self):
        out = self.path("a")
        page = os.path.join(out, "report.html")
        scenario = self.write("many.yaml", ONE + "matrix: {seed: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]}\n")
        text = self.call("run", scenario, "--backend", "emulated", "--out", out)
        command = re.search(r"\(pictures: (.*)\)", text)[1]
        done = subprocess.run(command, shell=True, cwd=self.scratch, env=self.environment, capture_output=True,
                              text=True, timeout=cli_test.LIMIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)  # the command that the run names works
        of_some = os.path.getsize(page)
        self.call("report", out, "--all")
        self.assertGreater(os.path.getsize(page), of_some + 1000)

    def test_report_makes_one_page_of_shards(self):
        scenario = self.write("three.yaml", ONE + "matrix: {seed: [1, 2, 3]}\n")
        runs = []
        for shard in ("1/2", "2/2"):
            runs.append(self.path(f"shard{shard[0]}"))
            self.call("run", scenario, "--backend", "emulated", "--shard", shard, "--out", runs[-1])
        page = self.path("all.html")
        self.assertEqual(self.call("report", *runs, "--out", page), page + "\n")
        text = self.read(page)
        for seed in (1, 2, 3):
            self.assertIn(f"seed={seed}", text)
        self.assertIn("Every case ended as expected", text)
        text = self.call("report", runs[0], self.path("none"), status=2)
        self.assertIn("holds no results.json", text)


if __name__ == "__main__":
    cli_test.main()
