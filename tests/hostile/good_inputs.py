"""Right inputs of every kind, made once by the program; each drawn input is a changed copy of one."""
import os
import random
import shutil
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, *(os.path.join(HERE, "..", folder) for folder in ("cli", "support"))]
import case_maker  # noqa: E402
import loaded  # noqa: E402
import logprobs_test  # noqa: E402
import recorded_test  # noqa: E402

LIMIT_S = 240  # a hang, not a wall-time test: these end in about a second
CASE = {"loss": {"kind": "nll", "eps": 0.2}, "optimizer": {"kind": "AdamW", "lr": 0.01, "betas": [0.9, 0.99],
        "eps": 1e-8, "weight_decay": 0.1, "max_norm": 1.0, "steps": 2}}
SCENARIOS = ["""
name: t/drawn
workload: train
model:
  family: llama
  vocab_size: 24
  hidden_size: 16
  intermediate_size: 24
  num_hidden_layers: 1
  num_attention_heads: 4
data: {lengths: [5, 3, 4, 2]}
run:
  steps: 2
  max_grad_norm: 0.5
  optimizer: {name: AdamW, kwargs: {lr: 0.01}}
seed: 7
matrix:
  mesh:
    - {name: one}
    - {name: tp2, parallel.tensor_parallel_size: 2}
tags: [smoke]
""", """
name: t/layer
workload: column_parallel_linear
parallel: {tensor_parallel_size: 2}
precision: float64
""", """
name: t/life
workload: policy
model: {vocab_size: 24, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1}
data: {lengths: [5, 3, 6, 2]}
parallel:
  data_parallel_size: 2
  data_parallel: fsdp
run:
  loss: {kind: clipped_pg}
  stages:
    - {do: score}
    - {do: train, train_global_batch_size: 2}
    - {do: save}
skip:
  - {when: {parallel.data_parallel_size: 4}, reason: two samples for each rank}
"""]
ENDED = """
name: t/ended
model: {vocab_size: 24, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1}
data: {lengths: [5, 3]}
matrix:
  parallel.tensor_parallel_size: [1, 2, 4]
  seed: [1, 2, 3, 4]
"""


def write(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return path


def read(path):
    with open(path, "rb") as file:
        return file.read()


def environment(folder):
    return dict(os.environ, HOME=folder, XDG_CACHE_HOME=os.path.join(folder, "cache"), NO_COLOR="1",
                MPLCONFIGDIR=os.path.join(folder, "cache"))


class Good:
    """Right inputs of every kind, made once; a draw changes a copy."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        case = os.path.join(folder, "case")
        os.makedirs(case)
        case_maker.make_case(case, [{"file": "case.json", "set": CASE}])
        self.call("golden", case, "--dump", os.path.join(case, "expected.safetensors"))
        self.call("judge", case, os.path.join(case, "expected.safetensors"))
        for name, seed in (("run", "1"), ("other", "2")):
            write(os.path.join(folder, name + ".yaml"), SCENARIOS[0])
            self.call("run", name + ".yaml", "--backend", "emulated", "--out", name, "--seed", seed)
        self.end_early()
        recorded_test.recorded().write(os.path.join(folder, "recorded", "golden"))
        recorded_test.recorded([("tp", 2)]).write(os.path.join(folder, "recorded", "run"))
        self.call("judge", "recorded/run", "--golden", "recorded/golden")
        self.logprobs()

    def call(self, *words):
        loaded.run([self.program, *words], cwd=self.folder, env=environment(self.folder), check=True,
                   timeout=LIMIT_S, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def end_early(self):
        write(os.path.join(self.folder, "ended.yaml"), ENDED)
        with subprocess.Popen([self.program, "run", "ended.yaml", "--backend", "emulated", "--out", "ended"],
                              cwd=self.folder, env=environment(self.folder), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            for _ in range(3):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)

    def logprobs(self):
        draw = random.Random(3)
        values = [[0.0] + [-draw.uniform(0.1, 9) for _ in range(15)] for _ in range(8)]
        ids = [[draw.randrange(50) for _ in range(16)] for _ in range(8)]
        os.makedirs(os.path.join(self.folder, "logprobs"))
        for name in ("a", "b"):
            logprobs_test.write_file(os.path.join(self.folder, "logprobs", name),
                                     {"logprobs": ("float64", values), "input_ids": ("int64", ids)},
                                     {"temperature": "1.0"})

    def copy(self, name, folder):
        source, target = os.path.join(self.folder, name), os.path.join(folder, name)
        (shutil.copytree if os.path.isdir(source) else shutil.copy)(source, target)
        return target
