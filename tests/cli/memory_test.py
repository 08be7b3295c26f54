#!/usr/bin/env python3
"""The memory that `describe` predicts, held against what the ranks measured.

  memory_test.py PROGRAM
"""

import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build/dev/shardproof-bin"

# What decides the peak differs: activations, logits, gradients on their way, optimizer state.
SCENARIO = """
name: memory
workload: train
judged: false
model: {vocab_size: 96, hidden_size: 48, intermediate_size: 96, num_attention_heads: 4,
        num_key_value_heads: 2, num_hidden_layers: 3}
data: {batch_size: 2, sequence_length: 16}
run: {steps: 2}
matrix:
  case:
    - {name: one}
    - {name: tp2, parallel.tensor_parallel_size: 2}
    - {name: tp2_sp, parallel.tensor_parallel_size: 2, parallel.sequence_parallel: true}
    - {name: dp2, parallel.data_parallel_size: 2}
    - {name: long, data.sequence_length: 96, parallel.tensor_parallel_size: 2}
    - {name: words, model.vocab_size: 2048, parallel.tensor_parallel_size: 2}
    - {name: first_step, run.steps: 1, data.batch_size: 16}
    - {name: bf16, precision: bfloat16, parallel.tensor_parallel_size: 2}
    - {name: sgd, run.optimizer.name: SGD, parallel.data_parallel_size: 2}
    - {name: fsdp2, parallel.data_parallel: fsdp, parallel.data_parallel_size: 2}
    - {name: fsdp3_tp2, parallel.data_parallel: fsdp, parallel.data_parallel_size: 3, data.uneven: true,
       parallel.tensor_parallel_size: 2, model.hidden_size: 56}
    - {name: fsdp2_no_reshard, parallel.data_parallel: fsdp, parallel.data_parallel_size: 2,
       parallel.fsdp.reshard_after_forward: false}
    - {name: fsdp5_bf16, parallel.data_parallel: fsdp, parallel.data_parallel_size: 5, data.uneven: true,
       precision: bfloat16}
    - {name: hybrid2_cp2, parallel.data_parallel: hybrid, parallel.replicate_size: 2,
       parallel.data_parallel_size: 2, parallel.context_parallel_size: 2}
    - {name: scoring, workload: logprobs, data.batch_size: 16}
"""


class Memory(unittest.TestCase):
    def held_between_steps(self, cases, described):
        """To the byte, of the first and the last rank."""
        described = iter(described)
        for case in cases:
            for rank in dict.fromkeys((0, case["world_size"] - 1)):
                said, *expected = (int(text) for text in next(described))
                measured = case["ranks"][rank]["metrics"]["held_bytes"]
                with self.subTest(case=case["name"], rank=rank):
                    self.assertEqual(said, rank)
                    names = ("parameters", "gradients", "optimizer")
                    self.assertEqual(expected, [measured[name] for name in names])
        self.assertIsNone(next(described, None))

    def test_predicted_and_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            scenario, out = Path(folder) / "memory.yaml", Path(folder) / "run"
            scenario.write_text(SCENARIO)
            subprocess.run([PROGRAM, "run", scenario, "--backend", "emulated", "--out", out], cwd=ROOT,
                           check=True, stdout=subprocess.DEVNULL)
            described = subprocess.run([PROGRAM, "describe", scenario], cwd=ROOT, check=True, text=True,
                                       stdout=subprocess.PIPE).stdout
            cases = json.loads((out / "results.json").read_text())["cases"]
        held = re.findall(r"rank (\d+) +parameters +(\d+) +gradients +(\d+) +optimizer +(\d+) bytes", described)
        self.held_between_steps(cases, held)
        predicted = [int(text) for text in re.findall(r"at most at once +(\d+) bytes", described)]
        self.assertEqual(len(predicted), len(cases))
        for case, bytes_predicted in zip(cases, predicted):
            measured = max(rank["peak_tensor_bytes"] for rank in case["ranks"])
            with self.subTest(case=case["name"], measured=measured, predicted=bytes_predicted):
                self.assertGreater(bytes_predicted, 0.8 * measured)
                self.assertLess(bytes_predicted, 1.25 * measured)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        PROGRAM = Path(sys.argv.pop(1)).resolve()
    unittest.main()
