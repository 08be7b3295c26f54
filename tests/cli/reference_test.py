#!/usr/bin/env python3
"""Cases that are compared with another layout of their model instead of one device.

  reference_test.py PROGRAM          with models whose full state is four and five times what one process may hold
  reference_test.py PROGRAM --large  six times
"""

import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import loaded  # noqa: E402
from processes import descendants  # noqa: E402

PROGRAM = ROOT / "build/dev/shardproof-bin"
LARGE = False
MIB = 1 << 20

SMALL = """
name: small
workload: train
model: {vocab_size: 29, hidden_size: 24, intermediate_size: 48, num_attention_heads: 4, num_key_value_heads: 2,
        num_hidden_layers: 2}
data: {lengths: [7, 4, 8, 5], sequence_length: 8}
run: {steps: 2, max_grad_norm: 0.3}
"""


def scenario(*lines):
    return "\n".join(lines) + "\n"


class Program(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.pieces = self.folder / "pieces"
        self.pieces.mkdir()

    def start(self, text, *flags, data_bytes=None):
        path = self.folder / "scenario.yaml"
        path.write_text(text)

        def limit():
            resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))

        words = [PROGRAM, "run", path, "--no-cache", "--out", self.folder / "out", *flags]
        env = dict(os.environ, TMPDIR=str(self.pieces))
        call = {"args": words, "env": env, "preexec_fn": limit} if data_bytes else loaded.call(words, env)
        return subprocess.Popen(**call, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT)

    def run_text(self, text, *flags, status=0, data_bytes=None):
        process = self.start(text, *flags, data_bytes=data_bytes)
        output = process.communicate(timeout=600)[0]
        self.assertEqual(process.returncode, status, output)
        self.assertEqual(list(self.pieces.iterdir()), [], "pieces of the reference are left")
        return output

    def results(self):
        return json.loads((self.folder / "out/results.json").read_text())["cases"]


class Verdicts(Program):
    def test_a_match_says_what_it_is_a_match_against(self):
        output = self.run_text(scenario(SMALL, "parallel: {tensor_parallel_size: 4}", "reference: {mesh: {tp: 2}}"))
        self.assertIn("match against tp2, not against one device", output)
        self.assertIn("  match      against tp2, not against one device: 2 cases\n", output)
        case = self.results()[0]
        self.assertEqual(case["reference"], "tp2")
        self.assertIn("an error that both layouts make is not seen", case["text"])
        self.assertIn("against tp2, not against one device", (self.folder / "out/junit.xml").read_text())
        judged = {tensor["name"] for tensor in case["tensors"]}
        for name in ("logprobs", "loss", "grad_norm", "model.layers.1.mlp.gate_proj.output",
                     "model.layers.0.self_attn.k_proj.grad_input", "grad.lm_head.weight",
                     "param.model.embed_tokens.weight", "exp_avg_sq.model.layers.1.self_attn.o_proj.weight"):
            self.assertIn(name, judged)

    def test_the_same_tensors_are_compared_as_with_one_device(self):
        with_one = scenario(SMALL, "parallel: {data_parallel_size: 2, tensor_parallel_size: 2}")
        self.run_text(with_one)
        one = self.results()[0]
        self.run_text(scenario(with_one, "reference: {mesh: {dp: 4}, data_parallel: fsdp}"))
        layout = self.results()[0]
        # The optimizer that is fed with the gradients of one device needs them whole.
        names = {(t["name"], t["step"]) for t in one["tensors"] if not t["name"].startswith("fed.")}
        self.assertEqual({(t["name"], t["step"]) for t in layout["tensors"]}, names)
        self.assertEqual(one["elements"]["demanded"] > 0, True)
        self.assertEqual(layout["elements"]["demanded"], layout["elements"]["judged"] +
                         sum(layout["elements"]["excused"].values()))

    def test_an_error_of_one_layout_is_found(self):
        both = ("parallel: {tensor_parallel_size: 2}", "reference: {mesh: {tp: 4}}")
        output = self.run_text(scenario(SMALL, "run.grad_norm.counts: each_of_tp", *both), status=1)
        self.assertRegex(output, r"tensor +grad_norm +step of step 1")
        self.assertIn("against tp4, not against one device", output)
        fault = "faults: [{kind: corrupt, rank: 1, label: model.layers.1.mlp.down_proj, side: output}]"
        output = self.run_text(scenario(SMALL, fault, *both), status=1)
        self.assertIn("model.layers.1.mlp.down_proj", output)

    def test_every_backend_and_schedule(self):
        text = scenario(SMALL, "parallel: {tensor_parallel_size: 2, sequence_parallel: true}",
                        "reference: {mesh: {cp: 2}}")
        self.run_text(text, "--backend", "gloo")
        self.run_text(scenario(text, "world: {schedule: 3}"), "--backend", "emulated")

    def test_scoring_has_a_reference_too(self):
        self.run_text(scenario(SMALL.replace("train", "logprobs").replace("run: {steps: 2, max_grad_norm: 0.3}", ""),
                               "parallel: {tensor_parallel_size: 2}", "reference: {mesh: {cp: 2}}"))
        self.assertIn("logprobs", {tensor["name"] for tensor in self.results()[0]["tensors"]})

    def test_weights_of_a_folder(self):
        folder = ROOT / "golden/hf/llama_untied"
        self.run_text(f"workload: train\nmodel: {{folder: {folder}}}\nparallel: {{tensor_parallel_size: 2}}\n"
                      "reference: {mesh: {dp: 2}, data_parallel: fsdp}\n")


class LowerPrecisions(Program):
    """The reference's layout runs in float64, and 17 times in the precision: what its roundings do is the allowance."""

    def test_layouts_match(self):
        self.run_text(scenario(SMALL, """matrix:
  layouts:
    - {name: tp, parallel.tensor_parallel_size: 4, reference.mesh.tp: 2, reference.sequence_parallel: true,
       precision: bfloat16}
    - {name: dp, parallel.data_parallel_size: 2, parallel.tensor_parallel_size: 2, reference.mesh.dp: 4,
       reference.data_parallel: fsdp, precision: float32}
    - {name: cp, parallel.context_parallel_size: 2, reference.mesh.ulysses: 2, precision: bfloat16}"""),
                      "--backend", "emulated")
        for case in self.results():
            outcomes = [tensor["outcome"] for tensor in case["tensors"]]
            self.assertGreater(outcomes.count("match"), 200)
            self.assertEqual(set(outcomes), {"match"})
        self.run_text(scenario(SMALL, "precision: bfloat16", "parallel: {tensor_parallel_size: 2}",
                               "reference: {mesh: {dp: 2}, data_parallel: fsdp}"), "--backend", "gloo")

    def test_errors_are_found_as_against_one_device(self):
        """In their first step, which is the only one: each costs 18 steps of the reference."""
        one_step = SMALL.replace("steps: 2", "steps: 1")
        tp2 = "parallel: {tensor_parallel_size: 2}"
        for against in ("reference: {mesh: {tp: 4}}", ""):
            lost = "faults: [{kind: drop, rank: 1, label: model.layers.0.self_attn.o_proj}]"
            output = self.run_text(scenario(one_step, tp2, "precision: bfloat16", lost, against), status=1)
            self.assertRegex(output, r"tensor +model.layers.0.self_attn.o_proj.output")
            output = self.run_text(scenario(one_step, tp2, "precision: float32", "run.grad_norm.counts: each_of_tp", against),
                                   status=1)
            self.assertRegex(output, r"tensor +grad_norm +step of step 1")


class Refused(Program):
    def refused(self, sentence, *lines, text=SMALL):
        output = self.run_text(scenario(text, *lines), status=2)
        self.assertRegex(output, sentence)

    def test_references_that_are_none(self):
        tp2 = "parallel: {tensor_parallel_size: 2}"
        self.refused("the reference has no mesh; name its axes", tp2, "reference: {sequence_parallel: true}")
        self.refused("the reference tp2 is the layout of the case itself", tp2, "reference: {mesh: {tp: 2}}")
        self.refused("the reference one rank is the layout of the case itself", "reference: {mesh: {tp: 1}}")
        self.refused("unknown key 'reference.mesh.experts'", tp2, "reference: {mesh: {experts: 2}}")
        self.refused("the reference: ep=2 times etp=1 does not divide the 1 ranks that hold a layer", tp2,
                     "reference: {mesh: {ep: 2}}")
        self.refused("reference.mesh.tp", tp2, "reference: {mesh: {tp: 0}}")
        self.refused("reference.data_parallel", tp2, "reference: {mesh: {dp: 2}, data_parallel: sharded}")
        self.refused("a reference layout in float16", tp2, "reference: {mesh: {tp: 4}}", "precision: float16")
        self.refused("a reference layout in bfloat16 of a loss that clips", tp2, "reference: {mesh: {tp: 4}}",
                     "precision: bfloat16", "run.loss.kind: clipped_pg")
        self.refused("not judged", tp2, "reference: {mesh: {tp: 4}}", "judged: false")
        self.refused("workload policy cannot be compared with another layout", "run: {stages: [{do: score}]}",
                     "reference: {mesh: {tp: 4}}", text=re.sub("run:.*\n", "", SMALL).replace("train", "policy"))

    def test_a_mesh_that_does_not_fit_the_model(self):
        tp2 = "parallel: {tensor_parallel_size: 2}"
        self.refused(r"the reference \(tp3\): ", tp2, "reference: {mesh: {tp: 3}}")
        self.refused(r"the reference \(dp3\): ", tp2, "reference: {mesh: {dp: 3}}")
        # What a scenario expects of its own ranks does not excuse its reference.
        self.refused(r"the reference \(tp3\): ", tp2, "reference: {mesh: {tp: 3}}", "expect: {verdict: refused}")

    def test_routes_that_roundings_could_decide(self):
        # One token id: the weights of equal tokens differ by roundings, and an expert keeps one of them.
        few = scenario("name: near", "workload: train",
                       "model: {family: mixtral, vocab_size: 1, hidden_size: 24, num_attention_heads: 4, "
                       "num_key_value_heads: 2, config: {num_local_experts: 4, num_experts_per_tok: 2}}",
                       "data: {lengths: [7, 4, 8, 5], sequence_length: 8}",
                       "run.experts.capacity: {factor: 0.25}", "parallel: {data_parallel_size: 2}")
        self.refused(r"the reference \(dp4\): .*roundings could decide", "reference: {mesh: {dp: 4}}", text=few)


class Watch:
    """The largest VmData and VmHWM of each rank, by the name of its process, in KiB."""

    def __init__(self, pid):
        self.peaks, self.ended = {}, False
        self.thread = threading.Thread(target=self.look, args=(pid,))
        self.thread.start()

    def look(self, pid):
        while not self.ended:
            ranks = [one for one, name in descendants(pid).items() if name.startswith("sp-rank")]
            for one in ranks:
                with contextlib.suppress(OSError):  # it has ended
                    status = Path(f"/proc/{one}/status").read_text()
                    for key, size in re.findall(r"(VmData|RssAnon):\s+(\d+)", status):
                        self.peaks[key] = max(self.peaks.get(key, 0), int(size))
            time.sleep(0.02)

    def end(self):
        self.ended = True
        self.thread.join()


class Memory(Program):
    """float64 parameters, gradients and two moments of AdamW: 32 bytes of each parameter."""

    def compared(self, layers, hidden, times, parallel, reference, name):
        """Within a limit of the state / `times` in each process."""
        model = (f"model: {{vocab_size: 512, hidden_size: {hidden}, intermediate_size: {4 * hidden}, "
                 f"num_attention_heads: 16, num_hidden_layers: {layers}}}")
        text = scenario("name: large", "workload: train", model, "data: {batch_size: 16, sequence_length: 4}",
                        "run: {steps: 1}", "seed: 3", "world: {hang_s: 300, deadline_s: 1200}", parallel)
        parameters = layers * (4 * hidden**2 + 3 * 4 * hidden**2 + 2 * hidden) + 2 * 512 * hidden + hidden
        state = 32 * parameters
        limit = state // times
        process = self.start(scenario(text, reference), "--backend", "gloo", "--fresh", data_bytes=limit)
        watch = Watch(process.pid)
        started = time.monotonic()
        output = process.communicate(timeout=1800)[0]
        watch.end()
        print(f"{name}: full state {state / MIB:.0f} MiB, a process may hold {limit / MIB:.0f} MiB; largest rank: "
              f"{watch.peaks.get('VmData', 0) / 1024:.0f} MiB of data, "
              f"{watch.peaks.get('RssAnon', 0) / 1024:.0f} MiB of them in memory; "
              f"{time.monotonic() - started:.0f} s", flush=True)
        self.assertEqual(process.returncode, 0, output)
        self.assertIn(f"match against {name}, not against one device", output)
        self.assertGreaterEqual(state, 4 * limit)
        self.assertLessEqual(watch.peaks["VmData"] * 1024, limit)
        self.assertEqual(self.results()[0]["verdict"], "match")
        self.assertGreaterEqual(self.results()[0]["elements_compared"], 4 * parameters)
        return text, limit

    def test_a_model_that_no_process_may_hold(self):
        layers, hidden, times = (24, 768, 6) if LARGE else (12, 512, 4)
        text, limit = self.compared(layers, hidden, times, "parallel: {tensor_parallel_size: 16}",
                                    "reference: {mesh: {dp: 2, tp: 8}}", "dp2 tp8")
        # The limit is real: one device does not get that far.
        if not LARGE:
            output = self.run_text(text, "--backend", "gloo", status=2, data_bytes=limit)
            self.assertIn("memory", output)

    @unittest.skipIf(LARGE, "the other one is the large one")
    def test_sharded_parameters_are_gathered_layer_by_layer(self):
        self.compared(24, 384, 5, "parallel: {data_parallel: fsdp, data_parallel_size: 16}",
                      "reference: {mesh: {tp: 16}}", "tp16")
        self.compared(24, 384, 5, "parallel: {tensor_parallel_size: 16}",
                      "reference: {mesh: {dp: 16}, data_parallel: fsdp}", "fsdp16")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    LARGE = "--large" in arguments
    arguments = [one for one in arguments if one != "--large"]
    if arguments and not arguments[0].startswith("-"):
        PROGRAM = Path(arguments.pop(0)).resolve()
    if LARGE:
        arguments.append("Memory")
    unittest.main(argv=sys.argv[:1] + arguments)
