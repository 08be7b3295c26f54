"""DeepSpeed ZeRO 1 to 3 on two ranks, with buckets that are smaller than the embedding: clean runs are no alarm, and a rate and
moments that are wrong are found at the first step at which they show, with the cause.

SHARDPROOF_PROGRAM is the program; without it, or without deepspeed, the tests are skipped (README.md here).
"""

import os
import re
import unittest

import examples_test
import judging
import torch
from programs import example

BUCKET = 200  # elements; the embedding has 1024
CAUSES = {"rate": (1, "moved by 2"), "lost": (2, "began from empty states"), "moved": (2, "another place of a flat buffer")}


def spoil(optimizer, bug):
    """Before a step of the optimizer within ZeRO, whose parameters are flat parts: in the second step of each."""
    for state in optimizer.state.values():
        if int(state.get("step", 0)) != 1:
            continue
        for name in ("exp_avg", "exp_avg_sq"):
            state[name].copy_(torch.zeros_like(state[name]) if bug == "lost" else state[name].roll(3))


def rank_main(rank, options):
    os.environ["DS_ACCELERATOR"] = "cpu"  # which it reads when it is imported
    import deepspeed
    train, initialize = example("deepspeed"), deepspeed.initialize
    train.on_cpu(rank, train.dist.get_world_size(), options.stage)
    on_cpu = train.deepspeed_on_cpu
    if options.stage == 3:  # which reduces in float32 otherwise, and the judge says so
        on_cpu.switch_on(on_cpu.float64_gradients)
        on_cpu.switch_on(on_cpu.float64_communication)
    is_spoiled = bool(options.golden and options.bug) and (rank == 1 or not options.there)

    def initialized(*, config, optimizer, **given):
        config["zero_optimization"].update(reduce_bucket_size=BUCKET, allgather_bucket_size=BUCKET,
                                           reduce_scatter=options.stage < 3)
        if is_spoiled and options.bug == "rate":
            for group in optimizer.param_groups:
                group["lr"] *= 2
        elif is_spoiled:
            optimizer.register_step_pre_hook(lambda one, *_: spoil(one, options.bug))
        return initialize(config=config, optimizer=optimizer, **given)
    deepspeed.initialize = initialized
    with train.shardproof.float64():
        train.train(options)


@judging.needs_program
@unittest.skipUnless(examples_test.is_installed("deepspeed"), "deepspeed is not installed")
class ZeroTest(judging.SaidTest):
    record = examples_test.ExamplesTest.record

    def test_clean_runs_match(self):
        for stage in (1, 2, 3):
            with self.subTest(stage=stage):
                self.judged(0, "MATCH", stage=stage, bug="", there=False)

    def test_wrong_steps_are_named(self):
        for stage in (1, 2, 3):
            for bug, (step, cause) in CAUSES.items():
                for there in (False, True):
                    with self.subTest(stage=stage, bug=bug, there=there):
                        text = self.judged(1, cause, stage=stage, bug=bug, there=there)
                        self.assertRegex(text, rf"tensor \S+ .*of step {step} ")

    def judged(self, status, text, **options):
        golden, run = self.record(rank_main, dict(dp=2), **options)
        found, said = judging.judge(run, golden)
        said = re.sub(r"\s+", " ", said)
        self.expect((found, said), status, text)
        return said


if __name__ == "__main__":
    unittest.main()
