"""Batch norm whose statistics are of each rank's own rows: which goldens it matches, and what says that it is local.
SHARDPROOF_PROGRAM is the program."""

import unittest

import judging
import ranks
import torch
import torch.distributed as dist
from torch import nn

import shardproof

ROWS = 8
RANKS = 2
STEPS = 2


def train(rank, out, golden=None, parts=1, buffers="*", last_rows=False):
    """Data parallel by hand. Each rank computes its rows in so many parts, each with statistics of its own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if golden:
        shardproof.load(model, golden)
    with shardproof.record(model, optimizer, out=out, buffers=buffers) as rec:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(step)
            rows = torch.randn(ROWS, 3, dtype=torch.float64, generator=generator)
            optimizer.zero_grad()
            losses = []
            for part in shardproof.batch(rows).chunk(parts):
                losses.append(model(rows[-len(part):] if last_rows else part).square().sum() / ROWS)
                losses[-1].backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            rec.scalar("loss", sum(losses), sum_over=("dp",))


@judging.needs_program
class BatchStatisticsTest(judging.RunsTest):
    def judged(self, parts, **options):
        """Ranks that each normalize their own rows, against one rank that takes all rows in so many parts."""
        ranks.run(1, lambda rank: train(rank, self.golden, None, parts, **options | {"last_rows": False}))
        ranks.run(RANKS, lambda rank: train(rank, self.out, self.golden, **options))
        return self.judge()

    def test_statistics_of_own_rows_are_not_those_of_the_batch(self):
        self.expect_patterns(self.judged(1), 1, "tensor +loss .*of step 1")

    def test_a_golden_in_as_many_parts_shows_only_the_running_statistics(self):
        self.expect_patterns(self.judged(RANKS), 1, r"tensor +buffer\.1\.\w+ .*of step 1")

    def test_without_the_running_statistics_it_matches(self):
        text = self.expect(self.judged(RANKS, buffers=()), 0)
        self.assertNotIn("not judged", text)

    def test_a_rank_with_the_rows_of_another_does_not(self):
        self.expect_patterns(self.judged(RANKS, buffers=(), last_rows=True), 1, "of step 1")


if __name__ == "__main__":
    unittest.main()
