"""Buffers and the states of random generators: what is recorded of them, and what the judge says. SHARDPROOF_PROGRAM is the
program; without it the judged tests are skipped."""

import tempfile
import unittest

import judging
import ranks
import runs
import torch
import torch.distributed as dist
from schema_check import OF_RUNS, problems
from torch import nn

import shardproof

ROWS = 8
STEPS = 2


class Model(nn.Module):
    """A linear layer with a running mean of its weight and a count of rows."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4, dtype=torch.float64)
        self.register_buffer("mean", torch.zeros(4, 3, dtype=torch.float64))
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("table", torch.arange(5.0), persistent=False)
        self.register_buffer("turns", torch.ones(2, dtype=torch.complex64))
        self.register_buffer("nothing", None)

    def forward(self, x):
        return self.linear(x)


def is_wrong(rank, wrong):
    return wrong == "all" or wrong == rank


def train(rank, out, golden=None, bug="", wrong=None, layouts=None, dtype=torch.float64, **options):
    """Data parallel by hand. What the bug does, it does on the wrong ranks alone."""
    torch.manual_seed(0)
    model = Model()
    model.linear.to(dtype)
    model.mean = model.mean.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if golden:
        shardproof.load(model, golden)
    bug = bug if is_wrong(rank, wrong) else ""
    if bug == "part":
        model.mean = model.mean[:2]
    with shardproof.record(model, optimizer, out=out, layouts=layouts, **options):
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(step)
            rows = shardproof.batch(torch.randn(ROWS, 3, dtype=torch.float64, generator=generator).to(dtype))
            optimizer.zero_grad()
            (model(rows).square().sum() / ROWS).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            with torch.no_grad():  # scripts update averages after the step, to which they belong
                if bug != "skipped":
                    mixed = 0.9 * model.mean + (0.2 if bug == "rate" else 0.1) * model.linear.weight[:len(model.mean)]
                    model.mean = mixed  # a new tensor, as scripts do
                    model.seen += ROWS + (bug == "count")
            if bug == "draw":
                torch.rand(1)


class ProgramStateTest(judging.RunsTest):
    def test_persistent_buffers_are_recorded_after_each_step(self):
        ranks.run(2, train, self.out)
        self.assertEqual(runs.names(self.out, kind="buffer", step=1), ["mean", "seen"])
        for step in (1, 2):
            self.assertEqual([int(one) for _, _, one in runs.pieces(self.out, kind="buffer", name="seen", step=step)],
                             [ROWS * step] * 2)
        first = runs.pieces(self.out, kind="param", name="linear.weight", step=1)[0][2]
        mean = runs.pieces(self.out, kind="buffer", name="mean", step=1)[0]
        self.assertTrue(torch.equal(mean[2], 0.1 * first))
        self.assertEqual((mean[1]["offset"], mean[1]["source"]), (None, "plain"))

    def test_lines_follow_the_schema(self):
        ranks.run(1, train, self.out)
        kinds = {"buffer": "piece", "random": "hash"}
        found = [line for line in runs.lines(self.out) if line.get("kind") in kinds]
        self.assertEqual(len(found), STEPS * 3)
        for line in found:
            self.assertEqual(problems(line, OF_RUNS[kinds[line["kind"]]]), [])

    def test_patterns_select_buffers(self):
        for options, names in (({"buffers": "me*"}, ["mean"]), ({"buffers": ()}, []), ({"only": "linear.*"}, [])):
            with tempfile.TemporaryDirectory() as out:
                ranks.run(1, lambda rank: train(rank, out, **options))
                self.assertEqual(runs.names(out, kind="buffer", step=1), names)

    def test_a_declared_layout_places_a_buffer(self):
        ranks.run(2, train, self.out, None, "", None, {"mean": shardproof.Shard(0, "dp")})
        places = [(line["offset"], line["global_shape"])
                  for _, line, _ in runs.pieces(self.out, kind="buffer", name="mean", step=1)]
        self.assertEqual(places, [([0, 0], [8, 3]), ([4, 0], [8, 3])])

    def test_states_of_generators_are_recorded_as_hashes(self):
        digests = []
        for bug in ("", "", "draw"):
            ranks.run(1, train, self.out, None, bug, 0)
            digests.append([line["digest"] for line in runs.lines(self.out)
                            if line.get("kind") == "random" and line["name"] == "cpu"])
        self.assertEqual([len(one) for one in digests], [STEPS] * 3)
        self.assertEqual(digests[0], digests[1])
        self.assertEqual(len({*digests[0], *digests[2]}), 3)  # it changes by what is drawn alone


@judging.needs_program
class JudgedProgramStateTest(judging.RunsTest):
    def judged(self, bug="", wrong=None, size=2, *options, golden_size=1):
        ranks.run(golden_size, train, self.golden)
        ranks.run(size, train, self.out, self.golden if golden_size == 1 else None, bug, wrong)
        return self.judge(*options)

    def test_right_buffers_match(self):
        self.expect_patterns(self.judged(), 0, "^MATCH")

    def test_a_buffer_that_is_wrong_on_one_rank(self):
        self.expect_patterns(self.judged("skipped", 1), 1, "buffer.mean .*of step 1", "on rank 1")
        self.expect_patterns(self.judged("count", 1), 1, "buffer.seen .*of step 1", "on rank 1")

    def test_a_buffer_that_is_wrong_on_all_ranks(self):
        self.expect_patterns(self.judged("rate", "all"), 1, "buffer.mean .*of step 1")

    def test_a_buffer_of_which_nothing_says_where_it_lies(self):
        self.expect_patterns(self.judged("part", "all"), 0, "not compared, .*: buffer.mean")

    def test_states_of_generators_are_compared_between_runs_of_one_mesh(self):
        self.expect(self.judged("", None, 2, "--reference", golden_size=2), 0,
                    "of the states of random generators, 4 of 4 are those of the reference")
        self.expect(self.judged("draw", 1, 2, "--reference", golden_size=2), 0, "generators, 2 of 4 are those of the "
                    "reference, the first that is not is random.cpu of step 1 on rank 1")
        self.assertNotIn("random", self.judged("draw", 1)[1])

    def test_repeats_allow_roundings_of_buffers(self):
        ranks.run(1, train, self.golden, None, "", None, None, torch.float32)
        ranks.run(1, lambda rank: [train(rank, self.golden, self.golden, dtype=torch.float32, noise=repeat)
                                   for repeat in range(1, 17)])
        for bug, status in (("", 0), ("rate", 1), ("count", 1)):
            ranks.run(2, train, self.out, self.golden, bug, 1, None, torch.float32)
            self.expect(self.judge(), status)


if __name__ == "__main__":
    unittest.main()
