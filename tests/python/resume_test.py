"""A run that is saved, loaded and goes on, judged beside one that was not interrupted: record(.., from_step=k)."""

import copy
import unittest

import judging
import ranks  # noqa: F401 (finds the package)
import torch

import shardproof
from shardproof.error import Error

STEPS, SAVED = 5, 3


class Program:
    """Trains with momentum, a schedule and a norm with a buffer, so that each has a state of its own to be saved."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3)).double()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)
        self.step = 0

    def train(self, until, rec=None):
        while self.step < until:
            rows = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(self.step))
            loss = self.model(rows).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            self.step += 1
            if rec is not None:
                rec.scalar("loss", loss)

    def save(self):
        return copy.deepcopy({name: getattr(self, name).state_dict() for name in ("model", "optimizer", "schedule")} |
                             {"step": self.step})

    def load(self, saved, *left_out):
        for name in ("model", "optimizer", "schedule"):
            if name not in left_out:
                getattr(self, name).load_state_dict(saved[name])
        if "step" not in left_out:
            self.step = saved["step"]


@judging.needs_program
class ResumeTest(judging.RunsTest):
    def setUp(self):
        super().setUp()
        straight = Program()
        with shardproof.record(straight.model, straight.optimizer, out=self.golden) as rec:
            straight.train(SAVED, rec)
            self.saved = straight.save()
            straight.train(STEPS, rec)

    def resume(self, *left_out, change=None, from_step=SAVED, until=STEPS, before=SAVED):
        """The judge's status and text for a run that loads all but what is left out."""
        program = Program()
        if change:
            change(self.saved)
        program.load(self.saved, *left_out)
        program.step = program.step if "step" in left_out else before
        with shardproof.record(program.model, program.optimizer, out=self.out, from_step=from_step) as rec:
            program.train(until - before + program.step, rec)
        return self.judge()

    def test_a_whole_state_matches(self):
        self.expect(self.resume(), 0, "this run resumed after step 3 of the golden, so that its step 1 is step 4 there")

    def test_an_optimizer_that_begins_anew(self):
        self.expect_patterns(self.resume("optimizer"), 1, r"tensor +(exp_avg|step)\S*\.0\.weight",
                             "likely +it was not saved, or what was loaded here lacks it")

    def test_a_moment_that_is_lost(self):
        self.expect_patterns(self.resume(change=lambda saved: saved["optimizer"]["state"][2]["exp_avg_sq"].zero_()), 1,
                             r"tensor +exp_avg_sq\.1\.weight .* at the start",
                             "what was saved there, or what was loaded here, is not the state after that step")

    def test_weights_of_an_earlier_step(self):
        self.expect_patterns(self.resume(change=lambda saved: saved["model"]["2.bias"].add_(0.01)), 1,
                             r"tensor +param\.2\.bias")

    def test_a_count_of_steps(self):
        self.expect_patterns(self.resume(change=lambda saved: saved["optimizer"]["state"][0]["step"].zero_()), 1,
                             r"tensor +step\.0\.weight")

    def test_a_rate_that_begins_anew(self):
        def forget(saved):
            saved["optimizer"]["param_groups"][0]["lr"] = 0.1
            saved["schedule"]["_last_lr"] = [0.1]
        self.expect(self.resume(change=forget), 1,
                    "moved by 8 x the golden's update: the learning rate, or another setting of the optimizer")

    def test_a_buffer_that_is_not_loaded(self):
        self.expect_patterns(self.resume(change=lambda saved: saved["model"]["1.running_mean"].zero_()), 1,
                             r"tensor +buffer\.1\.running_mean")

    def test_data_that_begin_anew(self):
        self.expect_patterns(self.resume("step"), 1, r"tensor +(loss|grad\.)")

    def test_a_golden_without_these_steps_is_bad_input(self):
        self.expect(self.resume(from_step=7), 2, "resumes after 7 steps, and", "has the steps 1 to 5")
        self.expect(self.resume(from_step=2), 2, "the number of recorded steps")

    def test_a_negative_step_is_refused(self):
        program = Program()
        with self.assertRaisesRegex(Error, "from_step is -1"):
            shardproof.record(program.model, program.optimizer, out=self.folder / "none", from_step=-1)


if __name__ == "__main__":
    unittest.main()
