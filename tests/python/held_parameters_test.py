"""Optimizers that hold other tensors than the recorded model's parameters: copies of them, or those of a second model."""

import tempfile
import unittest
import warnings
from pathlib import Path

import judging
import models
import ranks
import runs
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import shardproof


def copies_of(model):
    return [one.detach().clone().requires_grad_() for one in model.parameters()]


def said_of_sharded(rank, out, kind):
    """What record says of an optimizer that does not hold the parameters of a sharded model."""
    model = models.build()
    held = list(model.parameters())
    fully_shard(model, mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
    if kind == "copies":
        held = copies_of(model)
    try:
        shardproof.record(model, torch.optim.SGD(held, lr=0.1), out=out)
    except shardproof.Error as error:
        return str(error)
    return ""


def train_copies(rank, out, golden=None):
    """Two steps of data parallelism by hand, of copies of the parameters that are their main_param."""
    model = models.build()
    copies = copies_of(model)
    for parameter, copy in zip(model.parameters(), copies):
        parameter.main_param = copy
    if golden:
        with torch.no_grad():
            for one in (*model.parameters(), *copies):
                one.zero_()
        shardproof.load(model, golden)
    optimizer = torch.optim.AdamW(copies, lr=1e-2)
    with shardproof.record(model, optimizer, out=out):
        for step in range(2):
            model.zero_grad()
            models.backward(model, step)
            for parameter, copy in zip(model.parameters(), copies):
                copy.grad = parameter.grad
            optimizer.step()
            with torch.no_grad():
                for parameter, copy in zip(model.parameters(), copies):
                    parameter.copy_(copy)


class CopiesTest(judging.RunsTest):
    def test_copies_have_two_ways(self):
        model = models.build()
        with self.assertRaisesRegex(shardproof.Error, "holds 10 parameters, none of which .* parameter.main_param .* rec.stepped"):
            shardproof.record(model, torch.optim.SGD(copies_of(model), lr=0.1), out=self.out)

    def test_of_sharded_parameters(self):
        for said in ranks.run(2, said_of_sharded, self.out, "copies"):
            self.assertIn("parameter.main_param", said)
        for said in ranks.run(2, said_of_sharded, self.out, "before"):
            self.assertIn("Create the optimizer after fully_shard", said)

    @judging.needs_program
    def test_main_param_of_a_script(self):
        ranks.run(1, train_copies, self.golden)
        ranks.run(2, train_copies, self.out, self.golden)
        self.assertIn("exp_avg.head.weight", runs.names(self.out, kind="opt", step=2))
        status, text = self.judge()
        self.assertEqual(status, 0, text)


class SecondModelTest(unittest.TestCase):
    def setUp(self):
        self.out = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.actor, self.critic = models.build(), nn.Linear(8, 1)

    def record(self, model, *parameters):
        recorder = shardproof.record(model, torch.optim.AdamW([one for part in parameters for one in part], lr=0.1), out=self.out)
        recorder._end_watching()

    def test_parameters_of_a_second_model_are_counted(self):
        with self.assertWarnsRegex(UserWarning, "also steps 2 parameters that are not in the model.*ModuleDict of both") as caught:
            self.record(self.actor, self.actor.parameters(), self.critic.parameters())
        self.assertEqual((len(caught.warnings), caught.filename), (1, __file__))

    def test_no_warning_where_they_are_recorded_or_frozen(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            both = nn.ModuleDict({"actor": self.actor, "critic": self.critic})
            self.record(both, self.actor.parameters(), self.critic.parameters())
            self.record([self.actor, self.critic], self.actor.parameters(), self.critic.parameters())
            self.critic.requires_grad_(False)
            self.record(self.actor, self.actor.parameters(), self.critic.parameters())

    def test_copies_of_some_parameters_are_said_once(self):
        ends, others = models.halves(self.actor)
        with self.assertWarnsRegex(UserWarning, "2 of 10 parameters need gradients and are in no optimizer") as caught:
            self.record(self.actor, others, [one.detach().clone().requires_grad_() for one in ends])
        self.assertEqual(len(caught.warnings), 1)


if __name__ == "__main__":
    unittest.main()
