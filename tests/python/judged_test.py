"""Recorded runs through the judge, `shardproof judge RUN --golden RUN1`: right ones match, and planted bugs are named
with tensor and ranks. SHARDPROOF_PROGRAM is the program; without it the tests are skipped."""

import unittest

import judging
import layouts
import models
import ranks
import torch
from torch.distributed.device_mesh import init_device_mesh

import shardproof

STEPS = 2
SIZES = (2, 2)  # dp, tp


def scaled(model, name, factor):
    for found, parameter in model.named_parameters():
        if name in found:
            layouts.local(parameter.grad).mul_(factor)


# What goes wrong after the backward of a step, by the rank's coordinates.
BUGS = {
    "": lambda model, dp, tp: None,
    "sum instead of mean": lambda model, dp, tp: scaled(model, "", SIZES[0]),
    "norms of one tp rank": lambda model, dp, tp: scaled(model, "norm", 0.5) if tp == 1 else None,
    "one dp rank's head": lambda model, dp, tp: scaled(model, "head", 0.0) if dp == 1 else None,
}


def train(rank, out, sizes, golden, bug, microbatches=1, kept=1):
    """Two steps over (dp, tp). Of the microbatches only the last `kept` leave their gradient."""
    model = models.build()
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp"))
    if mesh.size() > 1:
        layouts.shard(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if golden:
        shardproof.load(model, golden)
    with shardproof.record(model, optimizer, out=out) as rec:
        for step in range(STEPS):
            tokens, targets = shardproof.batch(*models.global_batch(step))
            losses = []
            for part, wanted in zip(tokens.chunk(microbatches), targets.chunk(microbatches)):
                if len(losses) <= microbatches - kept:
                    optimizer.zero_grad()
                losses.append(-models.logprobs_of(model(part), wanted).mean() / microbatches)
                losses[-1].backward()
            BUGS[bug](model, *divmod(rank, sizes[1]))
            optimizer.step()
            optimizer.zero_grad()
            rec.scalar("loss", sum(losses), mean_over=("dp",))


def score(rank, out, golden, zigzag=False, shift=0):
    """Logprobs over (dp, cp), each rank's positions by rec.tensor. A shift exchanges the stretches of the cp ranks."""
    model, (dp, cp) = models.build(), divmod(rank, 2)
    if golden:
        shardproof.load(model, golden, mesh={"dp": 2, "cp": 2})
    with shardproof.record(model, out=out) as rec:
        tokens, targets = models.global_batch(0, length=8)
        mine, wanted = shardproof.batch(tokens, targets)
        logprobs = models.logprobs_of(model(mine), wanted)
        if not golden:
            rec.logprobs(logprobs)
        elif zigzag:
            for place, part in ((cp, (cp + shift) % 2), (3 - cp, 3 - (cp + shift) % 2)):
                rec.tensor("logprobs", logprobs[:, 2 * part:2 * part + 2], kind="logprobs", offset=(2 * dp, 2 * place),
                           global_shape=tokens.shape)
        else:
            rec.tensor("logprobs", logprobs.chunk(2, 1)[(cp + shift) % 2], kind="logprobs", offset=(2 * dp, 4 * cp),
                       global_shape=tokens.shape)
        rec.stepped()


@judging.needs_program
class JudgedRunTest(judging.SharedRunsTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.golden = cls.folder / "one"
        ranks.run(1, train, cls.golden, (1, 1), None, "")
        cases = [(bug, 1, 1) for bug in BUGS] + [("", 2, 2), ("", 2, 1)]
        ranks.run_each(SIZES[0] * SIZES[1], train, [(cls.out(*case), SIZES, cls.golden, *case) for case in cases])

    @classmethod
    def out(cls, *case):
        return cls.folder / "-".join(map(str, case))

    def judged(self, bug="", microbatches=1, kept=1):
        return judging.judge(self.out(bug, microbatches, kept), self.golden)

    def test_a_right_run_matches(self):
        self.expect(self.judged(), 0, "MATCH", "dp=2 tp=2", "(one rank)")

    def test_right_microbatches_match(self):
        self.expect(self.judged(microbatches=2, kept=2), 0, "MATCH")

    def test_only_the_last_microbatch_counts(self):
        self.expect(self.judged(microbatches=2, kept=1), 1, "MISMATCH", "grad.head.weight", "of step 1",
                    "10 of 10 gradients of step 1 are wrong")

    def test_gradients_are_summed_over_dp(self):
        self.expect(self.judged("sum instead of mean"), 1, "grad.head.weight", "every element is 2.00 x golden",
                    "2 is the size of dp")

    def test_norms_of_one_tp_rank(self):
        self.expect(self.judged("norms of one tp rank"), 1, "grad.layers.1.norm", "0.5 (1/2) x golden",
                    "(tp 1)", "4 of 10 gradients", "all with 'norm' in their name, and no others")

    def test_the_head_of_one_dp_rank(self):
        self.expect(self.judged("one dp rank's head"), 1, "grad.head.weight", "every element is 0", "(dp 1)")

    def test_logprobs_of_a_sequence_that_is_cut_over_ranks(self):
        golden, out = self.folder / "scored", self.folder / "cut"
        ranks.run(1, score, golden, None)
        for zigzag in (False, True):
            for shift, status in ((0, 0), (1, 1)):
                ranks.run(4, score, out, golden, zigzag, shift)
                self.expect(judging.judge(out, golden), status)


if __name__ == "__main__":
    unittest.main()
