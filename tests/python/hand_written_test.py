"""Hand-written tensor parallelism with declared layouts, plain data parallelism, and what load says to mistakes."""

import unittest

import judging
import models
import ranks
import runs
import torch
import torch.distributed as dist
from torch import nn

import shardproof

MESH = {"dp": 2, "tp": 2}


class Fused(nn.Module):
    """Two fused projections [a; b] of 6 and 3 columns, cut by rows over tp, and a plain norm."""

    def __init__(self, parts=1):
        super().__init__()
        self.ab = nn.Parameter(torch.zeros(9 // 3 * 4 // parts, 4, dtype=torch.float64))
        self.scale = nn.Parameter(torch.ones(4, dtype=torch.float64))


def full_ab():
    return torch.arange(48, dtype=torch.float64).reshape(12, 4)


def record_fused(rank, out):
    """Each tp rank holds its half of a (rows 0..8) and of b (rows 8..12)."""
    tp = rank % 2
    model = Fused(parts=2)
    with torch.no_grad():
        model.ab.copy_(torch.cat([full_ab()[4 * tp:4 * tp + 4], full_ab()[8 + 2 * tp:8 + 2 * tp + 2]]))
    layouts = {"ab": shardproof.Shard(0, "tp", blocks=(4, 2)), "sc*": (shardproof.Replicate(), shardproof.Partial("tp"))}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    with shardproof.record(model, optimizer, out=out, mesh=MESH, layouts=layouts):
        ((model.ab * model.ab).sum() + model.scale.sum()).backward()
        optimizer.step()


def record_one(rank, out):
    model = Fused()
    with torch.no_grad():
        model.ab.copy_(full_ab())
        model.scale.copy_(torch.tensor([3.0, 1.0, 4.0, 1.0]))
    with shardproof.record(model, out=out) as rec:
        rec.stepped()


def load_fused(rank, golden):
    model = Fused(parts=2)
    shardproof.load(model, golden, mesh=MESH, layouts={"ab": shardproof.Shard(0, "tp", blocks=(4, 2))})
    return model.ab.detach(), model.scale.detach()


def train_loaded(rank, golden, out):
    """What load was given, record is not given again, also where the model was wrapped meanwhile."""
    model = Fused(parts=2)
    shardproof.load(model, golden, mesh=MESH, layouts={"ab": shardproof.Shard(0, "tp", blocks=(4, 2))})
    other = nn.Linear(4, 4)  # load was given nothing for this one
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with shardproof.record(torch.compile(model, backend="eager"), optimizer, out=out / "wrapped"):
        ((model.ab * model.ab).sum() + model.scale.sum()).backward()
        optimizer.step()
    with shardproof.record(model, optimizer, out=out / "own", mesh={"dp": 4}, layouts={"ab": shardproof.Replicate()}):
        optimizer.step()
    with shardproof.record(other, out=out / "other") as rec:
        rec.stepped()


class Halves(nn.Module):
    """A module whose output has this rank's positions of a sequence of 6."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Identity()
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, rank, parts):
        held = 6 // parts
        return self.inner(torch.arange(36.0).reshape(2, 6, 3)[:, held * rank:held * (rank + 1)] * self.scale)


def cut_outputs(rank, out, parts):
    """Load says the layout of a parameter, and record that of what modules give."""
    model = Halves()
    if parts > 1:
        shardproof.load(model, out / "one", mesh={"cp": parts}, layouts={"scale": shardproof.Partial("cp")})
    declared = {"inner.output": shardproof.Shard(1, "cp")} if parts > 1 else None
    with shardproof.record(model, torch.optim.SGD(model.parameters(), lr=1.0), out=out / ("one" if parts == 1 else "cut"),
                           activations="*", hashes="*", layouts=declared) as rec:
        model(rank, parts).sum().backward()
        rec.gradients()
        rec.stepped()


def data_parallel(rank, out, mesh=None, axes=None):
    """Plain torch DDP with one axis, and a batch that is cut over it."""
    model = nn.parallel.DistributedDataParallel(models.build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with shardproof.record(model, optimizer, out=out, activations="head", mesh=mesh) as rec:
        tokens, targets = shardproof.batch(*models.global_batch(0), axes=axes)
        assert tokens.shape == (2, 5) and torch.equal(tokens, models.global_batch(0)[0][2 * rank:2 * rank + 2])
        logprobs = models.logprobs_of(model(tokens), targets)
        (-logprobs.mean()).backward()
        optimizer.step()
        rec.logprobs(logprobs)


def messages(rank, golden):
    """The messages of the mistakes that need several ranks."""
    found = []
    model = Fused(parts=2)
    for call in (lambda: shardproof.batch(torch.zeros(4, 1)),
                 lambda: shardproof.load(model, golden),
                 lambda: shardproof.load(nn.ParameterDict({"scael": model.scale}), golden),
                 lambda: shardproof.load(model, golden, mesh={"tp": 2}),
                 lambda: shardproof.load(model, golden, layouts={"ab": shardproof.Shard(0, "dp", blocks=(4, 1))}),
                 lambda: shardproof.load(model, golden, layouts={"ab": shardproof.Shard(1, "dp")}),
                 lambda: shardproof.load(model, golden, layouts={"ab": shardproof.Shard(2, "dp")}),
                 lambda: shardproof.load(model, golden, layouts={"ab": shardproof.Shard(0, "rows")}),
                 lambda: shardproof.load(model, golden, layouts={"ab": shardproof.Shard(0, "tp", blocks=(4, 2))}),
                 lambda: shardproof.load(Fused(parts=4), golden, mesh=[("dp", 2)],
                                         layouts={"ab": (shardproof.Shard(0, "dp"), shardproof.Shard(0, "tp"))}),
                 lambda: shardproof.load(Fused(parts=3), golden, layouts={"ab": shardproof.Shard(0, "tp")}),
                 lambda: shardproof.load(model, golden, mesh=[("dp", 2)], layouts={"scael": shardproof.Replicate()}),
                 lambda: shardproof.batch(torch.zeros(7, 1), mesh=MESH),
                 lambda: shardproof.batch(torch.zeros(4, 1), torch.zeros(2, 1), mesh=MESH),
                 lambda: shardproof.batch(torch.zeros(4, 1), mesh={"shards": 2}),
                 lambda: shardproof.batch(torch.zeros(4, 1), mesh={"shards": 2}, axes=("shard", "rows")),
                 lambda: shardproof.batch(torch.zeros(4, 1), mesh={"shards": 2}, axes="shards").shape,
                 lambda: shardproof.batch(torch.zeros(4, 1), mesh={"shards": 2}, axes=()).shape):
        try:
            found.append(f"no error, but {call()}")
        except shardproof.Error as error:
            found.append(str(error))
    dist.barrier()
    return found


class HandWrittenTest(judging.RunsTest):
    def test_a_fused_weight_has_one_piece_for_each_block(self):
        ranks.run(4, record_fused, self.out)
        boxes = [[line["offset"] for line, _ in runs.rank_pieces(self.out, rank)
                  if (line["kind"], line["name"], line["step"]) == ("param", "ab", 0)] for rank in range(4)]
        self.assertEqual(boxes, [[[0, 0], [8, 0]], [[4, 0], [10, 0]]] * 2)
        self.assertTrue(torch.equal(runs.whole(self.out, kind="param", name="ab", step=0), full_ab()))
        self.assertTrue(torch.equal(runs.whole(self.out, kind="grad", name="ab", step=1), 2 * full_ab()))
        state = runs.whole(self.out, kind="opt", name="momentum_buffer.ab", step=1)
        self.assertTrue(torch.equal(state, 2 * full_ab()))

    def test_coordinates_of_ranks_are_in_the_order_of_the_mesh(self):
        ranks.run(4, record_fused, self.out)
        self.assertEqual(runs.header(self.out)["coordinates"], [[0, 0], [0, 1], [1, 0], [1, 1]])

    def test_a_declared_partial_is_that_of_the_gradient_alone(self):
        ranks.run(4, record_fused, self.out)
        for _, line, _ in runs.pieces(self.out, name="scale"):
            self.assertEqual(line.get("partial"),
                             {"axes": ["tp"], "op": "sum"} if line["kind"] == "grad" else None)
            self.assertEqual((line["source"], line["offset"]), ("declared", [0]))

    def test_load_gives_each_rank_its_blocks(self):
        ranks.run(1, record_one, self.golden)
        for rank, (ab, scale) in enumerate(ranks.run(4, load_fused, self.golden)):
            tp = rank % 2
            expected = torch.cat([full_ab()[4 * tp:4 * tp + 4], full_ab()[8 + 2 * tp:8 + 2 * tp + 2]])
            self.assertTrue(torch.equal(ab, expected))
            self.assertEqual(scale.tolist(), [3.0, 1.0, 4.0, 1.0])

    def test_load_tells_record_its_mesh_and_layouts(self):
        ranks.run(1, record_one, self.golden)
        ranks.run(4, train_loaded, self.golden, self.out)
        wrapped, own, other = (self.out / name for name in ("wrapped", "own", "other"))
        self.assertEqual(runs.header(wrapped)["mesh"], [{"axis": "dp", "size": 2}, {"axis": "tp", "size": 2}])
        self.assertTrue(torch.equal(runs.whole(wrapped, kind="param", name="ab", step=0), full_ab()))
        self.assertEqual(runs.header(own)["mesh"], [{"axis": "dp", "size": 4}])
        self.assertEqual({tuple(line["offset"]) for _, line, _ in runs.pieces(own, kind="param", name="ab")}, {(0, 0)})
        self.assertEqual(runs.header(other)["mesh"], [{"axis": "dp", "size": 4}])

    def test_what_modules_give_has_a_declared_place(self):
        ranks.run(1, cut_outputs, self.out, 1)
        ranks.run(2, cut_outputs, self.out, 2)
        whole = torch.arange(36.0, dtype=torch.float64).reshape(2, 6, 3)
        self.assertTrue(torch.equal(runs.whole(self.out / "cut", kind="act", name="inner"), whole))
        self.assertEqual([line["offset"] for _, line, _ in runs.pieces(self.out / "cut", kind="act", name="inner")],
                         [[0, 0, 0], [0, 3, 0]])
        self.assertEqual({str(line.get("partial")) for _, line, _ in runs.pieces(self.out / "cut", kind="grad", name="scale")},
                         {"{'axes': ['cp'], 'op': 'sum'}"})

    def test_plain_tensors_of_several_ranks_have_no_offset_but_rows_of_the_batch_have(self):
        ranks.run(2, data_parallel, self.out)
        gradients = runs.pieces(self.out, kind="grad")
        self.assertEqual({line["offset"] is None and line["source"] == "plain" for _, line, _ in gradients}, {True})
        self.assertEqual(runs.names(self.out, kind="grad"), sorted(models.full_values(models.Model())))
        self.assertEqual([line["offset"] for _, line, _ in runs.pieces(self.out, kind="logprobs")], [[0, 0], [2, 0]])
        header = runs.header(self.out)
        self.assertEqual((header["coordinates"], header["batch"]), ([[0], [1]], {"rows": 4, "parts": 2}))
        model = models.build()
        tokens, targets = models.global_batch(0)
        logits = model(tokens)
        torch.testing.assert_close(runs.whole(self.out, kind="act", name="head"), logits.detach(), rtol=0, atol=1e-14)
        expected = models.logprobs_of(logits, targets)
        torch.testing.assert_close(runs.whole(self.out, kind="logprobs"), expected.detach(), rtol=0, atol=1e-14)

    def test_axes_that_a_batch_names_cut_what_modules_give(self):
        ranks.run(2, data_parallel, self.out, {"rep": 2}, "rep")
        logits = models.build()(models.global_batch(0)[0])
        torch.testing.assert_close(runs.whole(self.out, kind="act", name="head"), logits.detach(), rtol=0, atol=1e-14)

    def test_mistakes_are_reported_with_their_numbers(self):
        ranks.run(1, record_one, self.golden)
        expected = ("does not know the mesh of the 2 ranks",
                    '"ab" has a local shape of [6, 4], but the golden run\'s is [12, 4]',
                    'The nearest name is "scale"',
                    "nothing says which part this is",
                    "add up to 5, but dim 0 of the local tensor has size 6",
                    '"ab" has a global shape of [6, 8], but the golden run\'s is [12, 4]',
                    'The layout of "ab" cuts dim 2, but the tensor has shape [6, 4]',
                    'The mesh {dp: 2} has no axis "rows"',
                    '"ab" has a local shape of [4, 4], but the golden run\'s is [12, 4]. Its layout names the axis "tp", and '
                    'the mesh {dp: 2} has no axis tp. Pass mesh={"tp": 2}.',
                    'the mesh {dp: 2} has no axis tp. Pass mesh={.., "tp": ..}, with each axis and its size',
                    'the mesh {dp: 2} has no axis tp. Pass mesh={.., "tp": ..}, with each axis and its size',
                    'layouts: none of the 2 names of the model fits "scael". Use * for any characters; the nearest name is "scale"',
                    "has 4 ranks, but the run has 2",
                    "has 4 ranks, but the run has 2",
                    'The name of the axis "shards" of the mesh {shards: 2} does not tell whether it cuts the batch',
                    'The mesh {shards: 2} has no axis "rows"',
                    "no error, but torch.Size([2, 1])",
                    "no error, but torch.Size([4, 1])")
        for messages_of_rank in ranks.run(2, messages, self.golden):
            for message, words in zip(messages_of_rank, expected, strict=True):
                self.assertIn(words, message)


if __name__ == "__main__":
    unittest.main()
