"""Every class of torch.optim under FSDP2 on two ranks, with two groups of parameters: clean runs match, and a rate or states that
are wrong are found at the first step at which they show, with the cause. Minutes. SHARDPROOF_PROGRAM is the program."""

import re
import unittest
import warnings

import judging
import layouts
import models
import ranks
import torch
from torch.distributed.device_mesh import init_device_mesh

import shardproof

STEPS = 3
# What each class needs beside a rate. Those that stand for several rows have other states with these numbers.
OPTIONS = [("Adadelta", {}), ("Adagrad", {}), ("Adam", {}), ("Adam", {"amsgrad": True}), ("AdamW", {}), ("Adamax", {}),
           ("ASGD", {}), ("NAdam", {}), ("RAdam", {}), ("RMSprop", {}), ("RMSprop", {"momentum": 0.9, "centered": True}),
           ("SGD", {}), ("SGD", {"momentum": 0.9}), ("SGD", {"momentum": 0.8, "nesterov": True, "dampening": 0.0})]
# Of these FSDP2 runs none, or they take other parameters; Muon has tests of its own.
LEFT_OUT = {"Adafactor", "LBFGS", "Muon", "Optimizer", "Rprop", "SparseAdam"}
BUGS = ("rate", "rate there", "lost", "lost there", "moved", "moved there")


def spoil(optimizer, bug, rank, step):
    """Before the step of this number, from 0."""
    if not bug or bug.endswith("there") and rank != 1:
        return
    if bug.startswith("rate"):
        for group in optimizer.param_groups:
            group["lr"] *= 2 if step == 0 else 1
    if step != 1 or bug.startswith("rate"):
        return
    for state in optimizer.state.values():
        for name, value in state.items():
            if not torch.is_tensor(value) or value.dim() == 0:
                continue
            local = value.to_local()
            local.copy_(torch.zeros_like(local) if bug.startswith("lost") else local.flatten().roll(3).reshape(local.shape))


def train(rank, out, golden, name, options, bug=""):
    with shardproof.float64():
        model = models.build()
        if golden:
            layouts.shard(model, init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)), by_tp=False)
        ends, others = models.halves(model)
        optimizer = getattr(torch.optim, name)([{"params": ends, "lr": 0.01}, {"params": others}], lr=0.02, **options)
        if golden:
            shardproof.load(model, golden)
        with shardproof.record(model, optimizer, out=out) as rec:
            for step in range(STEPS):
                tokens, targets = (shardproof.batch(one) for one in models.global_batch(step))
                optimizer.zero_grad()
                loss = -models.logprobs_of(model(tokens), targets).mean()
                loss.backward()
                with torch.no_grad():
                    spoil(optimizer, bug, rank, step)
                optimizer.step()
                rec.scalar("loss", loss, mean_over=("dp",))


def has_moments(name, options):
    """Whether a state of the first step has an effect on the second one."""
    return name != "ASGD" and (name != "SGD" or "momentum" in options)


@judging.needs_program
class EveryOptimizerTest(judging.RunsTest):
    def setUp(self):
        super().setUp()
        warnings.simplefilter("ignore")

    def judged(self, *case):
        ranks.run(2, train, self.out, self.golden, *case)
        status, text = self.judge()
        return status, re.sub(r"\s+", " ", text)

    def test_no_class_is_forgotten(self):
        there = {name for name, one in vars(torch.optim).items() if isinstance(one, type) and issubclass(one, torch.optim.Optimizer)}
        self.assertEqual(there - LEFT_OUT, {name for name, _ in OPTIONS})

    def test_every_class(self):
        for name, options in OPTIONS:
            ranks.run(1, train, self.golden, None, name, options)
            with self.subTest(name=name, **options):
                status, text = self.judged(name, options)
                self.assertEqual(status, 0, text)
            for bug in BUGS:
                if not bug.startswith("rate") and not has_moments(name, options):
                    continue
                with self.subTest(bug, name=name, **options):
                    status, text = self.judged(name, options, bug)
                    self.assertEqual(status, 1, text)
                    self.assertIn(" of step 1 " if bug.startswith("rate") else " of step 2 ", text)
                    self.assertRegex(text, {"rate": "moved by 2", "lost": "empty states|was lost",
                                            "move": "another place of a flat buffer"}[bug[:4]])
                    if bug.endswith("there"):
                        self.assertIn("on rank 1 only", text)


if __name__ == "__main__":
    unittest.main()
