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


def passes_of(sizes, rows=ROWS, is_whole=True, has_gradients=True, begins=None):
    """Passes of so many rows each, one after the other, or without rows that are known (None)."""
    begins = begins or [sum(size or 0 for size in sizes[:number]) for number in range(len(sizes))]
    return [Pass(rows, is_whole, has_gradients, *((None, None) if size is None else (begin, size)))
            for begin, size in zip(begins, sizes)]


def placed(pieces, passes, has_stages=False):
    """(offset, global shape) of pieces, each given as (pass, shape) or (.., global shape, offset), after their placing; None
    if all have the place that they had."""
    lines = [Line("act", "layer", 1, 0, None, torch.float64, shape, *(place or (shape, None)), None, None, "plain", 0)
             for _, shape, *place in pieces]
    before = [dataclasses.replace(line) for line in lines]
    left_over = micro_batches.place([(line, number) for line, (number, *_) in zip(lines, pieces)], passes, has_stages)
    return None if lines == before else [(line.offset, line.global_shape) for line in lines if line not in left_over]


class PlaceTest(unittest.TestCase):
    """The second of two ranks, each with 4 of 8 rows."""

    def test_batch_first(self):
        self.assertEqual(placed([(0, (2, 5, 3)), (1, (2, 5, 3))], passes_of([2, 2])),
                         [([4, 0, 0], [8, 5, 3]), ([6, 0, 0], [8, 5, 3])])
        self.assertEqual(placed([(0, (3, 5)), (1, (1, 5))], passes_of([3, 1])), [([4, 0], [8, 5]), ([7, 0], [8, 5])])

    def test_sequence_first(self):
        self.assertEqual(placed([(0, (5, 2, 3)), (1, (5, 2, 3))], passes_of([2, 2])),
                         [([0, 4, 0], [5, 8, 3]), ([0, 6, 0], [5, 8, 3])])

    def test_rows_in_another_order(self):
        self.assertEqual(placed([(0, (2, 5)), (1, (2, 5))], passes_of([2, 2], begins=[2, 0])),
                         [([6, 0], [8, 5]), ([4, 0], [8, 5])])

    def test_positions_on_several_ranks(self):
        """Each pass has two stretches of positions of a zigzag."""
        pieces = [(number, (2, 3), (2, 12), (0, first)) for number in (0, 1) for first in (3, 6)]
        self.assertEqual(placed(pieces, passes_of([2, 2], is_whole=False)),
                         [([row, first], [8, 12]) for row in (4, 6) for first in (3, 6)])

    def test_rows_that_a_layout_cuts(self):
        pieces = [(number, (2, 3), (4, 3), (2, 0)) for number in (0, 1)]
        self.assertEqual(placed(pieces, passes_of([2, 2], is_whole=False)), [([4, 0], [8, 3]), ([6, 0], [8, 3])])

    def test_later_stages_have_the_order_of_the_passes(self):
        halves, places = [(number, (2, 3)) for number in range(2)], [([4, 0], [8, 3]), ([6, 0], [8, 3])]
        self.assertEqual(placed(halves, passes_of([None, None]), has_stages=True), places)
        self.assertIsNone(placed(halves, passes_of([None, None])))
        self.assertIsNone(placed(halves, passes_of([2, None]), has_stages=True))

    def test_a_pass_that_finds_out_the_shapes_of_a_stage_is_left_out(self):
        first = passes_of([None], has_gradients=False)
        thirds = [(number, (2, 3)) for number in range(3)]
        for passes in (first + passes_of([2, 2]), first + passes_of([None, None])):
            self.assertEqual(placed(thirds, passes, has_stages=True), [([4, 0], [8, 3]), ([6, 0], [8, 3])])
            self.assertIsNone(placed(thirds, passes))  # scores, maybe of other rows
        whole = Line("act", "layer", 1, 0, None, torch.float64, (4, 3), (8, 3), (4, 0), None, None, "plain", 0)
        shapes = dataclasses.replace(whole, shape=(2, 3), global_shape=(2, 3), offset=None)
        self.assertEqual(micro_batches.place([(shapes, 0), (whole, 1)], first + passes_of([4]), True), [shapes])

    def test_scores_alone_are_placed(self):
        self.assertEqual(placed([(0, (2, 3)), (1, (2, 3))], passes_of([2, 2], has_gradients=False)),
                         [([4, 0], [8, 3]), ([6, 0], [8, 3])])

    def test_what_has_no_sure_place_is_left(self):
        halves = [(0, (2, 3)), (1, (2, 3))]
        for pieces, passes in (([(0, (4, 3))], passes_of([4])),                               # one pass
                               ([(0, (4, 3)), (1, (4, 3))], passes_of([4, 4])),               # twice over the same rows
                               ([(0, (2, 3)), (1, (1, 3))], passes_of([2, 1])),               # rows are lacking
                               ([(0, (2, 2, 3)), (1, (2, 2, 3))], passes_of([2, 2])),         # either dim
                               ([(0, (2, 3)), (1, (2, 4))], passes_of([2, 2])),               # lengths of their own
                               ([(0, (6, 3)), (1, (6, 3))], passes_of([2, 2])),               # tokens in one dim
                               ([(0, ()), (1, ())], passes_of([2, 2])),
                               ([(0, (2, 3)), (0, (2, 3))], passes_of([4])),                  # two calls in a pass
                               ([*halves, *halves], passes_of([2, 2])),
                               ([(0, (2, 3))], passes_of([2, 2])),                            # not in each pass
                               (halves, passes_of([2, 2], begins=[0, 1])),                    # rows that overlap
                               (halves, passes_of([2, 2], is_whole=False)),
                               (halves, passes_of([2]) + passes_of([2], rows=Rows(6, 2, 8))),  # a batch of its own
                               (halves, passes_of([2, 2], rows=None))):
            self.assertIsNone(placed(pieces, passes), (pieces, passes))

    def test_rows_of_an_input_are_found(self):
        tokens = torch.tensor([[1, 2], [3, 4], [1, 2], [5, 6]])
        rows = Rows(4, 4, 8, (), (tokens,))
        for given, expected, found in ((tokens[1:3], 0, (1, 2)), (tokens[:1], 0, (0, 1)), (tokens[2:3], 2, (2, 1)),
                                       (tokens[2:3], 1, (None, None)), (tokens[:, :1], 0, (None, None)),
                                       (tokens.flip(0), 0, (None, None)), (tokens.double(), 0, (None, None))):
            self.assertEqual(micro_batches.rows_of((None, given), rows, expected), found)


class Layers(nn.ModuleDict):
    """A module of which each stage holds a part."""

    def forward(self, x):
        for layer in self.values():
            x = layer(x)
        return x


class Stage(nn.Module):
    """One of two stages of the model, whose names are those of the whole; or with both numbers the model."""

    def __init__(self, *numbers):
        super().__init__()
        whole = models.build()
        if 0 in numbers:
            self.embed = whole.embed
        self.layers = Layers({str(number): whole.layers[number] for number in numbers})
        if 1 in numbers:
            self.head = whole.head

    def forward(self, x):
        if hasattr(self, "embed"):
            x = self.embed(x)
        x = self.layers(x)
        return self.head(x) if hasattr(self, "head") else x


def train(rank, out, golden, is_stale=False):
    """Two steps, of two micro-batches on two stages. A stale second stage computes the first micro-batch twice in step 2."""
    model = Stage(rank) if golden else Stage(0, 1)
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
    outputs = [model(part) for part in tokens]
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
        (-models.logprobs_of(model(one), wanted).mean() / 2).backward()
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
        self.assertEqual(judged[1].count("not compared"), 1)  # of each stage's part of the layers
        self.assertRegex(judged[1], r"which part of it a rank holds \(layouts= of record does\): layers\.output\n")

    def test_the_first_wrong_module_is_named(self):
        self.expect(self.judged(True), 1, "layers.1.norm.output   [4, 5, 8]   of step 2   part [2:4, 0:5, 0:8]", "on rank 1")


class Positions(nn.Module):
    """Its output has a dim of size 1 in the place of rows, as tables of rotary embeddings have."""

    def forward(self, tokens):
        return torch.arange(tokens.shape[1], dtype=torch.float64).cos()[None, :, None].expand(1, -1, 8)


class Twice(models.Model):
    """Has such a table, and calls a layer twice."""

    def __init__(self):
        super().__init__()
        self.positions = Positions()

    def forward(self, tokens):
        x = self.embed(tokens) + self.positions(tokens)
        return self.head(self.layers[1](self.layers[0](self.layers[0](x))))


class Names(nn.Module):
    """Gives a dict, whose loss comes first."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        x = self.inner(x)
        return {"loss": x.sum(), "hidden": x}


class Named(models.Model):
    """Takes a dict of inputs, and has a layer that gives one."""

    def __init__(self):
        super().__init__()
        self.layers[1] = Names(self.layers[1])

    def forward(self, batch):
        return self.head(self.layers[1](self.layers[0](self.embed(batch["tokens"])))["hidden"])


def accumulate(rank, out, golden, what, wrong=False):
    """Two steps of data parallelism, with two micro-batches on each rank, or one of the golden's rows."""
    parts = dist.get_world_size()
    model = (Named() if what == "named" else Twice()).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if golden:
        shardproof.load(model, golden, mesh={"dp": parts})
    with shardproof.record(model, optimizer, out=out, activations="*", mesh={"dp": parts}):
        for step in range(2):
            drawn = torch.randint(12, (4, 6), generator=torch.Generator().manual_seed(step))
            tokens, targets = shardproof.batch(drawn[:, :-1], drawn[:, 1:])
            if what == "validated":
                with torch.no_grad():
                    model(torch.flip(tokens, (1,)))
            micro_batches = [*zip(tokens.split(2 // parts), targets.split(2 // parts))]
            for number, (part, wanted) in enumerate(micro_batches[::-1] if what == "reversed" else micro_batches):
                if wrong and (rank, step, number) == (1, 1, 1):
                    model.layers[1].register_forward_hook(
                        lambda _, given, output: {"hidden": output["hidden"] + given[0]} if what == "named" else output + given[0])
                (-models.logprobs_of(model({"tokens": part} if what == "named" else part), wanted).mean() / len(micro_batches)).backward()
            for one in model.parameters():
                dist.all_reduce(one.grad)
                one.grad /= parts
            optimizer.step()
            optimizer.zero_grad()


@judging.needs_program
class DataParallelTest(judging.SharedRunsTest):
    def judged(self, what, wrong=False):
        golden, out = self.folder / f"{self.id()}.{what}.golden", self.folder / f"{self.id()}.{what}"
        ranks.run(1, accumulate, golden, None, what)
        ranks.run(2, accumulate, out, golden, what, wrong)
        return judging.judge(out, golden)

    def test_right_runs_match(self):
        for what, compared in (("plain", True), ("reversed", True), ("validated", False)):
            judged = self.judged(what)
            self.expect(judged, 0, "MATCH", "layers.0.output")  # is not compared
            self.assertEqual("head.output" not in judged[1], compared, judged[1])

    def test_dicts_of_inputs_and_outputs(self):
        judged = self.judged("named")
        self.expect(judged, 0, "MATCH")
        self.assertNotIn("not compared", judged[1])
        self.expect(self.judged("named", wrong=True), 1, "head.output   [4, 5, 12]   of step 2   part [3:4, 0:5, 0:12]",
                    "on rank 1", "layers.1.output was right on that rank")

    def test_a_wrong_input_of_a_module_is_named(self):
        self.expect(self.judged("reversed", wrong=True), 1, "head.output   [4, 5, 12]   of step 2   part [2:3, 0:5, 0:12]",
                    "on rank 1")


if __name__ == "__main__":
    unittest.main()
