#!/usr/bin/env python3
"""Clean runs of the frameworks' examples over layouts, seeds and dtypes, each judged: a mismatch is a false alarm.

    SHARDPROOF_PROGRAM=build/release/shardproof-bin FOLDER/bin/python tests/frameworks/clean_layouts.py [--count 200] [--first 1]

FOLDER is a virtual environment with the frameworks; the examples of those that it lacks are left out. Prints a line for each
run that does not match, and the counts. Exit status 1 if there is one.
"""

import argparse
import contextlib
import functools
import importlib.util
import itertools
import math
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(Path(__file__).parent)]
os.environ["DS_ACCELERATOR"] = "cpu"  # which DeepSpeed reads when it is imported

import clean_runs  # noqa: E402
import programs  # noqa: E402
import ranks  # noqa: E402
import shardproof  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

REPEATS = 16  # of the golden, below float64
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def megatron(train, options):
    programs.with_options(train, "TransformerConfig", params_dtype=options.dtype, pipeline_dtype=options.dtype,
                          sequence_parallel=options.tp > 1 and options.sequence_parallel)
    train.run(options)


def in_float64(train, options):
    with shardproof.float64():
        train.train(options)


def deepspeed(train, options):
    on_cpu = train.deepspeed_on_cpu
    on_cpu.switch_on(on_cpu.cpu_device, dist.get_rank(), dist.get_world_size())
    on_cpu.switch_on(on_cpu.no_shared_memory)
    if options.dtype == torch.float64:
        on_cpu.switch_on(on_cpu.float64_gradients)
        on_cpu.switch_on(on_cpu.float64_parts)
    in_float64(train, options)


@dataclass(frozen=True)
class Example:
    """The layouts of an example whose golden is the same."""

    name: str
    package: str
    run: object
    layouts: tuple  # sizes of axes, and options that the golden has not
    options: tuple = ()
    dtypes: tuple = DTYPES


EXAMPLES = (
    Example("megatron_core", "megatron", megatron,
            (dict(tp=2), dict(tp=2, sequence_parallel=False), dict(dp=2), dict(dp=2, tp=2), dict(pp=2), dict(pp=2, tp=2))),
    Example("megatron_core", "megatron", megatron, (dict(pp=2, vpp=2), dict(dp=2, pp=2)), (("layers", 4),)),
    Example("megatron_core", "megatron", megatron, (dict(ep=2), dict(ep=2, tp=2), dict(tp=2)), (("experts", True),)),
    Example("dtensor_fsdp2", "torch", in_float64, (dict(tp=2), dict(dp=2), dict(dp=2, tp=2), dict(dp=4))),
    Example("transformers_tp", "transformers", in_float64, (dict(tp=2), dict(dp=2), dict(dp=2, tp=2))),
    Example("deepspeed", "deepspeed", deepspeed, (dict(dp=2, stage=1), dict(dp=2, stage=2), dict(dp=2, stage=3)),
            dtypes=(torch.float64,)),
    Example("torchtitan", "torchtitan", in_float64, (dict(tp=2), dict(dp=2), dict(dp=2, tp=2)), dtypes=(torch.float64,)),
)
NO_AXES = ("sequence_parallel", "stage", "vpp")


def rank_main(_, example, train, options, seed, noise):
    """The example with another start and other batches; below float64 without its float64, and as a repeat if `noise`."""
    start, batch, record = torch.manual_seed, train.global_batch, shardproof.record
    torch.manual_seed = lambda number: start(1000 * seed + number)
    train.global_batch = lambda *given: batch(*given[:-1], 1000 * seed + given[-1])
    if options.dtype != torch.float64:
        torch.set_default_dtype(options.dtype)
        shardproof.float64 = contextlib.nullcontext
    if noise:
        shardproof.record = functools.partial(record, noise=noise)
    example.run(train, options)


class Runs:
    def __init__(self, scratch):
        self.scratch = scratch
        self.trains = {}

    def train_of(self, name):
        """Imported before ranks are forked."""
        if name not in self.trains:
            self.trains[name] = programs.example(name)
        return self.trains[name]

    def record(self, example, layout, seed, dtype, out, golden=None, noise=None):
        sizes = {axis: size for axis, size in layout.items() if axis not in NO_AXES}
        given = dict(tp=1, pp=1, vpp=1, ep=1, layers=2, steps=2, experts=False, stage=1, sequence_parallel=True)
        options = argparse.Namespace(**given | dict(example.options) | layout, dtype=dtype, out=out, golden=golden)
        ranks.run(math.prod(sizes.values()), rank_main, example, self.train_of(example.name), options, seed, noise)

    def of(self, example, seed, dtype):
        """Yields (layout, exit status, text of the judge)."""
        golden = tempfile.mkdtemp(dir=self.scratch) + "/one"
        self.record(example, {}, seed, torch.float64, golden)
        for noise in range(1, REPEATS + 1 if dtype != torch.float64 else 1):
            self.record(example, {}, seed, dtype, golden, golden, noise)
        for layout in example.layouts:
            out = tempfile.mkdtemp(dir=self.scratch) + "/run"
            self.record(example, layout, seed, dtype, out, golden)
            yield layout, *clean_runs.judged(out, golden)

    def all(self, count, first):
        """Yields (dtype, name, exit status, text), seed by seed; the dtype changes with each."""
        installed = [one for one in EXAMPLES if importlib.util.find_spec(one.package)]
        left = count
        for seed in itertools.count(first):
            for example in installed:
                dtype = DTYPES[seed % len(DTYPES)]
                dtype = dtype if dtype in example.dtypes else torch.float64
                for layout, status, text in self.of(example, seed, dtype):
                    if not left:
                        return
                    left -= 1
                    yield dtype, f"seed {seed} {example.name} {dict(example.options)} {layout}", status, text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--text", action="store_true", help="print what the judge says of each run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        return clean_runs.counted(Runs(scratch).all(options.count, options.first), options.text)


if __name__ == "__main__":
    sys.exit(main())
