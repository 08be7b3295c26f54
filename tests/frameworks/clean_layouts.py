#!/usr/bin/env python3
"""Clean runs of the frameworks' examples and of hand-written ones, each judged: a mismatch is a false alarm.

    SHARDPROOF_PROGRAM=build/release/shardproof-bin FOLDER/bin/python tests/frameworks/clean_layouts.py [--count 200]

The runs are those of clean_examples.py over layouts, seeds and dtypes, and a seed draws sizes and options. FOLDER is a
virtual environment with the frameworks; the runs of those that it lacks are counted as left out. Prints a line for each run,
what the judge says of one that does not match, and the counts. Exit status 1 if there is one.

With --plant, the last rank of each run doubles the gradient that enters its first layer, and all runs must mismatch.
"""

import argparse
import contextlib
import importlib
import importlib.util
import itertools
import math
import random
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(Path(__file__).parent)]

import clean_runs  # noqa: E402
import judging  # noqa: E402
import layouts  # noqa: E402
import programs  # noqa: E402
import ranks  # noqa: E402
import shardproof  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from clean_examples import EXAMPLES, draw_optimizer  # noqa: E402

REPEATS = 16  # of the golden, below float64
FAILED = "failed"
AXES = ("dp", "tp", "pp", "ep")
NO_OPTIONS = dict(tp=1, pp=1, vpp=1, ep=1, etp=None, dispatcher="allgather", dp=1, layers=2, experts=False, stage=1,
                  sequence_parallel=True, kind="hand", device="cpu")


def doubled(models):
    """Plants a bug: the gradient of the output of the first layer is doubled on this rank."""
    def on_output(_, __, output):
        if output.requires_grad:
            output.register_hook(lambda gradient: 2 * gradient)
    layers = (module for model in models for module in model.modules()
              if not list(module.children()) and list(module.parameters(recurse=False)))
    next(layers).register_forward_hook(on_output)


def rank_main(rank, example, train, options, noises, is_planted):
    """The example with another start, other batches and what the seed draws; below float64 without its float64."""
    start, batch, record = torch.manual_seed, getattr(train, "global_batch", None), shardproof.record
    torch.manual_seed = lambda number: start(1000 * options.seed + number)
    if batch:
        train.global_batch = lambda *given: batch(*given[:-1], 1000 * options.seed + given[-1])
    if options.dtype != torch.float64:
        torch.set_default_dtype(options.dtype)
        shardproof.float64 = contextlib.nullcontext
    draw = random.Random(f"{options.seed} {example.name} {example.options}")
    options.steps = draw.choice((1, 2, 3))
    draw_optimizer(draw, ("adamw",) if example.name == "deepspeed" else ("adamw", "adamw", "sgd"))
    example.prepare(train, options, draw)

    def recorded(model, *given, **more):
        if is_planted and rank == dist.get_world_size() - 1:
            doubled(model if isinstance(model, list) else [model])
        return record(model, *given, **dict(noise=options.noise) | {name: one for name, one in more.items() if one is not None})
    shardproof.record = recorded
    for options.noise in noises:
        example.run(train, options)


class Runs:
    def __init__(self, scratch, is_planted=False):
        self.scratch = scratch
        self.is_planted = is_planted
        self.trains = {}

    def train_of(self, example):
        """Imported before ranks are forked, with the framework."""
        if example.name not in self.trains:
            importlib.import_module(example.package)
            self.trains[example.name] = layouts if example.name == "hand_written" else programs.example(example.name)
        return self.trains[example.name]

    def record(self, example, layout, seed, dtype, run_dtype, out, golden=None, noises=(None,)):
        options = argparse.Namespace(**NO_OPTIONS | dict(example.options) | layout, seed=seed, dtype=dtype,
                                     run_dtype=run_dtype, out=out, golden=golden)
        size = math.prod(size for axis, size in layout.items() if axis in AXES)
        ranks.run(size, rank_main, example, self.train_of(example), options, noises, self.is_planted and bool(layout))

    def of(self, example, seed, dtype, count):
        """Yields (layout, exit status, text of the judge) of the first `count` layouts. The status is FAILED for a run that
        raises, and its text what it raised."""
        folder = tempfile.mkdtemp(dir=self.scratch)
        golden, problem = f"{folder}/one", ""
        try:
            self.record(example, {}, seed, torch.float64, dtype, golden)
            if dtype != torch.float64:
                self.record(example, {}, seed, dtype, dtype, golden, golden, range(1, REPEATS + 1))
        except AssertionError as error:
            problem = f"the golden: {error}"
        for number, layout in enumerate(example.layouts[:count]):
            yield layout, *((FAILED, problem) if problem else self.judged(example, layout, seed, dtype, folder, number))
        shutil.rmtree(folder)

    def judged(self, example, layout, seed, dtype, folder, number):
        try:
            self.record(example, layout, seed, dtype, dtype, f"{folder}/{number}", f"{folder}/one")
        except AssertionError as error:
            return FAILED, str(error)
        return judging.judge(f"{folder}/{number}", f"{folder}/one")

    def all(self, count, first, chosen=()):
        """Yields (dtype, name, exit status, text), seed by seed; the status is None where a framework is missing."""
        left = count
        for seed in itertools.count(first):
            for number, example in enumerate(EXAMPLES):
                dtype = example.dtypes[(seed + number) % len(example.dtypes)]
                name, runs = f"seed {seed} {example.name} {dict(example.options)}", example.layouts[:left]
                left -= len(runs)
                if not runs:
                    return
                missing = importlib.util.find_spec(example.package) is None
                if missing or chosen and example.name not in chosen:
                    for layout in runs:
                        yield dtype, f"{name} {layout}", None, (
                            f"{example.package} is not installed" if missing else f"{example.name} is not chosen")
                    continue
                for layout, status, text in self.of(example, seed, dtype, len(runs)):
                    yield dtype, f"{name} {layout}", status, text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--only", default="", help="names of examples, separated by commas; the others are left out")
    parser.add_argument("--text", action="store_true", help="print what the judge says of each run")
    parser.add_argument("--plant", action="store_true", help="double a gradient on the last rank of each run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        runs = Runs(scratch, options.plant).all(options.count, options.first, list(filter(None, options.only.split(","))))
        return clean_runs.counted(runs, options.text)


if __name__ == "__main__":
    sys.exit(main())
