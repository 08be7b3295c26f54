import json
import subprocess
import sys
import unittest
from pathlib import Path

import judging
import models
import ranks  # finds the package
import runs
import torch
from schema_check import OF_RUNS, problems
from torch.nn.utils import clip_grad_norm_

import shardproof
from shardproof.piece import Piece, of_first_rows


def gradients_by_hand(model, step):
    """The gradients of a step's loss, computed without the recorder."""
    tokens, targets = models.global_batch(step)
    loss = -models.logprobs_of(model(tokens), targets).mean()
    return dict(zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters()))))


def train(model, optimizer, rec, steps=2, max_norm=None):
    for step in range(steps):
        loss = models.backward(model, step)
        if max_norm:
            clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
        rec.scalar("loss", loss)
    return loss


def three_steps(rec, call, optimizer):
    for _ in range(3):
        loss = call(torch.ones(1, 2).double()).sum()
        rec.scalar("loss", loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


class RecorderTest(judging.RunsTest):
    def setUp(self):
        super().setUp()
        torch.set_num_threads(1)
        self.model = models.build()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def record(self, **options):
        return shardproof.record(self.model, self.optimizer, out=self.out, **options)

    def test_what_comes_after_the_end_is_refused(self):
        with self.record() as rec:
            train(self.model, self.optimizer, rec, 1)
        for call, what in ((lambda: rec.scalar("loss", 1.0), '"loss" is recorded'),
                           (lambda: rec.tensor("x", torch.ones(2)), '"x" is recorded'),
                           (rec.gradients, r"rec.gradients\(\) is called"), (rec.stepped, r"rec.stepped\(\) is called")):
            with self.refused(f"{what}, and the recorder has ended. Call it within the with-block"):
                call()
        rec.close()

    def test_names_that_mean_nothing_are_refused(self):
        with self.record() as rec:
            for name in ("", "a\nb", "\x00", "n" * 5000):
                with self.refused(f"of {len(name)} characters. Give one of 1 to 1000 characters"):
                    rec.scalar(name, 1.0)
            rec.scalar("n" * 1000, 1.0)
            train(self.model, self.optimizer, rec, 1)

    def test_the_batch_of_an_evaluation_is_not_that_of_the_steps(self):
        with self.record() as rec:
            shardproof.batch(torch.zeros(4, 3))
            train(self.model, self.optimizer, rec, 1)
            shardproof.batch(torch.zeros(6, 3))
        self.assertEqual(runs.header(self.out)["batch"], {"rows": 4, "parts": 1})

    def test_a_batch_without_rows_is_refused(self):
        with self.refused("The batch has no rows. Give a multiple of 1"):
            shardproof.batch(torch.ones(0, 3))

    def refused(self, *words):
        """Expects an Error whose message has these words."""
        pattern = ".*".join(words)
        return self.assertRaisesRegex(shardproof.Error, f"(?s){pattern}")

    def check_gradients(self, expected, step):
        for name, gradient in expected.items():
            self.assertTrue(torch.equal(runs.whole(self.out, kind="grad", name=name, step=step), gradient), (step, name))

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

    def test_gradients_are_recorded_before_they_are_clipped_by_a_norm_that_is_known(self):
        """Its public name is bound in torch.nn.utils alone."""
        with self.record():
            models.backward(self.model, 0)
            expected = {name: one.grad.clone() for name, one in self.model.named_parameters()}
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), 0.01, torch.tensor(2.0))
            self.optimizer.step()
        self.check_gradients(expected, 1)
        self.assertEqual(float(runs.whole(self.out, kind="scalar", name="grad_norm", step=1)), 2)

    def test_a_clip_behind_the_step_begins_none(self):
        gradients = gradients_by_hand(self.model, 0)
        with self.record() as rec:
            for step in range(2):
                loss = models.backward(self.model, step)
                self.optimizer.step()
                clip_grad_norm_(self.model.parameters(), 0.01)
                rec.scalar("loss", loss)
                self.optimizer.zero_grad()
        self.assertEqual(runs.header(self.out)["steps"], 2)
        self.assertNotIn("max_norm", runs.header(self.out)["optimizer"])
        self.assertEqual(len(runs.pieces(self.out, kind="scalar", step=2)), 1)
        self.assertEqual((runs.pieces(self.out, kind="grad", step=3), runs.names(self.out, name="grad_norm")), ([], []))
        for name, gradient in gradients.items():
            torch.testing.assert_close(runs.whole(self.out, kind="grad", name=name, step=1), gradient, rtol=0, atol=1e-15)

    def test_gradients_that_no_hook_sees_are_recorded_before_they_are_clipped(self):
        """As those of torch.func.grad are, or of a program that sets them."""
        with self.record():
            for step in range(3):
                for parameter in self.model.parameters():
                    parameter.grad = torch.full_like(parameter, 10.0 + step)
                clip_grad_norm_(self.model.parameters(), 0.01)
                self.optimizer.step()
        for step in range(3):
            for name in runs.names(self.out, kind="grad"):
                self.assertEqual(set(runs.whole(self.out, kind="grad", name=name, step=step + 1).flatten().tolist()), {10.0 + step})
        self.assertEqual(len(runs.pieces(self.out, name="grad_norm")), 3)

    def test_a_clip_of_another_model_records_nothing(self):
        """A critic's clip comes before the backward pass of the actor, whose gradients still hold those of the last step."""
        critic = torch.nn.Linear(2, 2)
        with self.record():
            for step in range(2):
                self.optimizer.zero_grad(set_to_none=False)
                critic(torch.ones(1, 2)).sum().backward()
                clip_grad_norm_(critic.parameters(), 0.1)
                models.backward(self.model, step)
                gradients = {name: one.grad.clone() for name, one in self.model.named_parameters()}
                self.optimizer.step()
        self.check_gradients(gradients, 2)
        self.assertEqual(runs.names(self.out, kind="scalar"), [])

    def test_a_clip_of_another_model_behind_the_backward_pass_records_nothing(self):
        """All gradients of the recorded model have come, and the other one's tensors might be copies of its parameters."""
        probe = torch.nn.Linear(2, 2)
        twin = models.build()
        with self.record() as rec:
            models.backward(self.model, 0)
            for other in (probe, twin):
                sum(one.sum() for one in other.parameters()).backward()
                clip_grad_norm_(other.parameters(), 0.1)
            self.optimizer.step()
        self.assertEqual(runs.names(self.out, kind="scalar"), [])
        with shardproof.record(self.model, out=self.folder / "without") as rec:
            models.backward(self.model, 0)
            clip_grad_norm_(probe.parameters(), 0.1)
            rec.gradients()
            rec.stepped()
        self.assertEqual(runs.names(self.folder / "without", kind="scalar"), [])

    def test_copies_that_a_program_steps_are_clipped_for_the_model(self):
        for of_all in (True, False):  # by groups, all gradients have come
            with self.subTest(of_all), shardproof.record(self.model, out=self.out) as rec:
                self.model.zero_grad()
                models.backward(self.model, 0)
                copies = [one.detach().clone().requires_grad_() for one in self.model.parameters()]
                for copy, one in zip(copies, self.model.parameters()):
                    copy.grad = one.grad.clone()
                clip_grad_norm_(copies if of_all else copies[:3], 0.01)
                rec.stepped()
            self.assertEqual(runs.names(self.out, kind="scalar"), ["clip_coefficient", "grad_norm"])

    def test_a_step_that_is_tried_again_leaves_no_gradients_without_an_optimizer(self):
        with shardproof.record(self.model, out=self.out) as rec:
            for scale in (1000, 1):
                self.model.zero_grad()
                models.backward(self.model, 0, scale)
                clip_grad_norm_(self.model.parameters(), 1e9)
            gradients = {name: one.grad.clone() for name, one in self.model.named_parameters()}
            rec.stepped()
        self.check_gradients(gradients, 1)
        self.assertEqual(runs.names(self.out, kind="scalar"), ["clip_coefficient", "grad_norm"])

    def test_a_second_backward_pass_into_some_parameters(self):
        with shardproof.record(self.model, out=self.out) as rec:
            models.backward(self.model, 0)
            rec.gradients()
            self.model.head.weight.sum().backward()
            gradient = self.model.head.weight.grad.clone()
            rec.stepped()
        self.assertEqual(len(runs.pieces(self.out, kind="grad", step=1)), 10)
        self.assertTrue(torch.equal(runs.whole(self.out, kind="grad", name="head.weight", step=1), gradient))

    def test_gradients_that_nobody_recorded_are_not_guessed(self):
        """A program may have its own buffers, or have set them to zero."""
        with shardproof.record(self.model, out=self.out) as rec:
            models.backward(self.model, 0)
            rec.stepped()
        self.assertEqual(runs.pieces(self.out, kind="grad"), [])

    def test_an_optimizer_that_holds_another_model_too(self):
        critic = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD([*self.model.parameters(), *critic.parameters()], lr=0.1)
        with shardproof.record(self.model, optimizer, out=self.out):
            critic(torch.ones(1, 2)).sum().backward()
            clip_grad_norm_(critic.parameters(), 0.1)
            models.backward(self.model, 0)
            optimizer.step()
        self.assertEqual(runs.names(self.out, kind="scalar"), [])

    def test_what_cannot_be_recorded_is_refused(self):
        same_name = torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2)})
        on_meta = torch.nn.Linear(2, 2, device="meta")
        for model, options, words in (
                ([self.model, same_name], {}, ['Two parameters have the name "head.weight"', "ModuleDict"]),
                *((self.model, {option: value}, [f"^{option} is {value!r}\\. Give the "])
                  for option in ("steps", "rows", "max_bytes", "from_step") for value in (1.5, "2", True, -1, float("nan"))
                  if (option, value) != ("max_bytes", 1.5)),
                (self.model, {"steps": 0}, ["steps is 0", "None for all"]),
                (self.model, {"rows": 0}, ["rows is 0", "None for all"]),
                (self.model, {"max_bytes": 0}, ["max_bytes is 0", "None for any"]),
                (self.model, {"from_step": None}, ["from_step is None", "0 for none"]),
                (self.model, {"noise": True}, ["noise is True", "from 1 to 1024"]),
                (self.model, {"max_bytes": 100}, ["recorded \\d+ bytes", "max_bytes is 100", "only="]),
                (self.model, {"mesh": {"dp": 2, "tp": 2}}, ["has 4 ranks, but the run has 1"]),
                (lambda x: x, {}, ["The model is a function", "torch.nn.Module"]),
                (on_meta, {}, ['"weight" is on the meta device', "Materialize"])):
            with self.subTest(words[0]), self.refused(*words):
                optimizer = self.optimizer if model is self.model else None
                shardproof.record(model, optimizer, out=self.out, **options)

    def test_whole_numbers_of_other_types(self):
        with self.record(steps=2.0, rows=torch.tensor(3), max_bytes=0.3 * 2**30) as rec:
            train(self.model, self.optimizer, rec, steps=3)
            rec.tensor("part", torch.ones(1, 2), offset=torch.tensor([3, 1]), global_shape=torch.Size([4, 3]))
        self.assertEqual([runs.header(self.out)[name] for name in ("steps", "rows")], [2, 3])

    def test_places_that_a_tensor_does_not_fit_are_refused(self):
        tensor = torch.ones(2, 3)
        with self.record() as rec:
            for offset, global_shape in (((3, 0), (4, 3)), ((-1, 0), (4, 3)), ((0.5, 0), (4, 3)), ((True, 0), (4, 3)),
                                         ("ab", (4, 3)), (0, 4), ((0, 0), None), (None, (4, 3)), ((0,), (4, 3)), ((), ())):
                with self.subTest(offset=offset, global_shape=global_shape), \
                        self.refused('"x" has the shape \\[2, 3\\], the offset .* and the global shape', "within"):
                    rec.tensor("x", tensor, offset=offset, global_shape=global_shape)
            rec.tensor("x", tensor, offset=(2, 0), global_shape=(4, 3))
            train(self.model, self.optimizer, rec, steps=1)
        self.assertEqual(len(runs.pieces(self.out, name="x")), 1)

    def test_what_is_no_pattern_is_refused(self):
        for option in ("only", "activations", "hashes", "buffers"):
            for value in (3, [3], [None], ("*", 1.5)):
                with self.subTest(option, value=value), self.refused(f"^{option} is .*a list of patterns"):
                    self.record(**{option: value})

    def test_what_is_no_layout_or_matrix_optimizer_is_refused(self):
        for option in ("layouts", "matrices"):
            for value in ([1], "x", {3: shardproof.Replicate()}, shardproof.Muon()):
                with self.subTest(option, value=value), self.refused(f"^{option} is .*Give a dictionary"):
                    self.record(**{option: value})
        for function in (shardproof.coded, lambda model, layouts: shardproof.load(model, self.out, layouts=layouts)):
            with self.refused("^layouts is 3"):
                function(self.model, layouts=3)
        for arguments in (("0", "tp"), (0.5, "tp"), (0, "tp", 4), (0, "tp", (1.5,)), (True, "tp"), (0, "tp", (13, -1))):
            with self.subTest(arguments), self.refused("^A layout is Shard.*the number of a dim"):
                shardproof.Shard(*arguments)
        self.assertEqual(shardproof.Shard(-1, "tp", [4, 2]).dim, -1)
        # Numbers of NumPy and of torch, a range, and None for no blocks are what they mean.
        self.assertEqual(shardproof.Shard(torch.tensor(0), "tp", range(1, 3)), shardproof.Shard(0, "tp", (1, 2)))
        self.assertEqual(shardproof.Shard(0, "tp", None), shardproof.Shard(0, "tp"))
        self.assertEqual(shardproof.Muon(blocks=(torch.tensor(4),), momentum=torch.tensor(0.5)), shardproof.Muon((4,), 0.5))
        for options in ({"blocks": 4}, {"blocks": (1.5,)}, {"coefficients": (1, 2)}, {"coefficients": None}, {"iterations": 0},
                        {"iterations": 1.5}, {"momentum": "a"}, {"momentum": float("nan")}, {"state": None}):
            with self.subTest(options), self.refused("^An optimizer is Muon"):
                shardproof.Muon(**options)

    def test_what_is_no_tensor_or_number_is_refused(self):
        tensor = torch.ones(2, 3)
        with self.record() as rec:
            for call, words in (
                    (lambda: rec.tensor("x", [1, 2]), '"x" is a list and no tensor.*rec.scalar a number'),
                    (lambda: rec.tensor("x", None), '"x" is a NoneType and no tensor'),
                    (lambda: rec.logprobs({"logits": tensor}), '"logprobs" is a dict and no tensor'),
                    (lambda: rec.tensor(3, tensor), "the name 3"),
                    (lambda: rec.tensor("x", tensor.to_sparse()), '"x" has the layout torch.sparse_coo'),
                    (lambda: rec.tensor("x", tensor.to("meta")), '"x" is on the meta device'),
                    (lambda: rec.tensor("x", tensor, mean_over=3), "^mean_over is 3.*name of an axis"),
                    (lambda: rec.tensor("x", tensor, sum_over=(0,)), "^sum_over is .0,.*name of an axis"),
                    (lambda: rec.scalar("loss", None), 'The scalar "loss" is None. Give a number'),
                    (lambda: rec.scalar("loss", "2"), "The scalar \"loss\" is '2'"),
                    (lambda: rec.scalar("loss", 10 ** 400), 'The scalar "loss" is 1000'),
                    (lambda: rec.scalar("loss", 1j), 'The scalar "loss" is 1j'),
                    (lambda: rec.scalar("loss", [1, 2]), 'The scalar "loss" has 2 elements')):
                with self.subTest(words), self.refused(words):
                    call()
            train(self.model, self.optimizer, rec, steps=1)
        self.assertEqual(runs.names(self.out, kind="act"), [])

    def test_recorders_that_overlap_count_the_rows_of_a_batch_apart(self):
        other = models.build()
        with self.record() as rec, shardproof.record(other, out=self.folder / "other") as beside:
            for rows in shardproof.batch(torch.zeros(8, 3)).split(4):
                rec.logprobs(rows)
                beside.logprobs(rows)
            self.optimizer.step()
            beside.stepped()
        for out in (self.out, self.folder / "other"):
            self.assertEqual([line["offset"] for _, line, _ in runs.pieces(out, kind="logprobs")], [[0, 0], [4, 0]])

    def test_a_step_that_a_scaler_skips_leaves_no_gradients(self):
        with self.record():
            for step in range(2):
                self.optimizer.zero_grad()
                models.backward(self.model, step)
                if step == 0:
                    for one in self.model.parameters():
                        one.grad.fill_(float("inf"))
                gradients = {name: one.grad.clone() for name, one in self.model.named_parameters()}
                clip_grad_norm_(self.model.parameters(), 0.01)
                if step > 0:
                    self.optimizer.step()
        self.check_gradients(gradients, 1)
        self.assertEqual(runs.names(self.out, kind="scalar"), ["clip_coefficient", "grad_norm"])
        self.assertTrue(runs.whole(self.out, kind="scalar", name="grad_norm", step=1).isfinite())

    def test_a_fused_optimizer_gets_scaled_gradients_and_may_skip(self):
        """A GradScaler leaves both the division and the skipping to it."""
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        with self.record():
            for step in range(2):
                tokens, targets = models.global_batch(step)
                self.optimizer.zero_grad()
                scaler.scale(-models.logprobs_of(self.model(tokens), targets).mean()).backward()
                scale = scaler.get_scale()
                gradients = {name: one.grad / scale for name, one in self.model.named_parameters()}
                if step == 0:
                    next(self.model.parameters()).grad.fill_(float("inf"))
                scaler.step(self.optimizer)
                scaler.update()
        self.assertEqual(scale, 512)
        self.assertEqual(runs.names(self.out, kind="grad", step=2), [])
        self.check_gradients(gradients, 1)
        for name in gradients:
            self.assertEqual(float(runs.whole(self.out, kind="opt", name=f"step.{name}", step=1)), 1)

    def test_gradients_without_a_forward_pass_of_a_module(self):
        """Nothing says where a step begins but the optimizer."""
        expected = []
        with self.record():
            for step in range(3):
                self.optimizer.zero_grad()
                sum(((step + 1) * one.square()).sum() for one in self.model.parameters()).backward()
                expected.append({name: one.grad.clone() for name, one in self.model.named_parameters()})
                self.optimizer.step()
        for step, gradients in enumerate(expected, start=1):
            self.check_gradients(gradients, step)

    def test_an_infinite_norm_measures_alone(self):
        with self.record() as rec:
            train(self.model, self.optimizer, rec, steps=1, max_norm=float("inf"))
        self.assertNotIn("Infinity", (self.out / "run.json").read_text())
        self.assertEqual(float(runs.whole(self.out, kind="scalar", name="clip_coefficient", step=1)), 1)

    def test_recorders_that_overlap_both_see_clips(self):
        other = models.build()
        first = shardproof.record(other, torch.optim.SGD(other.parameters(), lr=0.1), out=self.folder / "first")
        with self.record() as rec:
            first.stepped()
            first.close()
            train(self.model, self.optimizer, rec, steps=1, max_norm=0.01)
        self.assertEqual(runs.names(self.out, kind="scalar"), ["clip_coefficient", "grad_norm", "loss"])
        self.assertEqual(runs.names(self.folder / "first", kind="scalar"), [])

    def test_clipping_is_unwrapped_at_the_end(self):
        before = (clip_grad_norm_, torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad.clip_grad_norm_)
        with self.record() as rec:
            self.assertTrue(hasattr(clip_grad_norm_, "__wrapped__"))
            train(self.model, self.optimizer, rec)
        self.assertEqual((clip_grad_norm_, torch.nn.utils.clip_grad_norm_,
                          torch.nn.utils.clip_grad.clip_grad_norm_), before)

    def test_a_script_that_binds_the_clipping_function(self):
        """torch gives the script's module a second name."""
        script = self.folder / "script.py"
        script.write_text("import sys\n"
                          f"sys.path[:0] = {[str(Path(one).parent) for one in (models.__file__, runs.__file__)]!r}\n"
                          "import ranks\nimport models\nimport shardproof\nimport torch\n"
                          "from torch.nn.utils import clip_grad_norm_\n"
                          "model = models.build()\n"
                          "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
                          f"with shardproof.record(model, optimizer, out={str(self.out)!r}):\n"
                          "    model(models.global_batch(0)[0]).square().mean().backward()\n"
                          "    clip_grad_norm_(model.parameters(), 0.01)\n"
                          "    optimizer.step()\n")
        done = subprocess.run([sys.executable, "-B", script], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(runs.names(self.out, kind="scalar"), ["clip_coefficient", "grad_norm"])

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
        logits = self.model(models.global_batch(0)[0]).detach()
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
        for kind, more in (("logprobs", []), ("act", [12])):
            rows = [(line["offset"], line["shape"], line["microbatch"]) for _, line, _ in runs.pieces(self.out, kind=kind)]
            self.assertEqual(rows, [([first, 0] + [0] * len(more), [2, 5] + more, 0) for first in (0, 2)])
        torch.testing.assert_close(runs.whole(self.out, kind="act", name="head"), logits, rtol=0, atol=1e-12)

    def test_what_is_written_fits_the_schema(self):
        with self.record(activations="layers.*", only=["layers.*"], steps=1) as rec:
            train(self.model, self.optimizer, rec, max_norm=1.0)
        self.assertEqual(problems(runs.header(self.out), OF_RUNS["header"]), [])
        *lines, end = runs.lines(self.out)
        for line in lines:
            self.assertEqual(problems(line, OF_RUNS["piece" if "key" in line else "hash"]), [])
        self.assertEqual(problems(end, OF_RUNS["end"]), [])
        self.assertNotEqual(problems(lines[0] | {"flat": [0, 1]}, OF_RUNS["piece"]), [])

    def test_only_and_steps_limit_what_is_recorded(self):
        with self.record(only="*.norm.*", steps=1) as rec:
            train(self.model, self.optimizer, rec, steps=3)
        self.assertEqual(runs.names(self.out, kind="grad"),
                         [f"layers.{n}.norm.{end}" for n in range(2) for end in ("bias", "weight")])
        self.assertEqual({line["step"] for _, line, _ in runs.pieces(self.out)}, {0, 1})
        self.assertEqual((runs.header(self.out)["steps"], runs.header(self.out)["only"]), (1, ["*.norm.*"]))
        self.assertEqual(len(runs.header(self.out)["optimizer"]["lr"]), 1)

    def test_the_gradients_of_a_closure_are_those_of_its_step(self):
        expected = []

        def closure():
            self.optimizer.zero_grad()
            loss = models.backward(self.model, step)
            expected.append({name: one.grad.clone() for name, one in self.model.named_parameters()})
            return loss

        self.optimizer = torch.optim.LBFGS(self.model.parameters(), max_iter=3)  # calls the closure several times
        with self.record():
            for step in range(2):
                calls = len(expected)
                self.optimizer.step(closure)
                del expected[calls + 1:]  # the first call's gradients are those of the step
        self.assertEqual(len(expected), 2)
        for step, gradients in enumerate(expected, start=1):
            self.check_gradients(gradients, step)

    def test_an_optimizer_whose_settings_are_no_numbers(self):
        self.optimizer = torch.optim.Adafactor(self.model.parameters())
        with self.record() as rec:
            train(self.model, self.optimizer, rec, steps=1)
        self.assertNotIn("eps", json.loads((self.out / "run.json").read_text())["optimizer"])

    def test_patterns_that_fit_no_name_are_refused(self):
        with self.refused('only: none of the .* names of the model fits "layers.0.upp.weight"', "layers.0.up.weight"):
            self.record(only="layers.0.upp.weight")
        for option in ("activations", "hashes"):
            with self.refused('fits "haed"', '"head"'):
                self.record(**{option: "haed"})
        for option, fits in (("buffers", "*.running_meen"), ("matrices", {"layers.0.upp.weight": shardproof.Muon()})):
            with self.refused(f"{option}: none of the .* names of the model fits"):
                self.record(**{option: fits})

    def test_only_the_first_rows_are_recorded(self):
        """Rank 1 of three holds rows 4 to 7 of 12, of which row 4 is among the first five; rank 2 holds none of them."""
        gradients = gradients_by_hand(self.model, 0)
        with self.record(rows=5) as rec:
            train(self.model, self.optimizer, rec, steps=1)
        for name, gradient in gradients.items():
            recorded = runs.whole(self.out, kind="grad", name=name, step=1)
            self.assertEqual(recorded.shape[0], min(5, gradient.shape[0]))
            self.assertTrue(torch.equal(recorded, gradient[:5]), name)
        self.assertEqual(json.loads((self.out / "run.json").read_text())["rows"], 5)
        with self.refused("recorded 5 rows of each parameter", "from a checkpoint"):
            shardproof.load(self.model, self.out)

    def test_pieces_of_the_first_rows(self):
        tensor = torch.arange(48.0).reshape(12, 4)
        box = [of_first_rows(Piece(tensor[start:start + 4], (12, 4), (start, 0)), 5) for start in (0, 4, 8)]
        self.assertEqual([one and (one.tensor.tolist(), one.offset, one.global_shape) for one in box],
                         [(tensor[:4].tolist(), (0, 0), (5, 4)), (tensor[4:5].tolist(), (4, 0), (5, 4)), None])
        flat = [of_first_rows(Piece(tensor.flatten()[start:start + 18], (12, 4), flat=(start, start + 18)), 5)
                for start in (0, 18, 36)]
        self.assertEqual([one and (one.tensor.tolist(), one.flat, one.global_shape) for one in flat],
                         [(list(range(18)), (0, 18), (5, 4)), ([18, 19], (18, 20), (5, 4)), None])
        layer = of_first_rows(Piece(tensor[None], (3, 12, 4), (1, 0, 0), leading=1), 5)
        self.assertEqual((layer.tensor.tolist(), layer.offset, layer.global_shape),
                         ([tensor[:5].tolist()], (1, 0, 0), (3, 5, 4)))
        scalar = Piece(torch.tensor(1.0), (), ())
        self.assertIs(of_first_rows(scalar, 5), scalar)

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

    def test_a_graph_does_not_depend_on_what_was_recorded(self):
        """Modules that are compiled one by one share a graph; the limit of torch is 8 graphs of one code, and then it
        either raises or stops to compile."""
        blocks = [torch.nn.Linear(2, 2).double() for _ in range(12)]
        for when in ("before", "while"):
            with self.subTest(when):
                model = torch.nn.Sequential(*blocks)
                graphs = []
                backend = lambda graph, _: graphs.append(graph) or graph.forward  # noqa: E731
                if when == "before":
                    for one in blocks:
                        one.compile(backend=backend, fullgraph=True)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                out = self.out / when
                with shardproof.record(model, optimizer, out=out) as rec:
                    if when == "while":
                        model.compile(backend=backend, fullgraph=True)
                    three_steps(rec, model, optimizer)
                self.assertLessEqual(len(graphs), 2)
                steps = [line["step"] for _, line, _ in runs.pieces(out, kind="scalar", name="loss")]
                self.assertEqual(steps, [1, 2, 3])
                torch._dynamo.reset()

    def test_a_step_begins_with_the_forward_pass_of_what_was_compiled(self):
        """The recorder has the model itself, and the program calls something around it."""
        def of_function(model):
            return torch.compile(lambda x: model(x), backend="eager")

        def of_own(model):
            class Outer(torch.nn.Module):
                def compile(self, *args, **kwargs):
                    self.inner.compile(*args, **kwargs)
                    return self

                def forward(self, x):
                    return self.inner(x)
            outer = Outer()
            outer.inner = model
            return outer.compile(backend="eager")

        ways = {"module": lambda model: torch.compile(model, backend="eager", fullgraph=True), "function": of_function,
                "ddp": lambda model: torch.compile(torch.nn.Sequential(model), backend="eager"), "own": of_own}
        for name, way in ways.items():
            for early in (True, False):
                with self.subTest(name, early=early):
                    torch._dynamo.reset()
                    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)).double()
                    call = way(model) if early else None
                    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                    out = self.out / f"{name} {early}"
                    with shardproof.record(model, optimizer, out=out) as rec:
                        call = call or way(model)
                        three_steps(rec, call, optimizer)
                    steps = [line["step"] for _, line, _ in runs.pieces(out, kind="scalar", name="loss")]
                    self.assertEqual(steps, [1, 2, 3])

    def test_outputs_of_compiled_modules_are_recorded_once(self):
        self.model.layers[0] = torch.compile(self.model.layers[0], backend="eager")
        with self.record(activations="layers.*") as rec:
            train(self.model, self.optimizer, rec, steps=1)
        names = [line["name"] for _, line, _ in runs.pieces(self.out, kind="act")]
        self.assertEqual(sorted(names), [f"layers.{layer}{part}" for layer in (0, 1)
                                         for part in ("", ".down", ".norm", ".up")])

    def test_a_run_without_a_torch_optimizer_is_recorded_by_two_calls(self):
        with shardproof.record(self.model, out=self.out) as rec:
            models.backward(self.model, 0)
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

    def test_a_file_in_place_of_the_folder_is_refused(self):
        self.out.write_text("mine")
        with self.assertRaisesRegex(shardproof.Error, "cannot be a folder of a run: File exists. Name another one"):
            shardproof.record(self.model, out=self.out)
        self.assertEqual(self.out.read_text(), "mine")

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

    def test_a_run_without_a_step_is_refused(self):
        with self.refused("No optimizer step"):
            with self.record():
                pass
        self.assertFalse((self.out / "run.json").exists())

    def test_sparse_gradients_are_refused(self):
        model = torch.nn.Embedding(4, 2, sparse=True)
        with shardproof.record(model, out=self.out) as rec:
            model(torch.tensor([1])).sum().backward()
            with self.refused("layout torch.sparse_coo", "sparse=False"):
                rec.gradients()
            rec.stepped()

    def test_an_optimizer_of_other_parameters_is_refused(self):
        other = torch.optim.SGD(models.build().parameters(), lr=1.0)
        with self.refused("holds 10 parameters, none of which", "Otherwise give record the optimizer of this model"):
            shardproof.record(self.model, other, out=self.out)

    def test_an_optimizer_that_cannot_step_is_refused_and_no_wrapper_is_left(self):
        before = torch.nn.utils.clip_grad_norm_
        with self.refused("is a int and has no step", "rec.stepped"):
            shardproof.record(self.model, 3, out=self.out)
        self.assertIs(torch.nn.utils.clip_grad_norm_, before)
        self.assertFalse(self.model._forward_pre_hooks)


if __name__ == "__main__":
    unittest.main()
