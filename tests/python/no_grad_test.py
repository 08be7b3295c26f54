"""Passes without gradients: what is recorded of them is what a training pass gives, to the bit, and a rank that is wrong in
them alone is found. SHARDPROOF_PROGRAM is the program; without it the judged tests are skipped."""

import unittest

import judging
import models
import ranks
import runs
import torch
import torch.distributed as dist

import shardproof

MODES = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


def score(rank, out, golden=None, mode="no_grad", wrong=None, hashes=()):
    """Scores each batch without gradients, and makes no step."""
    model = models.build()
    if golden:
        shardproof.load(model, golden)
    with shardproof.record(model, out=out, activations="layers.*", hashes=hashes) as rec:
        for step in range(2):
            tokens, targets = shardproof.batch(*models.global_batch(step))
            with MODES[mode]():
                if rank == wrong:
                    model.layers[1].up.weight[0, 0] += 1e-3
                rec.logprobs(models.logprobs_of(model(tokens), targets))
            rec.stepped()


def train(rank, out, golden=None, wrong=None):
    """Scores each batch without gradients, and trains on it."""
    model = models.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if golden:
        shardproof.load(model, golden)
    with shardproof.record(model, optimizer, out=out) as rec:
        for step in range(2):
            tokens, targets = shardproof.batch(*models.global_batch(step))
            with torch.no_grad():
                scores = models.logprobs_of(model(tokens), targets)
                rec.tensor("scores", scores * (1 + 1e-6 * (rank == wrong)), kind="logprobs")
            logprobs = models.logprobs_of(model(tokens), targets)
            (-logprobs.mean()).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
            optimizer.step()
            optimizer.zero_grad()
            rec.logprobs(logprobs)


class RecordedTest(judging.RunsTest):
    def test_a_pass_without_gradients_gives_what_a_training_pass_gives(self):
        ranks.run(1, train, self.out)
        for step in (1, 2):
            scores, logprobs = (runs.pieces(self.out, kind="logprobs", name=name, step=step) for name in ("scores", "logprobs"))
            self.assertEqual((len(scores), len(logprobs)), (1, 1))
            self.assertTrue(torch.equal(scores[0][2], logprobs[0][2]))

    def test_only_outputs_are_recorded_of_a_run_that_scores(self):
        for mode in MODES:
            ranks.run(1, lambda rank: score(rank, self.out, mode=mode, hashes="head"))
            self.assertEqual({line["kind"] for _, line, _ in runs.pieces(self.out)}, {"param", "act", "logprobs"})
            for step in (1, 2):
                tokens, targets = models.global_batch(step - 1)
                model = models.build()
                found = runs.whole(self.out, kind="logprobs", name="logprobs", step=step)
                self.assertTrue(torch.equal(found, models.logprobs_of(model(tokens), targets).detach()), mode)
                hidden = model.layers[0](model.embed(tokens)).detach()
                self.assertTrue(torch.equal(runs.whole(self.out, kind="act", name="layers.0", step=step), hidden), mode)
            self.assertEqual(sum(line.get("kind") == "hash" for line in runs.lines(self.out)), 2)


@judging.needs_program
class JudgedTest(judging.RunsTest):
    def test_scores_of_ranks(self):
        for mode in MODES:
            ranks.run(1, lambda rank: score(rank, self.golden, mode=mode))
            for wrong, status, text in ((None, 0, "^MATCH "), (1, 1, r"(?s)tensor +layers\.1\.up\.output .*of step 1.*on rank 1 \(dp 1\)")):
                ranks.run(2, lambda rank: score(rank, self.out, self.golden, mode, wrong))
                self.expect_patterns(self.judge(), status, text)

    def test_scores_beside_training(self):
        ranks.run(1, train, self.golden)
        for wrong, status, text in ((None, 0, "^MATCH "), (1, 1, r"(?s)tensor +scores .*of step 1.*on rank 1 \(dp 1\)")):
            ranks.run(2, train, self.out, self.golden, wrong)
            self.expect_patterns(self.judge(), status, text)


if __name__ == "__main__":
    unittest.main()
