#!/usr/bin/env python3
"""Tests the output, the files and the exit status of every command of the real program.

Usage: cli_test.py PROGRAM [unittest arguments]
"""
import glob
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", folder) for folder in ("hostile", "support")]
import case_maker  # noqa: E402
import loaded  # noqa: E402
import processes  # noqa: E402
from said import TextTest  # noqa: E402

PROGRAM = "build/dev/shardproof-bin"
LIMIT_S = 360  # a hang, not a wall-time test

TWO_FAULTS = """
name: t/two
model: {vocab_size: 24, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1}
data: {lengths: [5, 3]}
parallel: {tensor_parallel_size: 2}
matrix:
  rows:
    - {name: good}
    - {name: throws, faults: [{kind: throw, rank: 1, at_call: 2}]}
"""
WRONG = TWO_FAULTS.split("matrix")[0] + "faults: [{kind: corrupt, op: all_reduce, side: input}]\n"
SMALL = """
name: t/small
model: {vocab_size: 24, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1}
data: {lengths: [5, 3, 4, 2]}
matrix: {parallel.tensor_parallel_size: [1, 2, 4], parallel.data_parallel_size: [1, 2]}
"""
ONE = SMALL.split("matrix")[0]  # its first case
LIFE = """
name: t/life
workload: policy
model: {vocab_size: 24, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1}
data: {lengths: [5, 3, 6, 2]}
run:
  lives: 2
  loss: {kind: clipped_pg}
  refit: {tensor_parallel_size: 1}
  stages: [{do: score}, {do: reference}, {do: train, train_global_batch_size: 2}, {do: save},
           {do: train, eval_mode: true}, {do: load, data_parallel_size: 2, data_parallel: fsdp},
           {do: train}, {do: refit}]
matrix:
  mesh:
    - {name: dp2, parallel.data_parallel_size: 2, run.train_micro_batch_size: 1}
    - {name: tp2, parallel.tensor_parallel_size: 2, parallel.sequence_parallel: true}
"""


def read_safetensors(path):
    """{name: [values]}"""
    raw = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        code = {"F64": "d", "I64": "q", "F32": "f"}[entry["dtype"]]
        data = raw[8 + size + begin:8 + size + end]
        tensors[name] = (entry["dtype"], entry["shape"], data,
                         struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))
    return tensors


def write_changed(source, target, name, index, value):
    """`source` with one element of one float64 tensor replaced."""
    tensors = {key: (dtype, shape, raw) for key, (dtype, shape, raw, _) in read_safetensors(source).items()}
    dtype, shape, raw = tensors[name]
    tensors[name] = (dtype, shape, raw[:8 * index] + struct.pack("<d", value) + raw[8 * index + 8:])
    pathlib.Path(target).write_bytes(case_maker.safetensors(tensors))


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path)


class StuckProgram(subprocess.Popen):
    """The program with a terminal that takes nothing as its standard output, until `read_terminal`."""

    def __init__(self, words, folder, environment):
        self.terminal, stuck = os.openpty()
        os.set_blocking(stuck, False)
        full = 0
        while full < 10:  # the system makes room for a while, as it moves what was written on to the reader's side
            try:
                os.write(stuck, b"full")
                full = 0
            except BlockingIOError:
                full += 1
                time.sleep(0.05)
        os.set_blocking(stuck, True)
        super().__init__([PROGRAM, *words], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=stuck,
                         stderr=subprocess.PIPE, text=True)
        os.close(stuck)

    def __exit__(self, *error):
        self.kill()
        super().__exit__(*error)
        os.close(self.terminal)

    def wait_until_it_catches(self, how):
        for _ in range(50 * LIMIT_S):
            status = pathlib.Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
            caught = re.search(r"^SigCgt:\s*(\w+)", status, re.M).group(1)
            if int(caught, 16) >> (how - 1) & 1:
                return
            time.sleep(0.02)
        raise AssertionError(f"{self.args} does not catch signal {how}")

    def read_terminal(self):
        """From now on until the program ends."""
        try:
            while os.read(self.terminal, 4096):
                pass
        except OSError:
            return


class CommandTest(TextTest):
    def setUp(self):
        self.scratch = tempfile.mkdtemp(prefix="cli-")
        self.folder = pathlib.Path(self.scratch)
        self.addCleanup(shutil.rmtree, self.scratch, ignore_errors=True)
        self.case = self.path("case")
        os.makedirs(self.case)
        self.environment = dict(os.environ, HOME=self.scratch,
                                XDG_CACHE_HOME=self.path("cache"))

    def path(self, *parts):
        return os.path.join(self.scratch, *parts)

    def write(self, name, content):
        """Writes text or bytes to a file of the scratch folder; its path."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def read(self, *parts):
        return pathlib.Path(self.path(*parts)).read_text(encoding="utf-8")

    def call(self, *words, status=0):
        done = loaded.run([PROGRAM, *words], cwd=self.scratch, env=self.environment, timeout=LIMIT_S,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text = done.stdout.decode(errors="replace")
        self.assertEqual(status, done.returncode, f"{shlex.join(words)} said:\n{text}")
        return text

    def run_emulated(self, scenario, *words, status=0):
        """What the run of a scenario's text says."""
        return self.call("run", self.write("run.yaml", scenario), "--backend", "emulated", *words, status=status)

    def run_program(self, *words, **options):
        """A finished run; `options` of subprocess.run go before these."""
        own = {"cwd": self.scratch, "env": self.environment, "timeout": LIMIT_S, "text": True,
               "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return loaded.run([PROGRAM, *map(str, words)], check=False, **own | options)

    def run_to_end(self, *words, status=0, **options):
        """A finished run, which must end with `status`; None: with any."""
        done = self.run_program(*words, **options)
        if status is not None:
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def make_case(self, *edits):
        case_maker.make_case(self.case, edits)

    def check_dumps(self, golden, ours):
        """Two dumps hold the same tensors, equal but for the order of sums; returns the second."""
        golden, ours = read_safetensors(golden), read_safetensors(ours)
        self.assertEqual(sorted(golden), sorted(ours))
        for name, (dtype, shape, _, values) in golden.items():
            self.assertEqual((dtype, shape), ours[name][:2], name)
            scale = max((abs(value) for value in values), default=0)
            worst = max((abs(a - b) for a, b in zip(values, ours[name][3])), default=0)
            self.assertLessEqual(worst, 1e-10 * scale + 1e-13, name)
        return ours

    def results(self, folder, name="results.json"):
        return json.loads(self.read(folder, name))


class Check(CommandTest):
    def test_a_right_case_matches_and_its_dump_is_the_golden(self):
        self.make_case({"file": "case.json", "set": {"optimizer": {"kind": "AdamW", "steps": 3}}})
        self.call("golden", self.case, "--dump", self.path("golden"))
        golden = read_safetensors(self.path("golden"))
        for name in ("logprobs", "loss", "grad_norm", "step1.loss", "step3.grad_norm",
                     "grad.model.embed_tokens.weight", "step3.param.lm_head.weight"):
            self.assertIn(name, golden)
        for mesh in (["dp=3,tp=2", "--sequence-parallel"], ["dp=1,cp=3", "--ulysses", "2"],
                     ["cp=2,tp=2", "--ulysses", "2", "--sequence-parallel"],
                     ["dp=2,tp=2", "--dynamic-batching", "24", "--data-parallel", "fsdp"], ["dp=2", "--microbatch", "1"],
                     ["dp=2", "--data-parallel", "fsdp", "--fsdp-no-reshard", "--activation-checkpointing"],
                     ["dp=4", "--data-parallel", "hybrid", "--replicate-size", "2"],
                     ["dp=2", "--activation-checkpointing=layer"],
                     ["cp=2,tp=2", "--packed", "--context-layout", "contiguous",
                      "--context-rotation", "all_gather"]):
            self.says(self.call("check", self.case, "--mesh", *mesh, "--dump", self.path("ours")),
                      "MATCH", "own golden only")
            with self.subTest(mesh):
                self.check_dumps(self.path("golden"), self.path("ours"))

    def test_expected_answers_are_a_second_witness(self):
        self.make_case()
        expected = os.path.join(self.case, "expected.safetensors")
        self.call("golden", self.case, "--dump", expected)
        self.assertIn("agrees with the golden", self.call("check", self.case, "--mesh", "tp=2"))
        name = "grad.model.layers.0.mlp.down_proj.weight"
        value = read_safetensors(expected)[name][3][7]
        write_changed(expected, expected + ".new", name, 7, value + 1e-6)
        os.replace(expected + ".new", expected)
        self.says(self.call("check", self.case, "--mesh", "tp=2", status=1), name, "does NOT agree")
        # Sums overflow at the first loss scales of float16, so that the golden has no gradient of these steps.
        untied = pathlib.Path(__file__).resolve().parents[2] / "golden/hf/llama_untied"
        text = self.call("check", str(untied), "--mesh", "tp=2", "--precision", "float16", status=2)
        self.says(text, "the golden has no 'grad.", "float16 overflows, and step 1 was skipped")

    def test_what_is_saved_from_one_mesh_runs_on_another_to_the_bit(self):
        self.make_case()
        for folder, mesh in (("four", "tp=4,dp=2"), ("one", "dp=1")):
            saved_to = self.path("saved_" + folder)
            self.call("check", self.case, "--mesh", "dp=2,tp=2", "--data-parallel", "fsdp", "--save", saved_to,
                      "--save-file-bytes", "1000", "--dump", self.path("trained"))
            for name in ("batch.safetensors", "case.json"):
                shutil.copy(os.path.join(self.case, name), saved_to)
            index = self.results(saved_to, "model.safetensors.index.json")["weight_map"]
            trained = read_safetensors(self.path("trained"))
            self.assertLess(3, len(set(index.values())))
            for name, file in index.items():
                saved = read_safetensors(os.path.join(saved_to, file))[name]
                self.assertEqual(saved[2], trained[f"step1.param.{name}"][2], name)
            for backend in ("emulated", "gloo"):
                self.call("check", saved_to, "--mesh", mesh, "--backend", backend,
                          "--save", self.path(folder))
            self.assertTrue(os.path.exists(self.path(folder, "model.safetensors")))

    def test_a_folder_that_cannot_be_saved_to_is_said_before_the_run(self):
        self.make_case()
        text = self.call("check", self.case, "--save", self.write("file", ""), status=2)
        self.assertIn("is not a folder", text)
        text = self.call("check", self.case, "--save", "/proc/nowhere/model", status=2)
        self.assertIn("cannot be made", text)

    def test_no_output_replaces_an_input_a_device_or_other_files(self):
        self.make_case()
        mine = self.write("notes.txt", "mine")
        os.mkfifo(self.path("pipe"))
        os.mkdir(self.path("other"))
        shutil.copy(mine, self.path("other", "notes.txt"))
        before = {file.name: file.read_bytes() for file in pathlib.Path(self.case).iterdir()}
        for command in ("golden", "check"):
            for path, said in ((os.path.join(self.case, "batch.safetensors"), "the same command reads this file"),
                               (os.path.join(self.case, "model.safetensors"), "the same command reads this file"),
                               (self.path("pipe"), "a device, a socket or a pipe"), ("/dev/null", "a device"),
                               (mine, "this file would be replaced, and is not a file that --dump wrote"), (self.scratch, "a folder")):
                self.assertIn(said, self.call(command, self.case, "--dump", path, status=2))
        self.call("golden", self.case, "--dump", os.path.join(self.case, "expected.safetensors"))
        self.assertIn("the same command reads this file",
                      self.call("check", self.case, "--dump", os.path.join(self.case, "expected.safetensors"),
                                status=2))
        os.unlink(os.path.join(self.case, "expected.safetensors"))
        os.mkdir(self.path("linked"))
        os.symlink(os.path.join(self.case, "model.safetensors"), self.path("linked", "model.safetensors"))
        for path, said in ((self.case, "the same command reads files of this folder"),
                           (self.path("linked"), "the same command reads files of this folder"),
                           (self.path("other"), "holds notes.txt, which is not of a model")):
            self.assertIn(said, self.call("check", self.case, "--save", path, status=2))
        self.assertIn("not of a run", self.call("check", self.case, "--out", self.path("other"), status=2))
        self.assertEqual(before, {file.name: file.read_bytes() for file in pathlib.Path(self.case).iterdir()})
        self.assertEqual("mine", pathlib.Path(mine).read_text())
        self.call("golden", self.case, "--dump", mine, "--force")
        self.assertIn("loss", read_safetensors(mine))

    def test_refused_meshes_leave_no_dump(self):
        self.make_case()
        self.call("check", self.case, "--mesh", "tp=3", "--dump", self.path("out"), status=4)
        self.call("check", self.case, "--mesh", "ulysses=3", "--dump", self.path("out"), status=4)
        self.call("check", self.case, "--data-parallel", "hybrid", "--replicate-size", "2", "--mesh", "dp=3", status=4)
        self.assertFalse(os.path.exists(self.path("out")))


class Judge(CommandTest):
    def test_a_result_file_is_judged_whole_or_in_part(self):
        self.make_case()
        whole = self.path("whole")
        self.call("golden", self.case, "--dump", whole)
        self.call("judge", self.case, whole)
        self.assertIn("is a folder, not a file", self.call("judge", self.case, self.case, status=2))
        self.assertIn("does not exist", self.call("judge", self.case, whole + ".not", status=2))
        tensors = {name: parts[:3] for name, parts in read_safetensors(whole).items()}
        self.write("part", case_maker.safetensors({"logprobs": tensors["logprobs"]}))
        self.assertRegex(self.call("judge", self.case, self.path("part"), status=2),
                         r"1 of 27 tensors were judged: .*part does not hold loss, .* and 20 more; .*--allow-partial")
        text = self.call("judge", self.case, self.path("part"), "--allow-partial")
        self.assertRegex(text.splitlines()[-1], "^1 of 27 tensors were judged: ")
        shutil.copy(self.path("part"), os.path.join(self.case, "expected.safetensors"))
        self.assertIn("1 of 27 tensors were judged", self.call("check", self.case))

    def test_parameters_of_a_file_that_roundings_may_have_moved_are_unresolved(self):
        """No rank has stepped them, and below float64 an optimizer's roundings are as large as its updates."""
        case = os.path.join(HERE, "..", "..", "golden", "hf", "llama_untied")
        weights = read_safetensors(os.path.join(case, "model.safetensors"))
        for precision, status in (("float32", 1), ("bfloat16", 0)):
            with self.subTest(precision=precision):
                file = self.path(precision)
                self.call("golden", case, "--precision", precision, "--dump", file)
                tensors = {name: parts[:3] for name, parts in read_safetensors(file).items()}
                stepped = [name for name in tensors if ".param." in name]
                self.assertTrue(stepped)
                for name in stepped:  # as though no step had been made
                    _, shape, _, values = weights[name.split(".param.")[1]]
                    self.assertEqual(shape, tensors[name][1])
                    tensors[name] = ("F64", shape, struct.pack(f"<{len(values)}d", *values))
                self.write(file, case_maker.safetensors(tensors))
                text = self.call("judge", case, file, "--precision", precision, status=status)
                if status == 0:
                    self.assertIn(f"{len(stepped)} of 49 tensors not resolvable in bfloat16", text)


class Run(CommandTest):
    def test_what_was_compared_with_nothing_is_no_match(self):
        text = self.run_emulated("name: t/free\njudged: false\nparallel: {tensor_parallel_size: 2}\n"
                                 "faults: [{kind: drop, rank: 1, op: all_reduce, axis: tp, label: o_proj forward}]\n",
                                 "--out", self.path("free"))
        self.says(text, "1 case: 1 not judged (judged: false)", absent=["match"])
        self.assertIn('skipped="1"', self.read("free/junit.xml"))
        empty = "name: t/empty\nworkload: policy\nrun: {stages: [{do: offload}]}\n"
        self.assertIn("nothing was compared", self.run_emulated(empty, status=2))

    def test_a_call_after_the_first_wrong_tensor_is_not_its_cause(self):
        twice = self.write("twice.yaml", """
name: t/twice
workload: train
model: {vocab_size: 40, hidden_size: 24, intermediate_size: 40, num_attention_heads: 4, num_hidden_layers: 1}
data: {lengths: [6, 4, 5, 7]}
parallel: {tensor_parallel_size: 2, data_parallel_size: 2}
faults:
  - {kind: duplicate, rank: 1, axis: tp, op: all_reduce, label: o_proj forward}
  - {kind: corrupt, rank: 2, axis: dp, label: grad., side: output, bit: 0}
""")
        text = self.call("run", twice, "--out", self.path("twice"), status=1)
        self.assertRegex(text, r"tensor    model.layers.0.self_attn.o_proj.output .*\n(.*\n)*?  likely .*later, "
                               r"either rank 2 or rank 0 holds another result of all_reduce")

    def test_a_warning_changes_no_verdict_and_is_on_the_terminal_in_the_results_and_in_the_log(self):
        stray = self.write("stray.yaml", """
name: t/stray
workload: dropout_regions
parallel: {tensor_parallel_size: 2}
matrix:
  draw:
    - {name: stray, options: {tp_ranks: 2, stray_draw: true}}
    - {name: none, options: {tp_ranks: 2}}
""")
        said = "the process's default generator moved inside a fork of random stream 'model-parallel-rng'"
        for backend in ("emulated", "gloo"):
            with self.subTest(backend):
                out = self.path(backend)
                text = self.call("run", stray, "--backend", backend, "--out", out)
                self.assertRegex(text, r"warning  ranks? [01, ]+: " + said)
                with_it, without = sorted(self.results(out)["cases"], key=lambda case: "none" in case["name"])
                warned = [any(said in warning for warning in rank["warnings"]) for rank in with_it["ranks"]]
                if backend == "gloo":  # one process per rank; ranks that are threads share the generator
                    self.assertEqual([True, True], warned)
                self.assertIn(True, warned)
                self.assertEqual("match", with_it["verdict"])
                for rank in without["ranks"]:
                    self.assertEqual([], rank["warnings"])
                rank = with_it["ranks"][warned.index(True)]
                self.assertIn("warning  " + said, self.read(out, rank["log"]))

    def test_an_option_without_effect_is_a_warning(self):
        text = self.run_emulated(ONE + """
parallel: {data_parallel_size: 2, sequence_parallel: true, cpu_offload: true, replicate_size: 2,
           fsdp: {prefetch: false}}
matrix: {workload: [train, logprobs], parallel.data_parallel: [replicate, fsdp]}
""", "--out", self.path("run"))
        for count, given, because in (
                (4, "warning  rank 0: parallel.sequence_parallel is true", "parallel.tensor_parallel_size is 1"),
                (2, "parallel.cpu_offload is true", "parallel.data_parallel is replicate"),
                (2, "parallel.fsdp.prefetch is false", "parallel.data_parallel is replicate"),
                (2, "parallel.replicate_size is 2", "parallel.data_parallel is replicate"),
                (2, "parallel.replicate_size is 2", "parallel.data_parallel is fsdp")):
            self.assertEqual(count, text.count(f"{given}, but {because}: it has no effect"))
        for case in self.results(self.path("run"))["cases"]:
            self.assertEqual("match", case["verdict"])
        self.make_case()
        for kind in ("replicate", "fsdp", "hybrid"):
            with self.subTest(check=kind):
                text = self.call("check", self.case, "--mesh", "dp=2", "--data-parallel", kind, "--replicate-size", "2")
                said = f"warning  rank 0: parallel.replicate_size is 2, but parallel.data_parallel is {kind}: it has no effect"
                self.assertEqual(text.count("warning"), kind != "hybrid", text)
                self.assertEqual(text.count(said), kind != "hybrid", text)
        text = self.call("check", self.case, "--mesh", "dp=2", "--seed", "7")
        self.assertIn("warning  rank 0: seed is 7, but weights and batch are the folder's: it has no effect on them", text)
        self.assertEqual(text.count("warning"), 1, text)

    def test_windows_of_no_layer_are_a_warning(self):
        text = self.run_emulated(ONE.replace("model: {", "model: {family: qwen3, ") + """
matrix:
  case:
    - {name: all, model.use_sliding_window: true, model.sliding_window: 3}
    - {name: unused, model.sliding_window: 3, model.max_window_layers: 0}
    - {name: used, model.use_sliding_window: true, model.sliding_window: 3, model.max_window_layers: 0}
""", "--out", self.path("run"))
        self.assertEqual(1, text.count("model.use_sliding_window is true, but the first 28 layers have no window, and there are"))
        for key, value in (("sliding_window", 3), ("max_window_layers", 0)):
            said = f"model.{key} is {value}, but model.use_sliding_window is not given: it has no effect"
            self.assertEqual(1, text.count(said), text)
        self.assertEqual(3, text.count("warning"), text)

    def warnings(self, scenario):
        """{workload: the warnings of rank 0} of a run."""
        self.run_emulated(scenario, "--out", self.path("run"))
        return {case["workload"]: set(case["ranks"][0]["warnings"]) for case in self.results("run")["cases"]}

    def test_options_of_another_workload_loss_schedule_or_family_are_warnings(self):
        warnings = self.warnings("""
name: idle
workload: train
model: {vocab_size: 20, hidden_size: 16, intermediate_size: 16, num_attention_heads: 2, num_hidden_layers: 2}
data: {batch_size: 4, sequence_length: 6, huge_advantage: {sample: 1}}
parallel: {pipeline_parallel_size: 2, pp: {group: 4}, experts: {rows_multiple: 4}}
run: {train_micro_batch_size: 1, generation: {colocated: {enabled: true}}}
matrix:
  case:
    - {name: train}
    - {name: refit, workload: policy, run.refit: {tensor_parallel_size: 1}, parallel.pp.schedule: interleaved,
       parallel.pp.chunks: 2, model.num_hidden_layers: 4, run.loss.kind: clipped_pg,
       run.stages: [{do: train}, {do: refit}]}
""")
        of_experts = "parallel.experts.rows_multiple is 4, but model.family is llama: it has no effect"
        self.assertEqual({"policy": {of_experts},
                          "train": {of_experts, "data.huge_advantage.sample is 1, but run.loss.kind is nll: it has no effect",
                                    "parallel.pp.group is 4, but parallel.pp.schedule is 1f1b: it has no effect",
                                    "run.generation.colocated.enabled is true, but no stage of run.stages does refit: it has no "
                                    "effect"}}, warnings)

    def test_given_keys_without_effect_are_warnings(self):
        """Keys of several readers, of which the case keeps none, and what faults of other kinds read."""
        warnings = self.warnings(ONE + """
faults: [{kind: drop, rank: 1, op: all_reduce, bit: 3, seconds: 2}]
parallel: {data_parallel_size: 2}
run: {logprob_batch_size: 1, sequence_packing: {train_mb_tokens: 64, logprob_mb_tokens: 64}, dynamic_batching: {enabled: true}}
matrix:
  case:
    - {name: train, expect: {verdict: mismatch}}
    - {name: scores, workload: logprobs, faults: [], run.train_micro_batch_size: 1, run.dynamic_batching.enabled: false}
""")
        packing = "run.sequence_packing.enabled is false: it has no effect"
        self.assertEqual({"train": {"run.logprob_batch_size is 1, but workload is train: it has no effect",
                                    f"run.sequence_packing.train_mb_tokens is 64, but {packing}",
                                    "run.sequence_packing.logprob_mb_tokens is 64, but workload is train: it has no effect",
                                    "faults[0].bit is 3, but its kind is drop: it has no effect",
                                    "faults[0].seconds is 2.0, but its kind is drop: it has no effect"},
                          "logprobs": {"run.train_micro_batch_size is 1, but workload is logprobs: it has no effect",
                                       "run.sequence_packing.train_mb_tokens is 64, but workload is logprobs: it has no effect",
                                       f"run.sequence_packing.logprob_mb_tokens is 64, but {packing}"}}, warnings)

    def test_options_that_a_registered_workload_does_not_take_are_warnings(self):
        warnings = self.warnings("""
name: idle
workload: column_parallel_linear
parallel: {tensor_parallel_size: 2, sequence_parallel: true, data_parallel: fsdp, custom_parallel_plan: {}}
world: {compute: fixed, compute_cost: {factor: 3}, links: {inter_node: {latency_us: 5}}}
""")
        name = "workload is column_parallel_linear: it has no effect"
        self.assertEqual({"column_parallel_linear": {
            f"parallel.sequence_parallel is true, but {name}", f"parallel.data_parallel is fsdp, but {name}",
            f"parallel.custom_parallel_plan is {{}}, but {name}",
            "world.compute_cost.factor is 3.0, but world.compute is fixed: it has no effect",
            "world.links.inter_node.latency_us is 5.0, but world.nodes is 1: it has no effect"}}, warnings)

    def test_what_is_allowed_and_does_not_occur_is_no_warning(self):
        text = self.run_emulated(ONE + "matrix: {data.uneven: [true, false]}\n", "--out", self.path("run"))
        self.assertNotIn("warning", text)

    def test_rerun_failed_runs_what_was_not_as_expected(self):
        self.run_emulated(TWO_FAULTS, "--out", self.path("a"), status=3)
        self.run_emulated(TWO_FAULTS, "--rerun-failed", self.path("a"), "--out", self.path("b"), status=3)
        self.assertEqual(["t/two[throws]"], [case["name"] for case in self.results(self.path("b"))["cases"]])

    def test_rerun_failed_runs_what_had_run(self):
        for folder, *words in (("a", self.write("wrong.yaml", WRONG), "--seed", "5"),
                               ("b", "--rerun-failed", self.path("a"), "--", self.path("wrong.yaml")),
                               ("c", "--rerun-failed", self.path("b"))):
            self.call("run", "--backend", "emulated", "--out", self.path(folder), *words, status=1)
            case = self.results(self.path(folder))["cases"][0]
            self.assertEqual((case["seed"], case["replay"].split()[-2:]), (5, ["--seed", "5"]))

    def test_what_did_not_run_did_not_fail(self):
        self.run_emulated(TWO_FAULTS, "--out", self.path("a"), "--time-budget", "0", status=2)
        said = self.call("run", "--rerun-failed", self.path("a"), status=2)
        self.assertIn("and 2 cases did not run; run them with --resume", said)

    def test_a_resumed_run_takes_no_schedules_and_is_shrunk_as_it_was_to_be(self):
        self.run_emulated(TWO_FAULTS, "--out", self.path("a"), "--shrink", "--time-budget", "0", status=2)
        for words in (("--schedules", "2"), ("--relations",), ("--ignore-limits",)):
            self.assertIn(f"{words[0]} excludes --resume", self.call("run", "--resume", self.path("a"), *words, status=2))
        self.assertIn("shrinking t/two[throws]", self.call("run", "--resume", self.path("a"), status=3))

    def test_a_replay_file_is_a_case_of_its_own(self):
        files = []
        for seed in ("3", "4"):
            self.run_emulated(WRONG, "--out", self.path(seed), "--seed", seed, status=1)
            files += self.folder.glob(f"{seed}/replay/*.json")
        self.assertIn("both make the case t/two", self.call("run", *map(str, files), "--backend", "emulated", status=2))
        text = self.call("run", str(files[0]), "--backend", "emulated", "--out", self.path("again"), status=1)
        self.assertIn(f"shardproof run {files[0]} --only t/two --backend emulated", text)

    def test_replay_files_of_two_backends_run_together(self):
        self.call("run", self.write("run.yaml", WRONG), "--backend", "emulated,gloo", "--out", self.path("a"), status=1)
        files = sorted(map(str, self.folder.glob("a/replay/*.json")))
        self.assertIn("2 cases: 2 mismatch", self.call("run", *files, "--out", self.path("b"), status=1))

    def test_a_policy_that_fails_leaves_no_files(self):
        self.environment["TMPDIR"] = self.path("temporary")
        os.makedirs(self.path("temporary"))
        life = LIFE.replace("run:", "faults: [{kind: kill, rank: 1, at_call: 9}]\nexpect: {verdict: failed}\nrun:")
        for backend in ("emulated", "gloo"):
            self.call("run", self.write("life.yaml", life), "--backend", backend, "--out", self.path(backend))
            self.assertEqual([], os.listdir(self.path("temporary")))

    def test_rerun_failed_runs_on_the_backends_of_that_run(self):
        self.run_emulated(TWO_FAULTS, "--out", self.path("a"), status=3)
        self.call("run", "--rerun-failed", self.path("a"), "--out", self.path("b"), status=3)
        self.assertEqual(["emulated"], [case["backend"] for case in self.results(self.path("b"))["cases"]])

    def test_a_backend_that_is_named_twice_runs_once(self):
        self.call("run", self.write("run.yaml", ONE), "--backend", "emulated,emulated", "--out", self.path("run"))
        self.assertEqual(["emulated"], [case["backend"] for case in self.results(self.path("run"))["cases"]])

    def test_stages_that_all_fail_have_shown_nothing(self):
        self.run_emulated(ONE + """
workload: policy
matrix:
  of:
    - {name: alone, run.stages: [{do: train, fails: true}]}
    - {name: said, run.stages: [{do: train, fails: true}], expect.nothing_counted: true}
    - {name: then, run.stages: [{do: train, fails: true}, {do: train}]}
""", "--out", self.path("run"), status=2)
        self.assertEqual({"alone": ("bad_input", False), "said": ("match", True), "then": ("match", True)},
                         {case["name"][:-1].split("[")[1]: (case["verdict"], case["as_expected"])
                          for case in self.results(self.path("run"))["cases"]})

    def test_a_fault_is_seen_by_whom_the_scenario_says_or_it_is_not_as_expected(self):
        expected = "at_call: 2}], expect: {verdict: failed, kind: threw, detector: %s}"
        for detector, status, said in (("exception", 0, "all as expected"),
                                       ("watchdog", 3, "expected failed seen first by watchdog, got exception"),
                                       ("watchdgo", 2, "watchdog")):
            fault = TWO_FAULTS.replace("at_call: 2}]", expected % detector)
            self.assertIn(said, self.run_emulated(fault, status=status))

    def test_a_spoilt_value_tells_what_it_did_to_the_gradients(self):
        fault = self.write("f.yaml", TWO_FAULTS.replace("kind: throw, rank: 1, at_call: 2", "kind: drop, rank: 1, "
                                                        "op: all_reduce, label: down_proj forward"))
        for backend in ("emulated", "gloo"):
            with self.subTest(backend):
                text = self.call("run", fault, "--backend", backend, "--out", self.path(backend), status=1)
                self.assertIn("drop on rank 1 (its ", text)
                self.assertRegex(text, r"seen by values at step 1 \(model.layers.0.mlp.down_proj.output\), then norm")
                self.assertRegex(text, r"[1-9]\d* of \d+ gradients are wrong, the first grad\.")
                outcome = self.results(self.path(backend))["cases"][1]["outcome"]
                self.assertEqual("values", outcome["detections"][0]["detector"])
                self.assertTrue(outcome["faults"][0]["fired"])
                self.assertGreater(outcome["gradients_wrong"], 0)

    def test_the_element_of_a_fault_is_one_that_counts_or_is_said_to_be_padding(self):
        faulty = TWO_FAULTS.replace("lengths: [5, 3]", "lengths: [5, 1]")
        fault = "{kind: corrupt, rank: 1, op: all_reduce, axis: tp, label: down_proj forward, bit: 63%s}"
        row = "{kind: throw, rank: 1, at_call: 2}"
        last = 2 * 5 * 16 - 1  # of [2, 5, 16]: position 4 of the sample of one token
        self.run_emulated(faulty.replace(row, fault % f", element: {last}"), "--out", self.path("run"))
        effect = self.results("run")["cases"][1]["outcome"]["faults"][0]["effect"]
        self.assertRegex(effect, rf"element {last}: \S+ became \S+; element \[1, 4, 15\] is padding")
        first = "{kind: corrupt, rank: 1, op: all_reduce, axis: tp, bit: 63%s}"  # before anything was observed
        self.run_emulated(faulty.replace(row, first % f", element: {last}"), "--out", self.path("first"))
        acted = self.results("first")["cases"][1]["outcome"]["faults"][0]
        self.assertIn("embed", acted["call"])
        self.assertRegex(acted["effect"], r"element \[1, 4, 15\] is padding$")
        for which in (fault, first):
            for seed in range(6):
                self.says(self.run_emulated(faulty.replace(row, which % "") + f"seed: {seed}\n", status=1), "seen by values",
                          absent=["is padding"])

    def test_a_fault_that_never_acts_is_an_error_in_a_sentence(self):
        for what, sentence in (("kind: drop, rank: 1, at_call: 900", "at_call is 900"),
                               ("kind: duplicate, rank: 0, op: all_gather", "0 of them are all_gather calls"),
                               ("kind: corrupt, rank: 1, element: 99999", "no element 99999 in a buffer of"),
                               ("kind: throw, rank: 1, step: 7", "in step 7")):
            fault = self.write("f.yaml", TWO_FAULTS.replace("kind: throw, rank: 1, at_call: 2", what))
            for backend in ("emulated", "gloo"):
                with self.subTest(what, backend=backend):
                    text = self.call("run", fault, "--backend", backend, status=2)
                    self.assertIn("never acted", text)
                    self.assertIn(sentence, " ".join(text.split()))
        for kind in ("drop", "duplicate"):  # of a rank whose only sample does not count
            nothing = self.write("n.yaml", ONE.split("data")[0] + f"""
data: {{batch_size: 2, sequence_length: 5, dropped_samples: [1]}}
parallel: {{data_parallel_size: 2}}
faults: [{{kind: {kind}, rank: 1, axis: dp, label: grad.}}]
""")
            self.assertIn("which changed nothing", " ".join(self.call("run", nothing, status=2).split()))
        stale = self.write("s.yaml", TWO_FAULTS.replace("kind: throw, rank: 1, at_call: 2", "kind: stale"))
        self.assertIn("none was sent before it", self.call("run", stale, status=2))
        axis = self.write("a.yaml", TWO_FAULTS.replace("at_call: 2", "axis: tpp"))
        self.assertIn("unknown axis 'tpp'", self.call("run", axis, status=2))

    def test_the_replay_command_and_the_expanded_case_replay(self):
        text = self.run_emulated(TWO_FAULTS, "--out", self.path("a"), status=3)
        line = next(line for line in text.splitlines() if "shardproof run" in line)
        words = shlex.split(line[line.index("shardproof run"):])[1:]
        self.call(*words, "--out", self.path("b"), status=3)
        self.assertEqual(1, len(self.results(self.path("b"))["cases"]))
        replays = glob.glob(self.path("a", "replay", "*.json"))
        self.assertEqual(1, len(replays))
        self.call("run", replays[0], status=3)
        text = self.run_emulated(TWO_FAULTS, "--seed", "5", status=3)
        self.assertIn(" --seed 5\n", next(line + "\n" for line in text.splitlines() if "shardproof run" in line))

    def test_what_is_skipped_is_counted_and_no_skips_makes_it_an_error(self):
        skipped = SMALL + "skip: {reason: why not, when: {parallel.data_parallel_size: 2}}\n"
        self.says(self.run_emulated(skipped), "why not", "3 skipped")
        self.run_emulated(skipped, "--no-skips", status=2)

    def test_a_time_budget_starts_no_further_case(self):
        self.says(self.run_emulated(SMALL, "--time-budget", "0", status=2),
                  "0 of 6 cases; 6 not run", absent=["all as expected"])
        self.run_emulated(SMALL, "--time-budget", "0", "--allow-partial")
        self.run_emulated(SMALL, "--time-budget", "nan", status=2)

    def test_a_filter_may_name_a_key_and_its_value(self):
        small = self.write("s.yaml", SMALL + "tags: [few]\n")
        for words, count in ((["tensor_parallel_size=2"], 4), (["tp=2"], 4), (["precision=float64"], 12),
                             (["parallel.data_parallel_size=2", "tp=4"], 2), (["few"], 12), (["precision=float32"], 0), (["vocab_size=24", "model.family=llama"], 12),
                             (["family=gemma3"], 0), (["run.sequence_packing.enabled=false", "dp=1"], 6),
                             (["data_parallel=replicate"], 12), (["data_parallel=fsdp"], 0)):
            filters = [word for one in words for word in ("--filter", one)]
            text = self.call("list", small, *filters, status=0 if count else 2)
            self.assertIn(f"{count} cases", text)

    def test_a_name_that_no_case_has_names_the_nearest(self):
        text = self.call("run", self.write("s.yaml", SMALL), "--only", "t/small[tp=2,dp=3]", status=2)
        self.assertIn("no case has this name; did you mean t/small[tp=2,dp=", text)

    def test_standard_output_may_be_lines_of_json(self):
        two = self.write("f.yaml", TWO_FAULTS)
        done = self.run_program("run", two, "--backend", "emulated", "--format", "jsonl", "--durations", "1")
        cases = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual({"match": True, "failed": False}, {case["verdict"]: case["as_expected"] for case in cases})
        self.says(done.stderr, "slowest cases", "1 not as expected")
        left = self.write("left.yaml", ONE.replace("t/small", "t/left") + "skip: no reason\n")
        done = self.run_program("run", left, two, "--backend", "emulated", "--format", "jsonl", "--time-budget", "0")
        cases = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual({"skipped": "no reason", "not run": "the time budget of 0 s was used up"},
                         {case["verdict"]: case["message"] for case in cases if case["as_expected"] is None})

    def test_a_workflow_of_github_gets_annotations(self):
        self.environment["GITHUB_ACTIONS"] = "true"
        text = self.run_emulated(TWO_FAULTS, "-q", status=3)
        self.assertIn(f"::error file={self.path('run.yaml')},line=2,title=t/two[throws] failed::", text)
        self.assertEqual(1, text.count("::error"))
        self.assertFalse(any(line.startswith("match") for line in text.splitlines()))

    def test_bash_completes_commands_and_options(self):
        script = self.write("complete.sh", self.call("completion"))
        for words, expected in ((["shardproof", "ru"], "run"), (["shardproof", "run", "--maxf"], "--maxfail"),
                                (["shardproof", "golden", "--du"], "--dump")):
            line = (f"source {script}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
                    f'_shardproof shardproof "{words[-1]}"; echo "${{COMPREPLY[@]}}"')
            done = subprocess.run(["bash", "-c", line], stdout=subprocess.PIPE, text=True, check=True)
            self.assertEqual(expected, done.stdout.strip())

    def test_a_seed_of_the_order_that_is_too_large_is_bad_input(self):
        self.run_emulated(SMALL, "--shuffle", "9" * 23, status=2)

    def test_order_and_parallel_cases_change_no_verdict(self):
        small = self.write("small.yaml", SMALL)
        for more in (["--shuffle", "3"], ["--jobs", "3"], ["--jobs", "2", "--shuffle", "5", "--fresh"]):
            out = self.path("o" + str(len(os.listdir(self.scratch))))
            self.call("run", small, *more, "--out", out)
            verdicts = {case["verdict"] for case in self.results(out)["cases"]}
            self.assertEqual({"match"}, verdicts)
            self.assertEqual(12, len(self.results(out)["cases"]))

    def test_an_interrupt_ends_everything_with_130(self):
        hang = self.write("h.yaml", TWO_FAULTS.replace("kind: throw", "kind: hang") +
                          "world: {hang_s: 500, deadline_s: 900}\n")
        for backend in ("emulated", "gloo"):
            with self.subTest(backend):
                marked = self.environment | {processes.MARK: self.scratch}
                process = subprocess.Popen([PROGRAM, "run", hang, "--backend", backend, "--only",
                                            "t/two[throws]"], cwd=self.scratch, env=marked,
                                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                # until the case runs: control, the zygote and two more
                processes.wait_for(lambda: len(processes.marked(self.scratch)) >= 4
                                   or process.poll() is not None)
                self.assertIsNone(process.poll())
                process.send_signal(signal.SIGINT)
                self.assertEqual(130, process.wait(200))
                self.assertEqual({}, processes.marked(self.scratch))

    def test_an_interrupt_of_a_command_without_workers_is_said(self):
        self.make_case()
        answers = self.path("answers")
        self.call("golden", self.case, "--dump", answers)
        shutil.copy(answers, answers + ".again")
        for how in (signal.SIGINT, signal.SIGTERM):
            for words in (["judge", self.case, answers, "--golden", answers + ".again"], ["list"]):
                with StuckProgram(words, self.scratch, self.environment) as process:
                    process.wait_until_it_catches(how)
                    process.send_signal(how)
                    self.assertEqual("shardproof: interrupted\n", process.communicate(timeout=LIMIT_S)[1])
                    self.assertEqual(-how, process.returncode)


NO_TOKEN = ("data.token_mask_probability: 0", "data.dropped_samples: [0, 1, 2, 3]", "data.lengths: [1, 1, 1, 1]")


class Grounds(CommandTest):
    """What a match rests on."""

    def run_lines(self, *lines, out=None, status=0):
        scenario = "\n".join(["name: t/grounds", SMALL.splitlines()[2], *lines]) + "\n"
        return self.run_emulated(scenario, *(["--out", self.path(out)] if out else []), status=status)

    def test_a_match_says_how_much_counted(self):
        # Samples of 5, 3, 4 and 2 tokens; the first token of each has no logprob.
        text = self.run_lines("data: {lengths: [5, 3, 4, 2], token_mask_probability: 1}", "run: {steps: 2}",
                              "parallel: {tensor_parallel_size: 2}", "matrix: {workload: [train, logprobs]}", out="run")
        train, scores = self.results("run")["cases"]
        self.assertEqual("train", train["workload"])
        self.assertEqual(10, train["rests_on"]["scored_tokens"])
        gradients = train["outcome"]["gradients"]
        self.assertEqual([gradients] * 2, [train["rests_on"]["gradients"], train["rests_on"]["gradients_not_zero"]])
        self.assertEqual([10, 0, 0], [scores["rests_on"][name] for name in ("scored_tokens", "gradients", "gradients_not_zero")])
        elements = train["rests_on"]["elements"]
        self.assertEqual(train["elements"]["demanded"] - sum(train["elements"]["excused"].values()), elements)
        self.assertRegex(text, rf"tensors, {elements} elements, 10 scored tokens, {gradients} of {gradients} gradients not "
                               "all zero, at most")
        self.assertRegex(text, r"tensors, \d+ elements, 10 scored tokens, at most")
        self.run_lines("data: {lengths: [5, 3, 4, 2], token_mask_probability: 1, dropped_samples: [0, 2]}", out="half")
        self.assertEqual(3, self.results("half")["cases"][0]["rests_on"]["scored_tokens"])

    def test_a_policy_that_scores_nothing_rests_on_no_tokens(self):
        for stages, tokens in (("{do: score, fails: true}, {do: refit}", None), ("{do: score}, {do: refit}", 10)):
            text = self.run_lines("data: {lengths: [5, 3, 4, 2]}", "workload: policy",
                                  f"run: {{refit: {{tensor_parallel_size: 1}}, stages: [{stages}]}}", out="run")
            self.assertEqual(tokens, self.results("run")["cases"][0]["rests_on"]["scored_tokens"])
            self.assertEqual("scored token" in text, tokens is not None)

    def test_a_case_in_which_no_token_counts_is_bad_input_unless_it_says_so(self):
        for line in NO_TOKEN:
            for more in ("workload: train", "{workload: policy, run.stages: [{do: score}, {do: train}]}"):
                more = more.strip("{}").replace(", run.stages", "\nrun.stages")
                with self.subTest(line, more=more):
                    text = self.run_lines(line, more, status=2)
                    self.assertRegex(" ".join(text.split()),
                                     r"no token counts: the loss and all \d+ gradients are 0, so a match would show")
                    text = self.run_lines(line, more, "expect: {nothing_counted: true}")
                    self.assertRegex(text, r"0 scored tokens, 0 of \d+ gradients not all zero")
        self.assertIn("no token counts: the loss, or without one all logprobs, are 0",
                      self.run_lines("workload: logprobs", "data.lengths: [1, 1]", status=2))

    def test_a_planted_fault_does_not_hide_that_no_token_counts(self):
        fault = "faults: [{kind: drop, rank: 1, op: all_reduce, label: grad.}]"
        self.assertIn("no token counts", self.run_lines(NO_TOKEN[0], "parallel: {data_parallel_size: 2}", fault, status=2))

    def test_tokens_that_count_are_not_expected_to_count_nothing(self):
        text = self.run_lines("expect: {nothing_counted: true}", status=1)
        self.assertRegex(text, r"expected that nothing counts, but this match rests on \d+ scored tokens")

    def test_a_case_folder_without_a_counted_token_is_bad_input(self):
        self.make_case(*[{"file": "batch.safetensors", "element": ["sample_mask", index, 0]} for index in range(3)])
        self.says(self.call("check", self.case, "--mesh", "tp=2", status=2), "no token counts")


class Words(CommandTest):
    def test_describe_shows_who_holds_which_token(self):
        scenarios = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scenarios")
        text = self.call("describe", os.path.join(scenarios, "cp/layouts_rotations.yaml"),
                         "--filter", "contiguous", "--filter", "packed")
        self.assertIn("who holds which token", text)
        for strip in ("sample 0                  AAAAAAAAAAAAA\n", "    cp 0 ", "    cp 1 "):
            self.assertIn(strip, text)
        # Of 13, 1, 7 and 2 tokens, padded to 14, 2, 8 and, with the row to 28, 4.
        self.says(text, "A 0-6, B 0, C 0-3, D 0-1\n", "A 7-12, C 4-6\n")

    def test_lint_says_all_errors_of_all_files_and_runs_nothing(self):
        right = self.write("right.yaml", SMALL)
        self.says(self.call("lint", right), "1 file, 6 cases: no errors")
        keys = self.write("keys.yaml", "name: t/keys\nparalel: {tensor_parallel_size: 2}\ndata: {lengths: [5, x]}\n")
        rows = self.write("rows.yaml", "name: t/rows\ndata: {lengths: [5, 3]}\nmatrix:\n"
                          "  data.dropped_samples: [[7], [0], [8]]\n")
        meshes = self.write("meshes.yaml", SMALL.replace("[1, 2, 4]", "[1, 3, 5]").replace("t/small", "t/meshes"))
        text = self.call("lint", right, keys, rows, meshes, status=2)
        for part in ["keys.yaml:2:1: unknown key 'paralel'", "keys.yaml:3:", "rows.yaml:4:", "sample 7", "sample 8"]:
            self.assertIn(part, text)
        self.assertNotIn("no errors", text)
        self.assertFalse(os.path.exists(self.path("runs")))

    def test_a_wrong_number_of_a_pair_is_one_error(self):
        pair = "run: {optimizer: {kwargs: {betas: [%s]}}}\n"
        text = self.call("lint", self.write("one.yaml", pair % "-1, 0.9"), status=2)
        self.assertEqual(1, text.count("betas"), text)
        self.assertIn("-1", text)
        self.assertIn("betas has 1 number; write two", self.call("lint", self.write("two.yaml", pair % "0.9"), status=2))
        one = self.write("ranks.yaml", "world: {size: 2}\nparallel: {data_parallel_size: 1}\n")
        self.assertRegex(self.call("lint", one, status=2), r"world\.size is 2, but the mesh .*has 1 rank;")

    def test_the_block_of_a_key_with_dots_is_looked_through(self):
        for line, said in (("run.step: 2", "unknown key 'run.step'; did you mean run.steps?"),
                           ("parallel.tensor_paralel_size: 2", "did you mean parallel.tensor_parallel_size?"),
                           ("run: {optimizer.kwarg.lr: 1}", "unknown key 'run.optimizer.kwarg.lr'; did you mean"),
                           ("run.optimizer.kwargs.zzzzzz: 2", "known in run.optimizer.kwargs are "),
                           ("run.zzzzzz: 2", "known in run are ")):
            self.assertIn(said, self.call("lint", self.write("dots.yaml", SMALL + line + "\n"), status=2))

    def test_a_scenario_that_is_named_twice_is_one(self):
        small = self.write("small.yaml", SMALL)
        os.symlink(small, self.path("again.yaml"))
        once = self.call("list", small)
        for words in ([small], ["small.yaml"], [self.scratch], ["again.yaml"]):
            self.assertEqual(once, self.call("list", small, *words))

    def test_a_current_folder_that_is_gone_is_a_sentence(self):
        gone = self.path("gone")
        os.mkdir(gone)
        for words in (["version"], ["list", self.write("small.yaml", SMALL)]):
            done = subprocess.run(["bash", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', gone, PROGRAM, *words], text=True,
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False)
            self.assertEqual((2, ""), (done.returncode, done.stdout))
            self.assertEqual("shardproof: the current folder does not exist any more, or cannot be read; change to another "
                             "one\n", done.stderr)
            os.mkdir(gone)

    def test_what_is_not_a_file_is_named(self):
        self.make_case()
        weights = self.path("case", "model.safetensors")
        answers = self.path("answers")
        self.call("golden", self.case, "--dump", answers)
        logprobs = self.path("logprobs")
        make_socket(os.path.join(self.case, "expected.safetensors"))
        self.assertIn("expected.safetensors is a socket, not a file; a case holds the answers of another framework there, or "
                      "nothing", self.call("check", self.case, "--mesh", "tp=2", status=2))
        os.remove(os.path.join(self.case, "expected.safetensors"))
        os.remove(weights)
        for make, said in ((os.mkdir, "a folder"), (os.mkfifo, "a pipe"), (make_socket, "a socket"),
                           (lambda path: os.symlink("/dev/null", path), "a device"),
                           (lambda path: os.symlink("nowhere", path), "a link to nowhere")):
            for path, words, fix in (
                    (weights, ["check", self.case, "--mesh", "tp=2"], "a case holds the full weights"),
                    (weights + ".index.json", ["check", self.case, "--mesh", "tp=2"], "a case holds the full weights"),
                    (logprobs, ["logprobs", logprobs, answers], "name a safetensors file")):
                make(path)
                self.says(self.call(*words, status=2), f"{path} is {said}, not a file; {fix}")
                os.rmdir(path) if said == "a folder" else os.remove(path)

    def check_described_once(self):
        """Equal layers are one, equal tables of later cases are not repeated, and bytes have units."""
        layers = self.write("layers.yaml", SMALL.replace("num_hidden_layers: 1", "num_hidden_layers: 3").replace(
            "parallel.data_parallel_size: [1, 2]", "run.steps: [1, 2]"))
        text = self.call("describe", layers, "--filter", "tp=2")
        self.assertEqual(text.count("model.layers.0-2.mlp.up_proj.weight "), 1)
        self.assertNotIn("model.layers.1.", text)
        self.assertEqual(text.count("who holds what: as in t/small[tp=2,steps=1]\n"), 1)
        self.assertEqual(text.count("layout  "), 1)
        equal = self.write("equal.yaml", SMALL.replace("matrix: {", "matrix: {row: [{name: a}, {name: b, world.hang_s: 7}, {name: c}], "))
        text = self.call("describe", equal, "--filter", "tp=2")
        for data in (1, 2):
            for row in "bc":
                self.assertIn(f"\nt/small[{row},tp=2,dp={data}]: all as in t/small[a,tp=2,dp={data}]\n", text)
        self.assertEqual((text.count("who holds what\n"), text.count("\nmodel      ")), (1, 2))
        text = self.call("describe", layers, "--filter", "tp=2")
        for size, unit, exact in re.findall(r"([\d.]+) (\S+) \((\d+) B\)", text):
            power = ("B", "KiB", "MiB", "GiB").index(unit)
            self.assertAlmostEqual(float(size), int(exact) / 1024 ** power, delta=0.051)
        self.assertRegex(text, r"parameters +[\d.]+ KiB \(\d+ B\)")

    def test_list_describe_doctor_version_schema(self):
        small = self.write("small.yaml", SMALL)
        self.assertIn("12 cases, 0 skipped", self.call("list", small))
        self.assertIn("run.optimizer.kwargs.lr", self.call("list", "--keys"))
        text = self.call("describe", small, "--filter", "tp=4,dp=2")
        for piece in ("dp=2 tp=4, 8 ranks", "RowParallel", "memory", "S(1)tp"):
            self.assertIn(piece, text)
        self.check_described_once()
        self.assertIn("no case was selected", self.call("describe", small, "--filter", "none", status=2))
        self.assertIn("emulated", self.call("doctor"))
        self.assertIn("LibTorch", self.call("version"))
        self.assertIn("tensor_parallel_size", json.dumps(json.loads(self.call("schema"))))
        self.assertIn("--time-budget", self.call("run", "--help"))

    def test_a_run_dumps_its_one_case(self):
        small = self.write("small.yaml", SMALL)
        name = "t/small[tp=2,dp=2]"
        self.assertIn("seconds", self.call("golden", small, "--only", name, "--dump", self.path("golden")))
        for backend in ("emulated", "gloo"):
            self.call("run", small, "--only", name, "--backend", backend, "--dump",
                      self.path("ours"), "--out", self.path("run"))
            ours = self.check_dumps(self.path("golden"), self.path("ours"))
            self.assertIn("step1.param.lm_head.weight", ours)

    def test_a_policys_life_is_dumped_moment_by_moment(self):
        life = self.write("life.yaml", LIFE)
        for mesh in ("dp2", "tp2"):
            name = f"t/life[{mesh}]"
            self.call("golden", life, "--only", name, "--dump", self.path("golden"))
            self.call("run", life, "--only", name, "--backend", "emulated", "--dump",
                      self.path("ours"), "--out", self.path("run"))
            ours = self.check_dumps(self.path("golden"), self.path("ours"))
            # 1 score, 2 reference, 3 4 train, 5 eval, 6 load, 7 train, 8 refit; then all of it again
            self.assertEqual([4, 6], ours["step1.scores"][1])
            self.assertEqual([4, 6], ours["step2.reference_scores"][1])
            self.assertEqual([2, 6], ours["step3.logprobs"][1])
            self.assertEqual([4, 6], ours["step5.logprobs"][1])
            for present in ("step4.grad.lm_head.weight", "step3.grad_norm", "step5.loss",
                            "step7.param.model.norm.weight", "step12.loss", "step9.scores"):
                self.assertIn(present, ours)
            for absent in ("loss", "logprobs", "step5.grad_norm", "step6.loss", "step17.loss"):
                self.assertNotIn(absent, ours)
            self.assertEqual([name for name in ours if name.startswith("step8.")], [])
            weight = "param.model.layers.0.mlp.up_proj.weight"
            self.assertEqual(ours["step6." + weight][2], ours["step4." + weight][2])
            self.assertNotEqual(ours["step7." + weight][2], ours["step6." + weight][2])

    def test_a_dump_is_of_one_case_that_has_a_model(self):
        small = self.write("small.yaml", SMALL)
        for arguments, said in (([small], "--dump writes one case, "),
                                ([small, "--filter", "tp=4"], "choose one with --only"),
                                ([os.path.join(HERE, "..", "..", "scenarios", "layers",
                                               "row_parallel_linear.yaml"), "--shard", "1/1000"],
                                 "has no model to dump")):
            text = self.call("run", *arguments, "--backend", "emulated", "--dump",
                             self.path("ours"), "--out", self.path("run"), status=2)
            self.assertIn(said, text)
            self.assertFalse(os.path.exists(self.path("ours")))


def main():
    """The first argument is the program, the others are those of unittest."""
    global PROGRAM
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        PROGRAM = os.path.abspath(sys.argv.pop(1))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell inherits that it is ignored
    unittest.main()


if __name__ == "__main__":
    main()
