"""Runs the scripts in examples/ on one rank and on several, and puts the recorded pieces together."""

import argparse
import importlib.util
import os
import sys
import tempfile
import unittest
from pathlib import Path

import ranks
import runs
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
os.environ.setdefault("DS_ACCELERATOR", "cpu")


def script(name):
    """The module of an example's train.py."""
    folder = str(EXAMPLES / name)
    sys.path.insert(0, folder)
    try:
        spec = importlib.util.spec_from_file_location(f"train_{name}", f"{folder}/train.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(folder)


def installed(package):
    return importlib.util.find_spec(package) is not None


class ExampleTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.golden, self.sharded = Path(folder.name) / "golden", Path(folder.name) / "run"

    def train(self, function, world_size, golden=None, **options):
        out = self.sharded if golden else self.golden
        options = argparse.Namespace(out=str(out), golden=golden and str(golden), steps=2, **options)
        ranks.run(world_size, lambda rank: function(rank, options))

    def compare(self, allowed, kinds=("grad", "param", "opt")):
        for kind in kinds:
            names = runs.names(self.golden, kind=kind, step=2)
            self.assertEqual(names, runs.names(self.sharded, kind=kind, step=2))
            self.assertTrue(names)
            for name in names:
                wanted = {"kind": kind, "name": name, "step": 2}
                torch.testing.assert_close(runs.whole(self.sharded, **wanted), runs.whole(self.golden, **wanted),
                                           rtol=0, atol=allowed, msg=lambda text: f"{name}: {text}")

    def test_dtensor_and_fsdp2(self):
        example = script("dtensor_fsdp2")

        def rank_main(rank, options):
            with example.shardproof.float64():
                example.train(options)
        self.train(rank_main, 1, tp=1)
        self.train(rank_main, 4, self.golden, tp=2)
        self.compare(1e-12, ("grad", "param", "opt", "logprobs"))
        norms = runs.pieces(self.sharded, name="grad_norm", step=1)
        self.assertEqual(len({float(norm) for _, _, norm in norms}), 1)

    @unittest.skipUnless(installed("transformers"), "transformers is not installed")
    def test_transformers(self):
        example = script("transformers_tp")

        def rank_main(rank, options):
            with example.shardproof.float64():
                example.train(options)
        self.train(rank_main, 1, tp=1)
        self.train(rank_main, 4, self.golden, tp=2)
        self.compare(1e-9, ("grad", "param", "opt", "logprobs"))

    @unittest.skipUnless(installed("megatron"), "megatron-core is not installed")
    def test_megatron_core(self):
        example = script("megatron_core")
        for experts, layouts in ((False, (dict(tp=2), dict(pp=2, tp=2), dict(tp=2, dp=2))),
                                 (True, (dict(ep=2), dict(ep=2, tp=2)))):
            common = dict(tp=1, pp=1, vpp=1, ep=1, layers=2, experts=experts)
            self.train(lambda _, options: example.run(options), 1, **common)
            for layout in layouts:
                with self.subTest(experts=experts, **layout):
                    world_size = torch.tensor(list(layout.values())).prod().item()
                    options = common | {name: size for name, size in layout.items() if name != "dp"}
                    self.train(lambda _, options: example.run(options), world_size, self.golden, **options)
                    self.compare(1e-12)

    @unittest.skipUnless(installed("megatron"), "megatron-core is not installed")
    def test_the_share_of_megatrons_distributed_optimizer(self):
        example = script("megatron_core")
        common = dict(pp=1, vpp=1, ep=1, layers=2, experts=False)

        def rank_main(rank, options):
            settings = example.DistributedDataParallelConfig
            example.DistributedDataParallelConfig = lambda **given: settings(
                **given, use_distributed_optimizer=True, bucket_size=3000)  # cuts parameters in the middle
            example.run(options)
        self.train(lambda _, options: example.run(options), 1, tp=1, **common)
        self.train(rank_main, 4, self.golden, tp=2, **common)
        for name in runs.names(self.golden, kind="grad", step=1):
            wanted = {"kind": "grad", "name": name, "step": 1}
            torch.testing.assert_close(runs.whole(self.sharded, **wanted), runs.whole(self.golden, **wanted),
                                       rtol=0, atol=1e-12)

    @unittest.skipUnless(installed("deepspeed"), "deepspeed is not installed")
    def test_deepspeed(self):
        example = script("deepspeed")

        def rank_main(rank, options):
            example.on_cpu(rank, torch.distributed.get_world_size(), options.stage)
            with example.shardproof.float64():
                example.train(options)
        for stage in (1, 2, 3):
            with self.subTest(stage=stage):
                self.train(rank_main, 1, stage=stage)
                self.train(rank_main, 2, self.golden, stage=stage)
                self.compare(1e-9)
                sources = {line["source"] for _, line, _ in runs.pieces(self.sharded, kind="grad")}
                self.assertEqual(sources, {"deepspeed"})


if __name__ == "__main__":
    unittest.main()
