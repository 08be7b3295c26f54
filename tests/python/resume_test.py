"""A run that is saved, loaded and goes on, judged beside one that was not interrupted: record(.., from_step=k)."""

import copy
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "python"))

import shardproof  # noqa: E402
import torch  # noqa: E402
from shardproof.error import Error  # noqa: E402

PROGRAM = os.environ.get("SHARDPROOF_PROGRAM")
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


@unittest.skipUnless(PROGRAM, "SHARDPROOF_PROGRAM is not set")
class ResumeTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        straight = Program()
        with shardproof.record(straight.model, straight.optimizer, out=self.folder / "straight") as rec:
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
        with shardproof.record(program.model, program.optimizer, out=self.folder / "resumed", from_step=from_step) as rec:
            program.train(until - before + program.step, rec)
        done = subprocess.run([PROGRAM, "judge", self.folder / "resumed", "--golden", self.folder / "straight"], text=True,
                              capture_output=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_a_whole_state_matches(self):
        status, text = self.resume()
        self.assertEqual(status, 0, text)
        self.assertIn("this run resumed after step 3 of the golden, so that its step 1 is step 4 there", text)

    def test_an_optimizer_that_begins_anew(self):
        status, text = self.resume("optimizer")
        self.assertEqual(status, 1, text)
        self.assertRegex(text, r"tensor +(exp_avg|step)\S*\.0\.weight")

    def test_a_moment_that_is_lost(self):
        status, text = self.resume(change=lambda saved: saved["optimizer"]["state"][2]["exp_avg_sq"].zero_())
        self.assertEqual(status, 1, text)
        self.assertRegex(text, r"tensor +exp_avg_sq\.1\.weight .* at the start")
        self.assertIn("what was saved there, or what was loaded here, is not the state after that step", text)

    def test_weights_of_an_earlier_step(self):
        status, text = self.resume(change=lambda saved: saved["model"]["2.bias"].add_(0.01))
        self.assertEqual(status, 1, text)
        self.assertRegex(text, r"tensor +param\.2\.bias")

    def test_a_count_of_steps(self):
        status, text = self.resume(change=lambda saved: saved["optimizer"]["state"][0]["step"].zero_())
        self.assertEqual(status, 1, text)
        self.assertRegex(text, r"tensor +step\.0\.weight")

    def test_a_rate_that_begins_anew(self):
        def forget(saved):
            saved["optimizer"]["param_groups"][0]["lr"] = 0.1
            saved["schedule"]["_last_lr"] = [0.1]
        status, text = self.resume(change=forget)
        self.assertEqual(status, 1, text)
        self.assertIn("moved by 8 of the golden's update: the learning rate, or another setting of the optimizer", text)

    def test_a_buffer_that_is_not_loaded(self):
        status, text = self.resume(change=lambda saved: saved["model"]["1.running_mean"].zero_())
        self.assertEqual(status, 1, text)
        self.assertRegex(text, r"tensor +buffer\.1\.running_mean")

    def test_data_that_begin_anew(self):
        status, text = self.resume("step")
        self.assertEqual(status, 1, text)
        self.assertRegex(text, r"tensor +(loss|grad\.)")

    def test_a_golden_without_these_steps_is_bad_input(self):
        status, text = self.resume(from_step=7)
        self.assertEqual(status, 2, text)
        self.assertIn("resumes after 7 steps, and", text)
        self.assertIn("has the steps 1 to 5", text)
        status, text = self.resume(from_step=2)
        self.assertEqual(status, 2, text)
        self.assertIn("the number of recorded steps", text)

    def test_a_negative_step_is_refused(self):
        program = Program()
        with self.assertRaisesRegex(Error, "from_step is -1"):
            shardproof.record(program.model, program.optimizer, out=self.folder / "none", from_step=-1)


if __name__ == "__main__":
    unittest.main()
