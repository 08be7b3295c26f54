import json
import tempfile
import unittest
from pathlib import Path

import models
import ranks  # finds the package
import runs
import schema_check
import torch
from torch.nn.utils import clip_grad_norm_

import shardproof

SCHEMA = Path(shardproof.__file__).with_name("run.schema.json")


def gradients_by_hand(model, step):
    """The gradients of a step's loss, computed without the recorder."""
    tokens, targets = models.global_batch(step)
    loss = -models.logprobs_of(model(tokens), targets).mean()
    return dict(zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters()))))


def train(model, optimizer, rec, steps=2, max_norm=None):
    for step in range(steps):
        tokens, targets = models.global_batch(step)
        loss = -models.logprobs_of(model(tokens), targets).mean()
        loss.backward()
        if max_norm:
            clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
        rec.scalar("loss", loss)
    return loss


class RecorderTest(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = Path(self.folder.name) / "run"
        self.model = models.build()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def record(self, **options):
        return shardproof.record(self.model, self.optimizer, out=self.out, **options)

    def refused(self, *words):
        """Expects an Error whose message has these words."""
        pattern = ".*".join(words)
        return self.assertRaisesRegex(shardproof.Error, f"(?s){pattern}")

    def test_gradients_are_recorded_before_they_are_clipped(self):
        gradients = gradients_by_hand(self.model, 0)
        with self.record() as rec:
            train(self.model, self.optimizer, rec, steps=1, max_norm=0.01)
        for name, gradient in gradients.items():
            recorded = runs.whole(self.out, kind="grad", name=name, step=1)
            torch.testing.assert_close(recorded, gradient, rtol=0, atol=1e-15)
        norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm()
        recorded = runs.whole(self.out, kind="scalar", name="grad_norm", step=1)
        torch.testing.assert_close(recorded, norm, rtol=1e-12, atol=0)
        coefficient = runs.whole(self.out, kind="scalar", name="clip_coefficient", step=1)
        torch.testing.assert_close(coefficient, 0.01 / norm, rtol=1e-4, atol=0)
        self.assertEqual(runs.header(self.out)["optimizer"]["max_norm"], 0.01)

    def test_clipping_is_unwrapped_at_the_end(self):
        before = (clip_grad_norm_, torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad.clip_grad_norm_)
        with self.record() as rec:
            self.assertIsNot(clip_grad_norm_, before[0])
            train(self.model, self.optimizer, rec)
        self.assertEqual((clip_grad_norm_, torch.nn.utils.clip_grad_norm_,
                          torch.nn.utils.clip_grad.clip_grad_norm_), before)

    def test_no_hook_is_left_at_the_end(self):
        with self.record(activations="*") as rec:
            train(self.model, self.optimizer, rec)
        for module in self.model.modules():
            self.assertFalse(module._forward_pre_hooks or module._forward_hooks)
        for parameter in self.model.parameters():
            self.assertFalse(parameter._post_accumulate_grad_hooks)
        self.assertFalse(self.optimizer._optimizer_step_pre_hooks or self.optimizer._optimizer_step_post_hooks)

    def test_parameters_and_states_are_those_after_the_step(self):
        with self.record() as rec:
            train(self.model, self.optimizer, rec)
        for name, parameter in self.model.named_parameters():
            self.assertTrue(torch.equal(runs.whole(self.out, kind="param", name=name, step=2), parameter))
            for state in ("exp_avg", "exp_avg_sq"):
                recorded = runs.whole(self.out, kind="opt", name=f"{state}.{name}", step=2)
                self.assertTrue(torch.equal(recorded, self.optimizer.state[parameter][state]))

    def test_a_gradient_accumulated_over_microbatches_is_recorded_once(self):
        halves = [tuple(one.split(2)[n] for one in models.global_batch(0)) for n in range(2)]
        expected = gradients_by_hand(self.model, 0)
        shardproof.batch(*models.global_batch(0))
        with self.record(activations="head") as rec:
            shardproof.batch(*models.global_batch(0))
            for tokens, targets in halves:
                logprobs = models.logprobs_of(self.model(tokens), targets)
                (-logprobs.mean() / 2).backward()
                rec.logprobs(logprobs)
            self.optimizer.step()
        for name, gradient in expected.items():
            self.assertEqual(len(runs.pieces(self.out, kind="grad", name=name)), 1)
            torch.testing.assert_close(runs.whole(self.out, kind="grad", name=name), gradient, rtol=0, atol=1e-12)
        rows = [(line["offset"], line["shape"], line["microbatch"]) for _, line, _ in
                runs.pieces(self.out, kind="logprobs")]
        self.assertEqual(rows, [([0, 0], [2, 5], 0), ([2, 0], [2, 5], 0)])
        self.assertEqual([line["microbatch"] for _, line, _ in runs.pieces(self.out, kind="act")], [0, 1])

    def test_what_is_written_fits_the_schema(self):
        with self.record(activations="layers.*", only=["layers.*"], steps=1) as rec:
            train(self.model, self.optimizer, rec, max_norm=1.0)
        schema = json.loads(SCHEMA.read_text())["$defs"]
        self.assertEqual(schema_check.problems(runs.header(self.out), schema["header"]), [])
        lines = [json.loads(line) for line in (self.out / "rank0.jsonl").read_text().splitlines()]
        for line in lines[:-1]:
            self.assertEqual(schema_check.problems(line, schema["piece"]), [])
        self.assertEqual(schema_check.problems(lines[-1], schema["end"]), [])
        self.assertNotEqual(schema_check.problems(lines[0] | {"flat": [0, 1]}, schema["piece"]), [])

    def test_only_and_steps_limit_what_is_recorded(self):
        with self.record(only="*.norm.*", steps=1) as rec:
            train(self.model, self.optimizer, rec, steps=3)
        self.assertEqual(runs.names(self.out, kind="grad"),
                         [f"layers.{n}.norm.{end}" for n in range(2) for end in ("bias", "weight")])
        self.assertEqual({line["step"] for _, line, _ in runs.pieces(self.out)}, {0, 1})
        self.assertEqual((runs.header(self.out)["steps"], runs.header(self.out)["only"]), (1, ["*.norm.*"]))
        self.assertEqual(len(runs.header(self.out)["optimizer"]["lr"]), 1)

    def test_a_scalar_after_the_step_belongs_to_that_step(self):
        with self.record() as rec:
            last = train(self.model, self.optimizer, rec)
        steps = [line["step"] for _, line, _ in runs.pieces(self.out, kind="scalar", name="loss")]
        self.assertEqual(steps, [1, 2])
        self.assertTrue(torch.equal(runs.whole(self.out, kind="scalar", name="loss", step=2), last.detach()))

    def test_a_python_number_has_the_precision_of_the_parameters(self):
        for dtype in (torch.float64, torch.float32):
            model = torch.nn.Linear(2, 2, dtype=dtype)
            with shardproof.record(model, out=self.out) as rec:
                rec.scalar("loss", 0.1)
                rec.stepped()
            self.assertEqual(runs.whole(self.out, name="loss").dtype, dtype)

    def test_names_do_not_contain_what_compilation_adds(self):
        compiled = torch.compile(self.model, backend="eager")
        with shardproof.record(compiled, self.optimizer, out=self.out) as rec:
            rec.gradients()
            rec.stepped()
        self.assertEqual(runs.names(self.out, kind="param"), sorted(dict(self.model.named_parameters())))

    def test_a_run_without_a_torch_optimizer_is_recorded_by_two_calls(self):
        with shardproof.record(self.model, out=self.out) as rec:
            tokens, targets = models.global_batch(0)
            models.logprobs_of(self.model(tokens), targets).mean().backward()
            rec.gradients()
            rec.stepped()
        self.assertEqual(len(runs.pieces(self.out, kind="grad", step=1)), 10)
        self.assertNotIn("optimizer", runs.header(self.out))

    def test_an_exception_leaves_no_whole_run(self):
        with self.assertRaises(ZeroDivisionError):
            with self.record() as rec:
                train(self.model, self.optimizer, rec)
                1 / 0
        rec.close()
        self.assertEqual(list(self.out.iterdir()), [])

    def test_a_folder_with_foreign_files_is_refused(self):
        self.out.mkdir()
        (self.out / "model.pt").write_text("")
        with self.refused("holds 1 files", "model.pt", "empty"):
            self.record()

    def test_an_earlier_run_is_replaced(self):
        for steps in (2, 1):
            with self.record() as rec:
                train(self.model, self.optimizer, rec, steps)
            (self.out / "rank7.jsonl").write_text("")
        with self.record() as rec:
            self.assertEqual(list(self.out.iterdir()), [])
            train(self.model, self.optimizer, rec, 1)
        self.assertEqual(runs.header(self.out)["steps"], 1)

    def test_the_golden_run_that_was_loaded_is_not_overwritten(self):
        with self.record() as rec:
            train(self.model, self.optimizer, rec)
        shardproof.load(self.model, self.out)
        with self.refused("the golden run", "another"):
            self.record()
        self.assertTrue((self.out / "run.json").exists())

    def test_more_bytes_than_allowed_are_refused(self):
        with self.refused("recorded \\d+ bytes", "max_bytes is 100", "only="):
            self.record(max_bytes=100)

    def test_a_run_without_a_step_is_refused(self):
        with self.refused("No optimizer step"):
            with self.record():
                pass
        self.assertFalse((self.out / "run.json").exists())

    def test_a_function_is_refused(self):
        with self.refused("The model is a function", "torch.nn.Module"):
            shardproof.record(lambda x: x, out=self.out)

    def test_meta_parameters_are_refused(self):
        with torch.device("meta"):
            model = torch.nn.Linear(2, 2)
        with self.refused('"weight" is on the meta device', "Materialize"):
            shardproof.record(model, out=self.out)

    def test_sparse_gradients_are_refused(self):
        model = torch.nn.Embedding(4, 2, sparse=True)
        with shardproof.record(model, out=self.out) as rec:
            model(torch.tensor([1])).sum().backward()
            with self.refused("layout torch.sparse_coo", "sparse=False"):
                rec.gradients()
            rec.stepped()

    def test_an_optimizer_of_other_parameters_is_refused(self):
        other = torch.optim.SGD(models.build().parameters(), lr=1.0)
        with self.refused("holds 10 parameters, none of which", "after fully_shard"):
            shardproof.record(self.model, other, out=self.out)

    def test_an_optimizer_that_cannot_step_is_refused_and_no_wrapper_is_left(self):
        before = torch.nn.utils.clip_grad_norm_
        with self.refused("is a int and has no step", "rec.stepped"):
            shardproof.record(self.model, 3, out=self.out)
        self.assertIs(torch.nn.utils.clip_grad_norm_, before)
        self.assertFalse(self.model._forward_pre_hooks)

    def test_a_mesh_of_another_size_is_refused(self):
        with self.refused("has 4 ranks, but the run has 1"):
            self.record(mesh={"dp": 2, "tp": 2})


if __name__ == "__main__":
    unittest.main()
