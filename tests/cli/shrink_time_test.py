#!/usr/bin/env python3
"""Times `shrink` on a failing case of 16 ranks and 8 layers, for three faults: its smallest form is there within LIMIT_S.

Usage: shrink_time_test.py PROGRAM [unittest arguments]
"""
import re
import time

import cli_test

LIMIT_S = 60

CASE = """
name: t/wide
workload: train
model: {{vocab_size: 96, hidden_size: 48, intermediate_size: 64, num_hidden_layers: 8, num_attention_heads: 8,
        num_key_value_heads: 4}}
data: {{lengths: [17, 9, 23, 12, 5, 20, 8, 14]}}
run: {{steps: 2, loss: {{kind: clipped_pg}}, optimizer: {{name: SGD, kwargs: {{momentum: 0.5}}}},
      scheduler: {{name: LinearLR, kwargs: {{start_factor: 0.5, total_iters: 4}}}}}}
parallel: {{data_parallel_size: 2, context_parallel_size: 2, tensor_parallel_size: 4, sequence_parallel: true,
           data_parallel: fsdp}}
world: {{backend: emulated, digests: true, nodes: 2}}
faults: [{fault}]
expect: {{verdict: mismatch}}
"""

# What is planted, and the ranks and layers of the smallest case that has it.
FAULTS = {
    "tp": ("{kind: duplicate, rank: 6, op: reduce_scatter, axis: tp, label: mlp.down_proj}",
           {"tensor_parallel_size": 2}),
    "dp": ("{kind: corrupt, rank: 9, op: reduce_scatter, label: layers.* reduce}", {"data_parallel_size": 2}),
    "cp": ("{kind: corrupt, rank: 5, op: send, axis: cp, label: kv forward}",
           {"context_parallel_size": 2}),
}
AXES = ("data_parallel_size", "context_parallel_size", "ulysses_size", "tensor_parallel_size")


def sizes_of(text):
    return {axis: int(size) for axis, size in re.findall(r"^parallel\.(\w+_size): (\d+)", text, re.MULTILINE)}


class ShrinkTime(cli_test.CommandTest):
    def test_a_case_of_16_ranks_and_8_layers_becomes_small_within_a_minute(self):
        for name, (fault, needs) in FAULTS.items():
            with self.subTest(name):
                self.write("wide.yaml", CASE.format(fault=fault))
                start = time.monotonic()
                done = self.run_to_end("shrink", "wide.yaml", "--only", "t/wide", "--deadline", "180", "--out",
                                       f"{name}.yaml")
                seconds = time.monotonic() - start
                small = (self.folder / f"{name}.yaml").read_text()
                layers = re.search(r"^model\.num_hidden_layers: (\d+)", small, re.MULTILINE)
                shown = ", ".join(f"{axis} {size}" for axis, size in sizes_of(small).items() if size > 1)
                print(f"{name}: {seconds:.1f} s; {shown or 'one rank'}, {layers.group(1) if layers else 2} layers; "
                      f"{done.stdout.strip().splitlines()[0]}", flush=True)
                sizes = sizes_of(small)
                self.assertEqual({axis: sizes.get(axis, 1) for axis in AXES},
                                 {axis: needs.get(axis, 1) for axis in AXES}, small)
                self.assertLess(seconds, LIMIT_S)


if __name__ == "__main__":
    cli_test.main()
