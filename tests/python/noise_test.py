"""Runs below float64, judged by the scatter of the one-rank run's repeats: planted bugs are mismatches, clean runs match,
and too few repeats leave values unresolved. SHARDPROOF_PROGRAM is the program; without it the judged tests are skipped."""

import collections
import shutil
import unittest

import judging
import layouts
import models
import ranks
import runs
import torch

import shardproof
from shardproof.noise import Noise

HAND, SEQUENCE = ("hand", 1, 2), ("hand sp", 1, 2)


def of(model, part):
    return [layouts.local(parameter.grad)
            for name, parameter in model.named_parameters() if part in name]


def doubled(model, dp, tp):
    for gradient in of(model, "up"):
        gradient.mul_(2)


def halved_on_one_rank(model, dp, tp):
    for gradient in of(model, "head") if tp == 1 else ():
        gradient.mul_(0.5)


def norm_not_summed(model, dp, tp):
    """Half of the tokens' share of the norms is missing, equally on all ranks: as if only tp rank 0 had any."""
    for gradient in of(model, "norm"):
        torch.distributed.broadcast(gradient.sub_(gradient, alpha=0.5), 0)


@judging.needs_program
class NoiseTest(judging.SharedRunsTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.draws = {torch.float32: layouts.Draw(4, torch.float32), torch.bfloat16: layouts.Draw(5, torch.bfloat16)}
        for dtype, draw in cls.draws.items():
            layouts.golden_run(ranks.run, draw, cls.golden(dtype))

    @classmethod
    def golden(cls, dtype):
        return str(cls.folder / str(dtype)[6:])

    def judged(self, dtype, layout, bug=None, golden=None):
        out = str(self.folder / "run")
        ranks.run(layout[1] * layout[2], layouts.train, self.draws[dtype], layout, out, self.golden(dtype), None, bug)
        return judging.judge(out, golden or self.golden(dtype))

    def test_a_factor_of_two_is_a_mismatch(self):
        for dtype in self.draws:
            with self.subTest(dtype):
                self.expect(self.judged(dtype, HAND, doubled), 1, "MISMATCH", ".up.weight", "of step 1", "2 is the size of tp",
                            f"16 repeats of it in {str(dtype)[6:]}")

    def test_one_rank_halved_is_a_mismatch(self):
        for dtype in self.draws:
            with self.subTest(dtype):
                self.expect(self.judged(dtype, HAND, halved_on_one_rank), 1, "grad.head.weight", "of step 1")

    def test_half_of_a_sum_is_a_mismatch(self):
        for dtype in self.draws:
            with self.subTest(dtype):
                self.expect(self.judged(dtype, SEQUENCE, norm_not_summed), 1, "norm", "of step 1")

    def test_clean_runs_match(self):
        for dtype in self.draws:
            for layout in (SEQUENCE, ("fsdp2", 2, 2)):
                with self.subTest(f"{dtype} {layout}"):
                    self.expect(self.judged(dtype, layout), 0, "MATCH")

    def test_too_few_repeats_resolve_nothing(self):
        fewer = self.folder / "fewer"
        shutil.copytree(self.golden(torch.bfloat16), fewer)
        shutil.rmtree(fewer / "noise7")
        self.expect(self.judged(torch.bfloat16, HAND, golden=str(fewer)), 4, "REFUSED",
                    "the reference has 15 repeats in bfloat16 of the 16 that give an allowance")

    def test_a_repeat_from_another_start_is_bad_input(self):
        other = self.folder / "other"
        shutil.copytree(self.golden(torch.float32), other)
        ranks.run(1, without_load, self.draws[torch.float32], str(other))
        self.expect(self.judged(torch.float32, HAND, golden=str(other)), 2, "noise3", "shardproof.load(model, golden)")


def without_load(rank, draw, golden):
    """The third repeat, from a start of its own."""
    model = draw.model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.25
    optimizer = draw.optimizer(model.parameters())
    with shardproof.record(model, optimizer, out=golden, noise=3) as rec:
        for step in range(draw.steps):
            tokens, targets = shardproof.batch(*draw.batch(step))
            logprobs = models.logprobs_of(model(tokens), targets)
            loss = -logprobs.mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            rec.logprobs(logprobs)
            rec.scalar("loss", loss)


class OutputTest(unittest.TestCase):
    """What a module gives is moved, and what it keeps is not."""

    def test_dicts(self):
        noise = object.__new__(Noise)
        noise._draws = torch.Generator()
        value = torch.ones(3)
        kept = collections.OrderedDict(scale=value, none=None)
        moved = noise._on_output(None, (), kept)
        self.assertIs(type(moved), collections.OrderedDict)
        self.assertIs(kept["scale"], value)
        self.assertIsNot(moved["scale"], value)

        class Frozen(dict):
            def __setitem__(self, key, one):
                raise TypeError("immutable")

            def __copy__(self):
                return self
        self.assertIsNone(noise._on_output(None, (), Frozen(scale=value)))


class RepeatTest(judging.RunsTest):
    def setUp(self):
        super().setUp()
        self.draw = layouts.Draw(2, torch.float32)

    def test_repeats_differ_by_roundings_and_are_repeatable(self):
        layouts.golden_run(ranks.run, self.draw, self.out, 2)
        folders = [self.out, self.out / "noise1", self.out / "noise2"]
        self.assertEqual([runs.header(folder).get("noise") for folder in folders], [None, 1, 2])
        golden, first, second = (runs.whole(folder, kind="grad", name="head.weight", step=1) for folder in folders)
        self.assertFalse(torch.equal(first, second))
        for repeat in (first, second):
            self.assertLess((repeat - golden).abs().max(), 1e-5 * golden.abs().max())
        ranks.run(1, layouts.train, self.draw, layouts.ONE, self.out, self.out, 1)
        self.assertTrue(torch.equal(first, runs.whole(folders[1], kind="grad", name="head.weight", step=1)))

    def test_a_new_golden_removes_the_repeats(self):
        layouts.golden_run(ranks.run, self.draw, self.out, 1)
        ranks.run(1, layouts.train, self.draw, layouts.ONE, self.out)
        self.assertFalse((self.out / "noise1").exists())

    def test_refusals(self):
        with self.assertRaisesRegex(AssertionError, "no run to repeat"):
            ranks.run(1, layouts.train, self.draw, layouts.ONE, self.out, None, 1)
        layouts.golden_run(ranks.run, self.draw, self.out, 0)
        with self.assertRaisesRegex(AssertionError, "noise=1 is given on 2 ranks"):
            ranks.run(2, layouts.train, self.draw, HAND, self.out, self.out, 1)
        with self.assertRaisesRegex(AssertionError, "repeats have numbers from 1"):
            ranks.run(1, layouts.train, self.draw, layouts.ONE, self.out, self.out, 0)


if __name__ == "__main__":
    unittest.main()
