"""What a run says of its optimizers: the rule behind a class's name, the numbers of each group, and which calls are steps."""

import itertools
import unittest
import warnings

import judging
import models
import ranks
import runs
import torch
from schema_check import OF_RUNS, problems
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import shardproof
from shardproof import optimizers


class MyAdamW(torch.optim.AdamW):
    """Another name, and nothing else."""


class OwnStep(torch.optim.AdamW):
    """Computes something else."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data -= group["lr"] * parameter.grad.sign()


class FusedAdam(torch.optim.Optimizer):
    """As DeepSpeed's and apex's classes look."""

    def __init__(self, parameters, adam_w_mode=True):
        super().__init__(parameters, {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0})
        self.adam_w_mode = adam_w_mode

    def step(self, closure=None):
        pass


class Chained:
    """A script's own wrapper, which has param_groups and no state."""

    def __init__(self, *parts):
        self.parts = list(parts)

    @property
    def param_groups(self):
        return [group for one in self.parts for group in one.param_groups]

    def step(self):
        for one in self.parts:
            one.step()


class Descent:
    """A script's own optimizer."""

    def __init__(self, parameters):
        self.param_groups = [{"params": list(parameters), "lr": 0.1}]

    def step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.data -= 0.1 * parameter.grad


def backward(model, step):
    model.zero_grad()
    models.backward(model, step)


def train_two(rank, out, factor=1.0, rule=MyAdamW, steps=2):
    """SGD and a second optimizer, which steps after it with `factor` times its rate."""
    model = models.build()
    ends, others = models.halves(model)
    first = torch.optim.SGD(ends, lr=0.1)
    second = rule(others, lr=1e-2 * factor)
    with shardproof.record(model, [first, second], out=out):
        for step in range(steps):
            backward(model, step)
            first.step()
            second.step()


def train_one(rank, out, rule, factor):
    model = models.build()
    optimizer = rule(model.parameters(), lr=1e-2 * factor)
    with shardproof.record(model, optimizer, out=out):
        backward(model, 0)
        optimizer.step()


def train_muon(rank, out, golden, world_size, steps=3, bug="", bug_step=1):
    """Muon orthogonalizes in bfloat16, so that its parameters after the first step are unresolved in float64."""
    with shardproof.float64():
        model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Tanh(), nn.Linear(16, 8, bias=False))
        if world_size > 1:
            mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("dp",))
            for layer in (model[0], model[2]):
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        optimizer = torch.optim.Muon(model.parameters(), lr=0.02 * (2 if bug == "rate" else 1))
        if golden:
            shardproof.load(model, golden)
        with shardproof.record(model, optimizer, out=out) as rec:
            for step in range(steps):
                inputs = shardproof.batch((torch.arange(8.0 * 16).reshape(8, 16) * (0.7 + step)).sin())
                optimizer.zero_grad()
                loss = (model(inputs) - 0.3).square().mean()
                is_lost = bug == "lost" and step == bug_step and rank == 1
                (loss * (0 if is_lost else 1)).backward()
                if bug == "doubled" and step == bug_step:
                    for parameter in model.parameters():
                        parameter.grad._local_tensor.mul_(2)
                optimizer.step()
                rec.scalar("loss", loss, mean_over=("dp",))


class OptimizersTest(judging.RunsTest):
    def setUp(self):
        super().setUp()
        torch.set_num_threads(1)
        self.model = models.build()

    def header(self):
        header = runs.header(self.out)
        self.assertEqual(problems(header, OF_RUNS["header"]), [])
        return header

    def record(self, optimizer):
        return shardproof.record(self.model, optimizer, out=self.out)

    def train(self, optimizer, steps):
        """Records steps, each of which has a backward pass of its own."""
        with self.record(optimizer):
            for step in range(steps):
                backward(self.model, step)
                optimizer.step()

    def test_the_rule_is_that_of_the_class_whatever_its_name(self):
        adam, sgd = torch.optim.Adam, torch.optim.SGD
        for rule, make in (("adamw", torch.optim.AdamW), ("adamw", MyAdamW), ("adam", adam),
                           ("adam", type("Renamed", (adam,), {})), ("sgd", type("Renamed", (sgd,), {})),
                           ("adamw", FusedAdam), ("adam", lambda one: FusedAdam(one, False)),
                           ("adamw", type("DeepSpeedCPUAdam", (FusedAdam,), {})),
                           ("other", OwnStep), ("other", torch.optim.RMSprop), ("other", torch.optim.Adagrad)):
            made = make(self.model.parameters())
            self.assertEqual(optimizers.rule_of(made, made.param_groups[0]), rule, type(made).__mro__)

    def test_the_numbers_of_a_renamed_class(self):
        self.train(MyAdamW(self.model.parameters(), lr=0.02, betas=(0.8, 0.9), amsgrad=True), 1)
        self.assertEqual(self.header()["optimizer"],
                         {"type": "MyAdamW", "rule": "adamw", "lr": [0.02], "betas": [0.8, 0.9], "eps": 1e-8,
                          "weight_decay": 0.01, "amsgrad": True})

    def test_groups_that_differ_are_named_with_their_rates(self):
        ends, others = models.halves(self.model)
        optimizer = torch.optim.SGD([{"params": ends, "lr": 0.5}, {"params": others}], lr=0.25, momentum=0.5)
        with self.record(optimizer):
            for step in range(2):
                backward(self.model, step)
                optimizer.step()
                optimizer.param_groups[1]["lr"] /= 2
        settings = self.header()["optimizer"]
        self.assertEqual(settings["lr"], [0.5, 0.5])
        self.assertEqual([group["lr"] for group in settings["groups"]], [[0.5, 0.5], [0.25, 0.125]])
        self.assertEqual(settings["groups"][0]["parameters"], ["embed.weight", "head.weight"])
        self.assertEqual(len(settings["groups"][1]["parameters"]), 8)

    def test_only_a_number_is_a_norm_that_a_step_returns(self):
        for norm, known in ((2, 2.0), (torch.tensor(2.5), 2.5), (None, None), ("lr too high", None), ({}, None), (torch.ones(2), None)):
            self.assertEqual(optimizers.reported_norm(None, (True, norm, 0)), known, norm)
        self.assertIsNone(optimizers.reported_norm(None, (True, 2)))

    def test_a_model_without_floating_point_numbers_is_refused(self):
        model = nn.Module()
        model.counts = nn.Parameter(torch.ones(3, dtype=torch.int32), requires_grad=False)
        with self.assertRaisesRegex(shardproof.Error, "has floating-point numbers. Record the parameters that are trained"):
            with shardproof.record(model, out=self.out) as rec:
                rec.stepped()

    def test_equal_groups_are_not_named(self):
        ends, others = models.halves(self.model)
        self.train(torch.optim.SGD([{"params": ends}, {"params": others}], lr=0.25), 1)
        self.assertNotIn("groups", self.header()["optimizer"])

    def test_two_optimizers_make_one_step(self):
        train_two(0, self.out)
        header = self.header()
        self.assertEqual(header["steps"], 2)
        self.assertEqual((header["optimizer"]["type"], header["optimizer"]["rule"]), ("SGD and MyAdamW", "other"))
        self.assertEqual([(group["rule"], group["lr"]) for group in header["optimizer"]["groups"]],
                         [("sgd", [0.1, 0.1]), ("adamw", [0.01, 0.01])])
        model = self.model
        ends, others = models.halves(model)
        first, second = torch.optim.SGD(ends, lr=0.1), torch.optim.AdamW(others, lr=1e-2)
        for step in range(2):
            backward(model, step)
            expected = {name: one.grad.clone() for name, one in model.named_parameters()}
            first.step()
            second.step()
            for name, parameter in model.named_parameters():
                found = [runs.whole(self.out, kind=kind, name=name, step=step + 1) for kind in ("grad", "param")]
                self.assertTrue(torch.equal(found[0], expected[name]) and torch.equal(found[1], parameter), name)
        self.assertTrue(torch.equal(runs.whole(self.out, kind="opt", name="exp_avg.layers.0.up.weight", step=2),
                                    second.state[model.layers[0].up.weight]["exp_avg"]))

    def test_a_step_of_the_base_class_within_a_step_is_no_step_of_its_own(self):
        class Clamped(torch.optim.SGD):
            def step(self, closure=None):
                super().step(closure)
                if self.fails:
                    raise RuntimeError("after the update")
                with torch.no_grad():
                    self.param_groups[0]["params"][0].clamp_(-0.01, 0.01)

        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # torch wraps the class's step when one is made
        optimizer = Clamped(self.model.parameters(), lr=0.1)
        with self.record(optimizer):
            for step, optimizer.fails in enumerate((False, True, False)):
                backward(self.model, step)
                try:
                    optimizer.step()
                except RuntimeError:
                    self.assertTrue(optimizer.fails)
                optimizer.zero_grad()
        self.assertEqual(self.header()["steps"], 2)  # the one that failed did not end
        name, first = next(iter(self.model.named_parameters()))
        self.assertLessEqual(float(runs.whole(self.out, kind="param", name=name, step=1).abs().max()), 0.01)
        self.assertTrue(torch.equal(runs.whole(self.out, kind="param", name=name, step=2), first))

    def test_a_wrapper_that_does_nothing_while_gradients_accumulate(self):
        """Accelerate's optimizer is an Optimizer in name, without what __init__ makes."""
        class Accelerated(torch.optim.Optimizer):
            def __init__(self, optimizer):
                self.optimizer = optimizer
                self.syncs = False

            param_groups = property(lambda self: self.optimizer.param_groups)

            def step(self, closure=None):
                if self.syncs:
                    self.optimizer.step(closure)
                    with torch.no_grad():  # as one that averages what ranks have stepped
                        self.param_groups[0]["params"][0].fill_(7)

        optimizer = Accelerated(torch.optim.SGD(self.model.parameters(), lr=0.1))
        with self.record(optimizer):
            for step in range(4):
                backward(self.model, step)
                optimizer.syncs = step % 2 == 1
                optimizer.step()
        self.assertEqual((self.header()["steps"], len(self.header()["optimizer"]["lr"])), (2, 2))
        name, _ = next(iter(self.model.named_parameters()))
        self.assertTrue(bool((runs.whole(self.out, kind="param", name=name, step=1) == 7).all()))

    def test_a_recorder_that_is_made_within_a_step(self):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        recorders = []

        def closure():
            recorders.append(self.record(optimizer))

        optimizer.step(closure)
        with recorders[0]:
            backward(self.model, 0)
            optimizer.step()
        self.assertEqual(self.header()["steps"], 1)

    def test_an_optimizer_that_steps_every_second_time(self):
        ends, others = models.halves(self.model)
        first, second = torch.optim.SGD(ends, lr=0.1), torch.optim.SGD(others, lr=0.2)
        with self.record([first, second]):
            for step in range(3):
                backward(self.model, step)
                first.step()
                if step == 1:
                    second.step()
        self.assertEqual(self.header()["steps"], 3)
        self.assertEqual([group["lr"] for group in self.header()["optimizer"]["groups"]],
                         [[0.1, 0.1, 0.1], [0.0, 0.2, 0.0]])
        self.assertEqual(len(runs.pieces(self.out, kind="param", step=3)), 10)
        moved = [not torch.equal(runs.whole(self.out, kind="param", name="layers.0.up.weight", step=step),
                                 runs.whole(self.out, kind="param", name="layers.0.up.weight", step=step - 1))
                 for step in (1, 2, 3)]
        self.assertEqual(moved, [False, True, False])

    def test_a_clip_before_an_optimizer_that_steps_twice_begins_the_next_step(self):
        ends, others = models.halves(self.model)
        first, second = torch.optim.SGD(ends, lr=0.1), torch.optim.SGD(others, lr=0.2)
        with self.record([first, second]):
            for step in range(3):
                self.model.zero_grad()
                backward(self.model, step)
                raw = {name: one.grad.clone() for name, one in self.model.named_parameters()}
                torch.nn.utils.clip_grad_norm_(ends, 1e-3)
                first.step()
                if step == 1:
                    torch.nn.utils.clip_grad_norm_(ends, float("inf"))  # a look at the norm begins no step
                    second.step()
        self.assertEqual(self.header()["steps"], 3)
        self.assertTrue(torch.equal(runs.whole(self.out, kind="grad", name="head.weight", step=3), raw["head.weight"]))
        self.assertEqual(len(runs.pieces(self.out, kind="scalar", name="grad_norm")), 3)

    def test_a_parameter_in_two_optimizers_is_refused(self):
        both = [torch.optim.SGD(self.model.parameters(), lr=0.1), torch.optim.SGD([self.model.head.weight], lr=0.1)]
        with self.assertRaisesRegex(shardproof.Error, '"head.weight" is in the optimizers 0 and 1'):
            self.record(both)

    def test_parameters_in_no_optimizer_are_named_once(self):
        ends, others = models.halves(self.model)
        self.model.layers[0].norm.weight.requires_grad_(False)
        with self.assertWarnsRegex(UserWarning, "2 of 10 parameters need gradients and are in no optimizer .*: "
                                                "embed.weight, head.weight\\. .*a list") as caught:
            self.record(torch.optim.SGD(others, lr=0.1))
        self.assertEqual((len(caught.warnings), caught.filename), (1, __file__))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.record([torch.optim.SGD(others, lr=0.1), torch.optim.AdamW(ends)])
            self.record(None)

    def test_a_wrapper_without_states(self):
        ends, others = models.halves(self.model)
        chained = Chained(torch.optim.SGD(ends, lr=0.1), torch.optim.AdamW(others))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.train(chained, 2)
        self.assertEqual(self.header()["steps"], 2)
        self.assertEqual([group["rule"] for group in self.header()["optimizer"]["groups"]], ["sgd", "adamw"])
        self.assertTrue(torch.equal(runs.whole(self.out, kind="opt", name="exp_avg.layers.0.up.weight", step=2),
                                    chained.parts[1].state[self.model.layers[0].up.weight]["exp_avg"]))

    def test_an_optimizer_of_a_script_without_states(self):
        with self.assertWarnsRegex(UserWarning, "is a Descent, which has param_groups and no state"):
            recording = self.record(Descent(self.model.parameters()))
        with recording:
            backward(self.model, 0)
            recording._optimizers[0].step()
        self.assertEqual((self.header()["optimizer"]["rule"], self.header()["optimizer"]["lr"]), ("other", [0.1]))
        self.assertEqual(len(runs.pieces(self.out, kind="param", step=1)), 10)

    def test_the_count_of_steps_is_recorded(self):
        self.train(torch.optim.AdamW(self.model.parameters()), 2)
        for step in (1, 2):
            self.assertEqual(int(runs.whole(self.out, kind="opt", name="step.head.weight", step=step)), step)

    def test_the_step_that_creates_states_is_not_recorded(self):
        """torch.distributed.checkpoint makes it, with rates and gradients of 0."""
        for make in (torch.optim.AdamW, torch.optim.SGD):
            optimizer = make(self.model.parameters(), lr=0.1)
            with self.record(optimizer):
                get_optimizer_state_dict(self.model, optimizer)
                for step in range(2):
                    backward(self.model, step)
                    optimizer.step()
                    optimizer.zero_grad()
                    get_optimizer_state_dict(self.model, optimizer)
            self.assertEqual((self.header()["steps"], self.header()["optimizer"]["lr"]), (2, [0.1, 0.1]), make)
            self.assertTrue(runs.whole(self.out, kind="grad", name="head.weight", step=1).any())

    def test_steps_with_a_rate_of_zero_are_steps(self):
        """A warm-up begins with rate 0; its gradients may be 0 too, where no token counts."""
        def closure():
            backward(self.model, 0)

        for factor, with_closure in itertools.product((1.0, 0.0), (False, True)):
            optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
            with self.record(optimizer):
                for step in range(2):
                    if with_closure:
                        self.model.zero_grad()
                        optimizer.step(closure)
                    else:
                        models.backward(self.model, step, factor)
                        optimizer.step()
                        optimizer.zero_grad()
            self.assertEqual(self.header()["steps"], 2, (factor, with_closure))

    def test_gradients_that_a_script_assigns_make_a_step(self):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        with self.record(optimizer):
            for parameter in self.model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        self.assertEqual(self.header()["steps"], 1)


@judging.needs_program
class JudgedOptimizersTest(judging.RunsTest):
    def judged(self, train, right, wrong, world_size=2):
        ranks.run(1, train, self.golden, *right)
        ranks.run(world_size, train, self.out, *wrong)
        return self.judge()

    def test_a_rate_of_a_renamed_class(self):
        self.assertEqual(self.judged(train_one, (MyAdamW, 1.0), (MyAdamW, 1.0))[0], 0)
        for factor in (2.0, 1.5):
            self.expect(self.judged(train_one, (MyAdamW, 1.0), (MyAdamW, factor)), 1, f"moved by {factor:g}")

    def test_a_rate_of_an_optimizer_without_a_known_rule(self):
        rule = torch.optim.RMSprop
        self.assertEqual(self.judged(train_one, (rule, 1.0), (rule, 1.0))[0], 0)
        for factor in (2.0, 1.5, 0.5):
            self.expect(self.judged(train_one, (rule, 1.0), (rule, factor)), 1,
                        f"moved by {factor:g} x the golden's update")

    @unittest.skipUnless(hasattr(torch.optim, "Muon"), "torch has no Muon")
    def test_what_follows_from_unresolved_parameters(self):
        for world_size in (2, 4):
            right = (None, 1)
            # What is judged depends on how the processor rounds bfloat16.
            self.expect(self.judged(train_muon, right, (self.golden, world_size), world_size), 0)
        for bug, step, tensor in (("doubled", 1, "grad.*of step 2"), ("lost", 1, "grad.*of step 2"),
                                  ("lost", 2, "grad.*of step 3"), ("rate", 0, "param.*of step 1")):
            self.expect_patterns(self.judged(train_muon, right, (self.golden, 2, 3, bug, step)), 1, tensor)

    def test_the_second_of_two_optimizers(self):
        """Its parameters are recorded after its step, although the first has stepped before."""
        self.assertEqual(self.judged(train_two, (), ())[0], 0)
        for steps in (1, 2):
            self.expect_patterns(self.judged(train_two, (1.0, MyAdamW, steps), (1e4, MyAdamW, steps)), 1,
                                 "param.layers.*of step 1")


if __name__ == "__main__":
    unittest.main()
