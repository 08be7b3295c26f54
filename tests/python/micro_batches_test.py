"""What modules give in micro-batches: its place in the global batch, and the first wrong module of a pipeline.
SHARDPROOF_PROGRAM is the program; without it the judged tests are skipped."""

import dataclasses
import unittest

import judging
import models
import ranks
import torch
import torch.distributed as dist
from torch import nn

import shardproof
from shardproof import micro_batches
from shardproof.global_batch import Rows
from shardproof.micro_batches import Pass
from shardproof.run_folder import Line

ROWS = Rows(4, 4, 8)


def placed(pieces, is_whole=True, passes=None):
    """(offset, global shape) of pieces, each given as (pass, shape) or (.., global shape, offset), after their placing; None
    if all have the place that they had."""
    lines = [Line("act", "layer", 1, number, None, torch.float64, shape, *(place or (shape, None)), None, None, "plain", 0)
             for number, shape, *place in pieces]
    before = [dataclasses.replace(line) for line in lines]
    left_over = micro_batches.place(lines, passes or [Pass(ROWS, is_whole, True)] * 2)
    return None if lines == before else [(line.offset, line.global_shape) for line in lines if line not in left_over]


class PlaceTest(unittest.TestCase):
    """The second of two ranks, each with 4 of 8 rows."""

    def test_batch_first(self):
        self.assertEqual(placed([(0, (2, 5, 3)), (1, (2, 5, 3))]), [([4, 0, 0], [8, 5, 3]), ([6, 0, 0], [8, 5, 3])])
        self.assertEqual(placed([(0, (3, 5)), (1, (1, 5))]), [([4, 0], [8, 5]), ([7, 0], [8, 5])])

    def test_sequence_first(self):
        self.assertEqual(placed([(0, (5, 2, 3)), (1, (5, 2, 3))]), [([0, 4, 0], [5, 8, 3]), ([0, 6, 0], [5, 8, 3])])

    def test_positions_on_several_ranks(self):
        """Each pass has two stretches of positions of a zigzag."""
        pieces = [(number, (2, 3), (2, 12), (0, first)) for number in (0, 1) for first in (3, 6)]
        self.assertEqual(placed(pieces, is_whole=False),
                         [([row, first], [8, 12]) for row in (4, 6) for first in (3, 6)])

    def test_rows_that_a_layout_cuts(self):
        pieces = [(number, (2, 3), (4, 3), (2, 0)) for number in (0, 1)]
        self.assertEqual(placed(pieces, is_whole=False), [([4, 0], [8, 3]), ([6, 0], [8, 3])])

    def test_passes_without_gradients_count_apart(self):
        halves = [([4, 0], [8, 3]), ([6, 0], [8, 3])]
        shapes, scores, trained = Pass(None, False, False), Pass(ROWS, True, False), Pass(ROWS, True, True)
        self.assertEqual(placed([(number, (2, 3)) for number in range(3)], passes=[shapes, trained, trained]), halves)
        self.assertEqual(placed([(number, (2, 3)) for number in range(4)], passes=[scores, scores, trained, trained]),
                         [*halves, *halves])
        self.assertEqual(placed([(number, (2, 3)) for number in range(2)], passes=[scores, scores]), halves)

    def test_what_has_no_sure_place_is_left(self):
        for pieces in ([(0, (4, 3))],                              # one pass
                       [(0, (4, 3)), (1, (4, 3))],                 # two models, or two passes over the same rows
                       [(0, (2, 3)), (1, (1, 3))],                 # rows are lacking
                       [(0, (2, 2, 3)), (1, (2, 2, 3))],           # either dim
                       [(0, (2, 3)), (1, (2, 4))],                 # lengths of their own
                       [(0, ()), (1, ())]):
            self.assertIsNone(placed(pieces), pieces)
        halves = [(0, (2, 3)), (1, (2, 3))]
        self.assertIsNone(placed(halves, is_whole=False))
        self.assertIsNone(placed(halves, passes=[Pass(Rows(first, 2, 8), True, True) for first in (4, 6)]))


class Stage(nn.Module):
    """One of two stages of the model, whose names are those of the whole."""

    def __init__(self, rank):
        super().__init__()
        whole = models.build()
        if rank == 0:
            self.embed = whole.embed
        self.layers = nn.ModuleDict({str(rank): whole.layers[rank]})
        if rank == 1:
            self.head = whole.head


def train(rank, out, golden, is_stale=False):
    """Two steps, of two micro-batches on two stages. A stale second stage computes the first micro-batch twice in step 2."""
    model = Stage(rank) if golden else models.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mesh = {"pp": 2} if golden else None
    if golden:
        shardproof.load(model, golden, mesh=mesh)
    with shardproof.record(model, optimizer, out=out, activations="*", mesh=mesh):
        for step in range(2):
            drawn = torch.randint(12, (4, 6), generator=torch.Generator().manual_seed(step))
            tokens, targets = shardproof.batch(drawn[:, :-1], drawn[:, 1:])
            if golden:
                (first_stage if rank == 0 else last_stage)(model, tokens.chunk(2), targets.chunk(2), is_stale and step == 1)
            else:
                (-models.logprobs_of(model(tokens), targets).mean()).backward()
            optimizer.step()
            optimizer.zero_grad()


def first_stage(model, tokens, *_):
    outputs = [model.layers["0"](model.embed(part)) for part in tokens]
    for output in outputs:
        dist.send(output.detach(), 1)
    for output in outputs:
        gradient = torch.empty_like(output)
        dist.recv(gradient, 1)
        output.backward(gradient)


def last_stage(model, tokens, targets, is_stale):
    inputs = [torch.empty(*part.shape, 8, dtype=torch.float64) for part in tokens]
    for one in inputs:
        dist.recv(one, 0)
    if is_stale:
        inputs[1].copy_(inputs[0])
    for one, wanted in zip(inputs, targets):
        one.requires_grad_()
        (-models.logprobs_of(model.head(model.layers["1"](one)), wanted).mean() / 2).backward()
        dist.send(one.grad, 0)


@judging.needs_program
class PipelineTest(judging.SharedRunsTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.golden = cls.folder / "one"
        ranks.run(1, train, cls.golden, None)

    def judged(self, is_stale):
        out = self.folder / self.id()
        ranks.run(2, train, out, self.golden, is_stale)
        return judging.judge(out, self.golden)

    def test_a_right_pipeline_matches(self):
        judged = self.judged(False)
        self.expect(judged, 0, "MATCH")
        self.assertNotIn("not compared", judged[1])

    def test_the_first_wrong_module_is_named(self):
        self.expect(self.judged(True), 1, "layers.1.norm.output   [4, 5, 8]   of step 2   part [2:4, 0:5, 0:8]", "on rank 1")


if __name__ == "__main__":
    unittest.main()
