"""The examples are recorded and judged clean against one rank: DTensor with FSDP2, DeepSpeed ZeRO 1 to 3, transformers' Llama
and torchtitan's llama3 (megatron_test.py has the others), and the share of gradients of Megatron's distributed optimizer. The
script that reproduces a bug of Megatron-core is judged, too.

SHARDPROOF_PROGRAM is the program; without it, or without a framework, its tests are skipped (README.md here).
"""

import argparse
import importlib
import importlib.util
import math
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "python"), str(Path(__file__).parent)]

import in_fork  # noqa: E402
import judging  # noqa: E402
import ranks  # noqa: E402
import runs  # noqa: E402
import torch  # noqa: E402
import unresolved  # noqa: E402
from programs import example, with_options  # noqa: E402


def is_installed(package):
    return importlib.util.find_spec(package) is not None


@judging.needs_program
class ExamplesTest(judging.SaidTest):
    def record(self, rank_main, sizes, **options):
        """Records the golden and the run, and returns their folders."""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        golden, run = (argparse.Namespace(out=f"{folder}/{name}", golden=start, steps=2, device="cpu",
                                             **dict(tp=1) | options)
                       for name, start in (("golden", None), ("run", f"{folder}/golden")))
        vars(run).update(sizes)
        ranks.run(1, rank_main, golden)
        ranks.run(math.prod(sizes.values()), rank_main, run)
        return Path(golden.out), Path(run.out)

    def check(self, rank_main, sizes, status=0, texts=("MATCH",), name=None, **options):
        """Returns the folder of the run, which a match counts as one of the example of this name."""
        golden, run = self.record(rank_main, sizes, **options)
        judged = judging.judge(run, golden)
        print(judged[1], flush=True)
        self.expect(judged, status, *texts)
        self.assertNotIn("not compared", judged[1])
        if name and status == 0:
            unresolved.check(self, name, judged[1])
        return run

    def check_in_float64(self, name, sizes, **options):
        train = example(name)

        def rank_main(_, options):
            with train.shardproof.float64():
                train.train(options)
        return self.check(rank_main, sizes, name=name, **options)

    @unittest.skipUnless(is_installed("pytest"), "pytest is not installed")
    def test_the_tests_of_dtensor_and_fsdp2(self):
        """Those on which docs/score.md shows its command. Else each rank imports torch._dynamo, which its optimizer needs."""
        path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
        plugins = ["-p", "no:cacheprovider", "-p", "torch._dynamo"]
        done = in_fork.run(importlib.import_module("pytest").main, ["-q", *plugins, "test_train.py"],
                           ROOT / "examples" / "dtensor_fsdp2", dict(os.environ, PYTHONPATH=path))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("3 passed", done.stdout)

    def test_dtensor_and_fsdp2(self):
        run = self.check_in_float64("dtensor_fsdp2", dict(tp=2, dp=2))
        norms = runs.pieces(run, name="grad_norm", step=1)
        self.assertEqual(len(norms), 4)
        self.assertEqual(len({float(norm) for _, _, norm in norms}), 1)
        self.assertTrue(runs.names(run, kind="logprobs", step=2))

    @unittest.skipUnless(is_installed("torchtitan"), "torchtitan is not installed")
    def test_torchtitan(self):
        self.check_in_float64("torchtitan", dict(tp=2, dp=2), ep=1, experts=False)

    def in_stages(self, schedule, change=lambda train: None, **judged):
        """The example of torch.distributed.pipelining on two ranks, changed by `change` there."""
        train = example("torch_pipelining")

        def rank_main(_, options):
            if options.golden:
                change(train)
            with train.shardproof.float64():
                train.train(options)
        return self.check(rank_main, dict(pp=2), schedule=schedule, name="torch_pipelining", **judged)

    def test_every_schedule_of_torch_pipelining(self):
        for schedule in example("torch_pipelining").SCHEDULES:
            with self.subTest(schedule=schedule):
                run = self.in_stages(schedule)
                self.assertEqual({rank for rank, _, _ in runs.pieces(run, name="embedding.weight", kind="grad")}, {0})

    def test_faults_in_the_stages_of_torch_pipelining(self):
        def unscaled(train):
            class Unscaled(train.schedules.Schedule1F1B):
                def __init__(self, *given, **options):
                    super().__init__(*given, **options, scale_grads=False)
            train.SCHEDULES["1f1b"] = (Unscaled, 1)

        def last_microbatch_alone(train):
            class LastAlone(train.PipelineStage):
                def backward_one_chunk(self, *given, **options):
                    if not self.is_last:
                        self.submod.zero_grad()
                    return super().backward_one_chunk(*given, **options)
            train.PipelineStage = LastAlone

        def third_microbatch_without_mask(train):
            class Unmasked(train.Layer):
                passes = 0

                def forward(self, x):
                    self.passes += torch.is_grad_enabled()  # a pass before them finds out the shapes
                    if train.dist.get_rank() == 0 or self.passes != 3:
                        return super().forward(x)
                    with mock.patch.object(train.F, "scaled_dot_product_attention", lambda q, k, v, is_causal: attend(q, k, v)):
                        return super().forward(x)
            attend, train.Layer = train.F.scaled_dot_product_attention, Unmasked
        self.in_stages("1f1b", unscaled, status=1, texts=["grad.head.bias", "every element is 4.00 x golden"])
        self.in_stages("1f1b", last_microbatch_alone, status=1, texts=["grad.layers.3.", "on rank 0 (pp 0)", "a part of the batch does not count, such as a microbatch"])
        self.in_stages("1f1b", third_microbatch_without_mask, status=1,
                       texts=["layers.4.out.output   [8, 12, 32]   of step 1   part [4:6, 0:12, 0:32]", "on rank 1 (pp 1)",
                              "so is layers.4.qkv.output before it"])

    def test_muon_and_a_resume_at_another_number_of_ranks(self):
        """The commands of its README, with each bug and without one."""
        script = example("muon_resume")
        folder = self.enterContext(tempfile.TemporaryDirectory())
        golden, run, checkpoint, codes = (f"{folder}/{name}" for name in ("golden", "run", "checkpoint", "codes"))

        def rank_main(_, *words):
            script.main(script.options_of(words))

        def judged(world_size, *words):
            ranks.run(world_size, rank_main, "--out", run, *words)
            return judging.judge(run, golden)

        ranks.run(1, rank_main, "--out", golden, "--steps", "4")
        trained = (2, "--golden", golden, "--steps", "4")
        resumed = (4, "--load", checkpoint, "--from-step", "2")
        ranks.run(2, rank_main, "--out", f"{folder}/first", "--golden", golden, "--save", checkpoint)
        for given, text in ((trained, ""), ((*trained, "--bug", "shard"), "the rank makes its own part orthogonal alone"),
                            ((*trained, "--bug", "rate"), "moved by 2 x"), (resumed, "resumed after step 2"),
                            ((*resumed, "--bug", "lost"), "momentum_buffer.qkv.weight")):
            status, said = judged(*given)
            self.expect((status, said), 1 if "--bug" in given else 0, text)
            if status == 0:
                unresolved.check(self, "muon_resume", said)
        ranks.run(2, rank_main, "--coded", "--save", codes)
        ranks.run(4, rank_main, "--coded", "--load", codes)
        with self.assertRaisesRegex(AssertionError, "param.qkv.weight holds param.qkv.weight"):
            ranks.run(4, rank_main, "--coded", "--load", codes, "--bug", "rows")

    @unittest.skipUnless(is_installed("transformers"), "transformers is not installed")
    def test_transformers(self):
        self.check_in_float64("transformers_tp", dict(tp=2, dp=2))

    @unittest.skipUnless(is_installed("deepspeed"), "deepspeed is not installed")
    def test_deepspeed(self):
        os.environ["DS_ACCELERATOR"] = "cpu"  # which it reads when it is imported
        import deepspeed  # noqa: F401
        train = example("deepspeed")

        def rank_main(rank, options):
            train.on_cpu(rank, train.dist.get_world_size(), options.stage)
            with train.shardproof.float64():
                train.train(options)
        for stage in (1, 2, 3):
            with self.subTest(stage=stage):
                run = self.check(rank_main, dict(dp=2), stage=stage, name="deepspeed")
                self.assertEqual({line["source"] for _, line, _ in runs.pieces(run, kind="grad")}, {"deepspeed"})

    @unittest.skipUnless(is_installed("megatron"), "megatron-core is not installed")
    def test_the_share_of_megatrons_distributed_optimizer(self):
        """Its gradients alone: the example's optimizer steps on more than the share of a rank."""
        train = example("megatron_core")

        def rank_main(_, options):
            if options.golden:  # buckets that cut parameters in the middle
                with_options(train, "DistributedDataParallelConfig", use_distributed_optimizer=True, bucket_size=3000)
            train.run(options)
        golden, run = self.record(rank_main, dict(tp=2, dp=2), pp=1, vpp=1, ep=1, etp=None,
                                  dispatcher="allgather", layers=2, experts=False)
        wanted = dict(kind="grad", step=1)
        self.assertEqual(runs.names(run, **wanted), runs.names(golden, **wanted))
        for name in runs.names(golden, **wanted):
            torch.testing.assert_close(runs.whole(run, name=name, **wanted), runs.whole(golden, name=name, **wanted),
                                       rtol=0, atol=1e-12)

    @unittest.skipUnless(is_installed("megatron"), "megatron-core is not installed")
    def test_label_smoothing_is_wrong_in_megatron(self):
        """The script that reproduces it: a bug of the installed version, which is gone without smoothing."""
        script = example("megatron_core", "label_smoothing")

        def rank_main(_, options):
            script.cuda_on_cpu.install()
            script.parallel_state.initialize_model_parallel(options.tp)
            with script.cuda_on_cpu.OnCpu(), script.shardproof.float64():
                script.train(options)
        self.check(rank_main, dict(tp=2), smoothing=0.0)
        self.check(rank_main, dict(tp=2), 1, ["loss   of step 1", "the ranks of tp do not agree"], smoothing=0.1)


if __name__ == "__main__":
    unittest.main()
