"""shardproof.coded: what a save and a load move, lose or mix up is named by where it came from."""

import copy
import io
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import ranks
import shardproof
import torch
from shardproof.error import Error
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_state_dict, set_state_dict)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def build():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)).double()
    return model


def started(model):
    """An optimizer that has made a step, so that it has states."""
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4, dtype=torch.float64)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def cut(layout):
    model = build()
    if layout == "fsdp":
        return fully_shard(model)
    return parallelize_module(model, init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)),
                              {"0": ColwiseParallel(), "1": RowwiseParallel()})


def load_elsewhere(rank, saved, layout, spoil):
    """Loads a whole checkpoint on two ranks, and returns what is said of it."""
    model = cut(layout)
    optimizer = started(model)
    weights, states = torch.load(io.BytesIO(saved), weights_only=False)
    if spoil:
        weights["0.weight"] = weights["0.weight"].roll(1, 0)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states,
                   options=StateDictOptions(full_state_dict=True))
    try:
        shardproof.check_coded(model, optimizer)
    except Error as error:
        return str(error)
    return ""


class CodedTest(unittest.TestCase):
    def setUp(self):
        self.model = build()
        self.optimizer = started(self.model)
        shardproof.coded(self.model, self.optimizer)

    def check(self, text):
        with self.assertRaisesRegex(Error, text):
            shardproof.check_coded(self.model, self.optimizer)

    def test_a_whole_save_and_load(self):
        saved = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))
        self.model, self.optimizer = build(), None
        self.optimizer = started(self.model)
        self.check("which is not a code in place of param.0.weight")
        self.model.load_state_dict(saved[0])
        self.check("exp_avg.0.weight holds .* in place of exp_avg.0.weight .0, 0.; 24 of 24 elements are wrong")
        self.optimizer.load_state_dict(saved[1])
        shardproof.check_coded(self.model, self.optimizer)

    def test_states_that_a_checkpoint_lost(self):
        """Of one parameter, and of one kind; of a parameter that no optimizer steps none is due."""
        saved = self.optimizer.state_dict()
        def loaded(spoil, parameters=None):
            states = copy.deepcopy(saved)
            spoil(states["state"])
            model = copy.deepcopy(self.model)
            optimizer = torch.optim.AdamW(list(model.parameters())[:parameters])
            if parameters:
                states["param_groups"][0]["params"] = list(range(parameters))
            optimizer.load_state_dict(states)
            shardproof.check_coded(model, optimizer)
        loaded(lambda _: None)
        loaded(lambda states: states.pop(3), 3)
        with self.assertRaisesRegex(Error, r"exp_avg.1.weight is not there, nor are 1 more states; coded\(\) has filled it"):
            loaded(lambda states: states.pop(2))
        with self.assertRaisesRegex(Error, "exp_avg_sq.0.weight is not there, nor are 3 more"):
            loaded(lambda states: [state.pop("exp_avg_sq") for state in states.values()])

    def test_rows_in_another_order(self):
        weight = self.model[0].weight
        weight.data = weight.data[[0, 2, 1, 3, 4, 5]]
        self.check(r"param.0.weight holds param.0.weight \[2, 0\] in place of param.0.weight \[1, 0\]; 8 of 24 elements")

    def test_a_moment_of_another_parameter(self):
        states = self.optimizer.state
        states[self.model[0].weight]["exp_avg"].copy_(states[self.model[0].weight]["exp_avg_sq"])
        self.check(r"exp_avg.0.weight holds exp_avg_sq.0.weight \[0, 0\] in place of exp_avg.0.weight \[0, 0\]")

    def test_at_another_layout(self):
        saved = io.BytesIO()
        torch.save(get_state_dict(self.model, self.optimizer), saved)
        for layout in ("fsdp", "tp"):
            self.assertEqual(ranks.run(2, load_elsewhere, saved.getvalue(), layout, False), ["", ""], layout)
        first, second = ranks.run(2, load_elsewhere, saved.getvalue(), "tp", True)
        self.assertIn("param.0.weight holds param.0.weight [5, 0] in place of param.0.weight [0, 0]", first)
        self.assertIn("param.0.weight holds param.0.weight [2, 0] in place of param.0.weight [3, 0]", second)

    def test_what_cannot_be_coded(self):
        with self.assertRaisesRegex(Error, "has no states of the 4 parameters. Let it make a step first"):
            shardproof.coded(build(), torch.optim.AdamW(build().parameters()))
        for function in (shardproof.coded, shardproof.check_coded):
            with self.assertRaisesRegex(Error, "The optimizer is a str, of which no parameters are seen. Give the torch optimizer"):
                function(self.model, "AdamW")
        with self.assertRaisesRegex(Error, "has the dtype torch.float32"):
            shardproof.coded(build().float())


if __name__ == "__main__":
    unittest.main()
