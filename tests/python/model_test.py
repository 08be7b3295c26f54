"""`shardproof model`: what it says of clean and wrong models of functions, its statuses, and the rules of tiny models.

Families of transformers are in tests/frameworks/model_test.py.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as tree
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/support"), str(HERE)]

import in_fork  # noqa: E402
import ranks  # noqa: E402,F401 (imports what ranks need)
import torch  # noqa: E402
from said import FolderTest  # noqa: E402
import shardproof.command  # noqa: E402
from shardproof.error import Error  # noqa: E402
from shardproof.model import command, families, recipe, results, tiny, weights  # noqa: E402

PROGRAM = os.environ.get("SHARDPROOF_PROGRAM")


def environment_of(path, program):
    return dict(os.environ, PYTHONPATH=f"{ROOT / 'python'}:{HERE}{path}", SHARDPROOF_PROGRAM=program)


def run(*arguments, path="", program=PROGRAM):
    """A process of its own, because it forks its ranks."""
    return in_fork.run(shardproof.command.main, ["model", *arguments], HERE, environment_of(path, program))


def run_anew(*arguments, path="", program=PROGRAM):
    """As a user runs it."""
    return subprocess.run([sys.executable, "-B", "-m", "shardproof", "model", *arguments], cwd=HERE, text=True,
                          env=environment_of(path, program), capture_output=True, check=False)


@unittest.skipUnless(PROGRAM, "SHARDPROOF_PROGRAM is not set")
class OfFunctions(FolderTest):
    def ran(self, *arguments, status=0, by=run, **options):
        """A finished run that must end with this status."""
        done = by(*arguments, **options)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def test_a_right_model_matches_on_each_layout(self):
        done = self.ran("model_cases:whole", "--layouts", "dp2, fsdp2", by=run_anew)
        self.assertRegex(done.stdout, r"(?m)^model_cases:whole +dp2 +match +.* s, \d+ MiB$")
        self.assertRegex(done.stdout, r"(?m)^model_cases:whole +fsdp2 +match ")
        self.assertIn("2 match", done.stdout)

    def test_a_parameter_without_a_gradient_keeps_no_other_from_being_reduced(self):
        done = run("model_cases:partly_used", "--layouts", "dp2, fsdp2")
        self.assertEqual((done.returncode, done.stdout.count(" match ")), (0, 2), done.stdout + done.stderr)

    def test_a_function_that_takes_the_layout_cuts_the_model_itself(self):
        self.ran("model_cases:cut_for", "--layouts", "tp2")

    def test_a_statistic_over_a_shard_is_found_and_kept(self):
        arguments = ("model_cases:cut_with_statistic", "--layouts", "tp2", "--out", str(self.folder), "--json",
                     str(self.folder / "all.json"), "--junit", str(self.folder / "all.xml"))
        done = self.ran(*arguments, status=1)
        self.assertRegex(done.stdout, r"tp2 +mismatch +inference \[8, 12\] of step 1")
        found, = json.loads((self.folder / "all.json").read_text())["results"]
        self.assertEqual((found["verdict"], found["layout"]), ("mismatch", "tp2"))
        self.assertIn("MISMATCH", found["text"])
        self.assertEqual(tree.parse(self.folder / "all.xml").getroot().get("failures"), "1")
        self.assertIn("mismatch", (self.folder / "index.html").read_text())
        self.assertTrue(list(self.folder.glob("runs/*/tp2/run/run.json")))

    def test_a_function_runs_again_where_results_are_kept(self):
        arguments = ("changing:build", "--layouts", "tp2", "--out", str(self.folder / "out"))
        module = self.folder / "changing.py"
        for function, status in (("cut_for", 0), ("cut_with_statistic", 1)):
            module.write_text(f"from model_cases import {function} as build\n")
            done = self.ran(*arguments, path=f":{self.folder}", status=status)
            self.assertEqual(done.stdout.count("changing:build"), 1, done.stdout)
        self.assertEqual([recipe.Recipe(name).is_of_packages for name in ("llama", "changing:build", str(self.folder))],
                         [True, False, False])

    def test_a_pass_without_gradients_that_is_wrong_alone(self):
        done = self.ran("model_cases:cut_with_statistic_in_inference", "--layouts", "tp2", status=1)
        self.assertRegex(done.stdout, r"tp2 +mismatch +inference \[8, 12\] of step 1")

    def test_what_ranks_save_is_loaded_and_compared(self):
        done = self.ran("model_cases:saved", "model_cases:saved_in_parts", "--layouts", "tp2", status=1)
        self.assertRegex(done.stdout, r"model_cases:saved +tp2 +match ")
        self.assertRegex(done.stdout, r"model_cases:saved_in_parts +tp2 +mismatch +saved and loaded again, 1 of 11 weights differ, "
                                      r"first layers\.1\.0\.weight: .*the slices of dim 0 are in the order 12-23, 0-11")

    def test_a_rank_that_cannot_save_is_named(self):
        done = self.ran("model_cases:saved_on_rank_0", "--layouts", "tp2", status=1)
        self.assertRegex(done.stdout, r"model_cases:saved_on_rank_0 +tp2 +raises +save \(what was compared is right\): .*no room.* \(rank 1\)")

    def test_a_killed_rank_is_said_where_pytest_is_not_installed(self):
        (self.folder / "pytest.py").write_text("raise ModuleNotFoundError('pytest is not installed')\n")
        done = self.ran("model_cases:killed", "--layouts", "dp2", path=f":{self.folder}", status=1, by=run_anew)
        self.assertRegex(done.stdout, r"dp2 +raises +.*was killed by signal 9")

    def test_a_part_of_the_results_is_not_called_all(self):
        program = self.folder / "shardproof"
        program.symlink_to(PROGRAM)
        done = self.ran("model_cases:loses_the_program", "--layouts", "dp2", "--json", str(self.folder / "all.json"),
                        program=str(program), status=2)
        self.assertRegex(done.stderr, "shardproof model: .*No such file or directory.*Not everything was run")
        self.assertFalse((self.folder / "all.json").exists())

    def test_a_name_or_a_layout_that_is_given_twice_runs_once(self):
        done = run("model_cases:whole", "model_cases:whole", "--layouts", "dp2, dp2", "--jobs", "2")
        self.assertEqual((done.returncode, done.stdout.count("model_cases:whole")), (0, 1), done.stdout + done.stderr)

    def test_results_that_cannot_be_written(self):
        for option in ("--json", "--junit"):
            done = run("model_cases:whole", "--layouts", "dp2", option, "no/such/file")
            self.assertEqual((done.returncode, done.stdout, done.stderr), (
                2, "", "shardproof model: no/such/file cannot be written, because there is no folder no/such; make it, or name "
                       "another file\n"))

    def test_what_cannot_be_run(self):
        for arguments, text in (
                (("model_cases:absent",), "Write module:function"),
                (("model_cases:whole", "--layouts", "cp2"), 'The layout "cp2" cannot be run by name'),
                (("model_cases:whole", "--layouts", "tp1"), "at least two ranks"),
                ((), "give one or more NAMEs, or --all"),
                (("a:b", "--all"), "give one or more NAMEs, or --all")):
            with contextlib.redirect_stderr(io.StringIO()) as errors:
                try:
                    status = command.main(list(arguments))
                except SystemExit as error:
                    status = error.code
            self.assertEqual(status, 2, arguments)
            self.assertIn(text, " ".join(errors.getvalue().split()))
        done = self.ran("model_cases:raises", "model_cases:whole", "--layouts", "tp2", status=1)
        self.assertRegex(done.stdout, "model_cases:raises +1 +not built build: ValueError: no such size")
        self.assertIn('of which nothing says how "tp2" cuts it', done.stdout)


class Folders(FolderTest):
    def model_run(self, name, done=()):
        found = SimpleNamespace(_recipes=[SimpleNamespace(name=name)], _folder=self.folder)
        return command.ModelRun(found, 0, None, [], set(done))

    def test_each_name_has_its_own(self):
        names = ["a/b", "a:b", "a_b", "a%2Fb", "..", ".", "a.b"]
        folders = {self.model_run(name)._folder for name in names}
        self.assertEqual((len(folders), {one.resolve().parent for one in folders}), (7, {self.folder.resolve() / "runs"}))

    def test_what_is_wrong_stays_where_another_layout_runs(self):
        one = self.model_run("a", [("a", "dp2 tp2"), ("a", "fsdp2"), ("b", "tp2")])
        for name in ("1", "1-activations", "dp2-tp2", "dp2-tp2-activations", "tp2", "tp4-activations"):
            (one._folder / name).mkdir(parents=True)
        self.assertTrue(one._remove_earlier())
        left = {path.name for path in one._folder.iterdir()}
        self.assertEqual(left, {"1", "1-activations", "dp2-tp2", "dp2-tp2-activations"})
        self.assertFalse(self.model_run("a")._remove_earlier())
        self.assertEqual(list(one._folder.iterdir()), [])


class ConfigFiles(FolderTest):
    def test_one_that_is_cut_off_is_a_sentence(self):
        path = self.folder / "config.json"
        for content, words in ((b"", "cannot be read: Expecting value"), (b'{"model_type": "lla', "cannot be read: Unterminated string"),
                               (b"\xff", "cannot be read: 'utf-8' codec"), (b"[]", "holds a list and no dictionary")):
            path.write_bytes(content)
            with self.subTest(words), self.assertRaisesRegex(Error, f"{path} {words}"):
                families.find(str(self.folder))


class Weights(unittest.TestCase):
    def test_an_order_is_named(self):
        golden = torch.arange(24.0).reshape(6, 4)
        self.assertIsNone(weights.difference({"a": golden}, {"a": golden.clone()}))
        self.assertEqual(weights.difference({"a": golden}, {"a": golden[[0, 3, 4, 1, 2, 5]]})["pattern"],
                         "16 of its 24 elements differ; the slices of dim 0 are in the order 0, 3-4, 1-2, 5")
        self.assertIn("in the order 2-3, 0-1", weights.pattern(golden, golden[:, [2, 3, 0, 1]]))
        self.assertIn("the same elements in another order", weights.pattern(golden, golden.flip(0, 1)[:, [1, 0, 2, 3]].roll(1)))
        self.assertEqual(weights.pattern(golden, golden + 1), "24 of its 24 elements differ")
        self.assertEqual(weights.difference({"a": golden, "b": golden}, {"b": golden}),
                         {"tensor": "a", "count": 1, "of": 2, "pattern": "it is missing"})


class Sizes(unittest.TestCase):
    def test_equal_defaults_stay_equal_and_others_differ(self):
        found = tiny.sizes({"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
                            "intermediate_size": 11008, "moe_intermediate_size": 1408, "v_head_dim": 128,
                            "qk_rope_head_dim": 64, "qk_head_dim": 192, "vocab_size": 32000, "bos_token_id": 1})
        self.assertEqual(found["v_head_dim"], found["head_dim"])
        self.assertEqual(found["qk_head_dim"], found["head_dim"] + found["qk_rope_head_dim"])
        self.assertEqual(found["hidden_size"], found["num_attention_heads"] * found["head_dim"])
        self.assertLess(found["num_key_value_heads"], found["num_attention_heads"])
        self.assertLess(found["moe_intermediate_size"], found["intermediate_size"])
        self.assertLess(found["bos_token_id"], found["vocab_size"])

    def test_each_type_of_layer_comes_once(self):
        class Config:
            def to_dict(self):
                return {"num_hidden_layers": 6, "layer_types": ["a", "a", "b", "a", "a", "b"],
                        "mlp_layer_types": ["dense"] + ["sparse"] * 5, "rates": [1, 2, 3, 4, 5, 6]}
        found = tiny.layers(Config())
        self.assertEqual(found["layer_types"], ["a", "a", "b"])
        self.assertEqual(found["mlp_layer_types"], ["dense", "sparse", "sparse"])
        self.assertEqual((found["num_hidden_layers"], found["rates"]), (3, [1, 2, 3]))


class Lines(unittest.TestCase):
    def test_wrong_weights_after_a_load_are_a_mismatch(self):
        one = results.Result("a", "tp2")
        one.take({"saved": {"tensor": "w", "count": 2, "of": 9, "pattern": "rows"}, "parameters": 5})
        one.judged(0, "MATCH     run")
        self.assertEqual(one.verdict, "mismatch")
        self.assertIn("saved and loaded again, 2 of 9 weights differ, first w: rows", one.line())

    def test_a_wrong_load_is_not_called_another_draw(self):
        one = results.Result("a", "tp2")
        one.judged(1, "MISMATCH  run\n  tensor    param.w   [4]   at the start\n  likely    the runs start from different weights; "
                      "shardproof.load(model, golden) copies the golden's\n")
        self.assertEqual(one.detail, "param.w [4] at the start; the ranks load other weights than one rank from the same files")
        judgement = (ROOT / "sim" / "uses" / "recorded" / "recorded_judgement.cpp").read_text()
        self.assertIn(results.OTHER_START, judgement)

    def test_colors_in_a_message_are_left_out_of_xml(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "all.xml")
            results.write_junit(path, [results.Result("a", "dp2", verdict, "\x1b[31mred\x00")
                                       for verdict in ("raises", "not built")])
            self.assertEqual([one[0].get("message") for one in tree.parse(path).getroot()], ["raises: ?[31mred?", "?[31mred?"])

    def test_what_the_judge_leaves_out_is_said(self):
        one = results.Result("a", "tp2")
        one.judged(0, "MATCH, 3 of 38 not judged   run")
        self.assertEqual((one.verdict, one.detail), ("match", "3 of 38 tensors not judged"))
        with contextlib.redirect_stdout(io.StringIO()):
            one.judged(4, "nothing could be judged")
        self.assertEqual(one.verdict, "raises")


if __name__ == "__main__":
    unittest.main()
