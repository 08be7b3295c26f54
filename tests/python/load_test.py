"""What shardproof.load says of names that the golden lacks, and a tied parameter on two stages of a pipeline."""

import judging
import ranks
import runs
import torch
import torch.distributed as dist
from torch import nn

import shardproof

WIDTH, WORDS = 4, 6


class Stage(nn.Module):
    """Of the whole model with one stage, the embedding and the head, which are tied."""

    def __init__(self, name="embed", is_first=True, is_last=True):
        super().__init__()
        self.is_first, self.is_last = is_first, is_last
        setattr(self, name, nn.Embedding(WORDS, WIDTH, dtype=torch.float64))
        self.tied = getattr(self, name)
        if is_first:
            self.layer = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, x):
        x = torch.tanh(self.layer(self.tied(x))) if self.is_first else x
        return x @ self.tied.weight.t() if self.is_last else x


def loss_of(logits, targets):
    return nn.functional.cross_entropy(logits, targets)


def train(rank, out, golden=None, name="embed"):
    torch.manual_seed(rank)
    stages = dist.get_world_size()
    mesh = {"pp": stages} if stages > 1 else None
    model = Stage("embed" if rank == 0 else name, rank == 0, rank == stages - 1)
    if golden:
        shardproof.load(model, golden, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens, targets = torch.tensor([0, 3, 5, 1]), torch.tensor([3, 5, 1, 2])
    with shardproof.record(model, optimizer, out=out, mesh=mesh):
        if stages == 1:
            loss_of(model(tokens), targets).backward()
        elif rank == 0:
            between = model(tokens)
            dist.send(between.detach(), 1)
            gradient = torch.empty_like(between)
            dist.recv(gradient, 1)
            between.backward(gradient)
        else:
            between = torch.empty(len(tokens), WIDTH, dtype=torch.float64)
            dist.recv(between, 0)
            between.requires_grad_()
            loss_of(model(between), targets).backward()
            dist.send(between.grad, 0)
        if stages > 1:
            dist.all_reduce(model.tied.weight.grad)
        optimizer.step()


class LoadTest(judging.RunsTest):
    @judging.needs_program
    def test_a_stage_that_holds_a_tied_copy_under_the_same_name(self):
        ranks.run(1, train, self.golden)
        ranks.run(2, train, self.out, self.golden)
        self.assertEqual(len(runs.pieces(self.out, kind="grad", name="embed.weight")), 2)
        status, text = self.judge()
        self.assertEqual(status, 0, text)

    def test_another_name_for_it(self):
        ranks.run(1, train, self.golden)
        with self.assertRaisesRegex(AssertionError, 'name "head.weight". The nearest name is "embed.weight"; .*keeps the golden\'s name'):
            ranks.run(2, train, self.out, self.golden, "head")

    def test_a_golden_that_recorded_some_names(self):
        model = Stage()
        with shardproof.record(model, out=self.golden, only="layer.*") as rec:
            loss_of(model(torch.tensor([1])), torch.tensor([2])).backward()
            rec.stepped()
        with self.assertRaisesRegex(shardproof.Error, "only=\\['layer.\\*'\\], so that it lacks .*\"embed.weight\". Record both runs without"):
            shardproof.load(model, self.golden)

    def test_a_golden_whose_files_are_cut_off(self):
        model = Stage()
        with shardproof.record(model, out=self.golden) as rec:
            loss_of(model(torch.tensor([1])), torch.tensor([2])).backward()
            rec.stepped()
        for name in ("run.json", "rank0.jsonl", "rank0.safetensors"):
            path = self.golden / name
            whole = path.read_bytes()
            for kept in (0, 4, 30, len(whole) - 30, len(whole) - 2):
                with self.subTest(name, kept=kept):
                    path.write_bytes(whole[:kept])
                    with self.assertRaisesRegex(shardproof.Error, f'{name}" (is no whole file of a recorded run: |has 0 lines and no end)'
                                                ".*Record the run again, and let it reach its end"):
                        shardproof.load(model, self.golden)
            path.unlink()
            with self.assertRaisesRegex(shardproof.Error, f"{name}.*Record the run again"):
                shardproof.load(model, self.golden)
            path.write_bytes(whole)
        (self.golden / "run.json").write_text("[]")
        with self.assertRaisesRegex(shardproof.Error, "run.json\" has the format None"):
            shardproof.load(model, self.golden)


if __name__ == "__main__":
    import unittest
    unittest.main()
