"""Muon, torch's and one by hand that rounds to bfloat16: right runs never alarm, and wrong steps are found with the cause."""

import re
import tempfile
import unittest
from contextlib import nullcontext

import every_optimizer_many as faults
import judging
import ranks
import runs
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import shardproof

HAS_MUON = hasattr(torch.optim, "Muon")
BLOCKS = (20, 14, 14)  # q, k and v of the first matrix
# Of a fault of every_optimizer_many: the tensor and the step at which it shows, and its cause.
FOUND = {"rate": ("param.0.weight", 1, "moved by 2 x the golden's update"),
         "lost": ("momentum_buffer.0.weight", 2, "the momentum before was lost"),
         "moved": ("momentum_buffer.0.weight", 2, "what this step makes of those that lay 3 elements further back after "
                                                  "step 1 .* another place of a flat buffer")}


def orthogonal(matrix):
    """As scripts have it."""
    narrow = matrix.bfloat16()
    if narrow.shape[0] > narrow.shape[1]:
        narrow = narrow.T
    narrow = narrow / (narrow.norm() + 1e-7)
    for _ in range(5):
        gram = narrow @ narrow.T
        narrow = 3.4445 * narrow + (-4.7750 * gram + 2.0315 * gram @ gram) @ narrow
    return (narrow.T if matrix.shape[0] > matrix.shape[1] else narrow).to(matrix.dtype)


class HandMuon(torch.optim.Optimizer):
    """Gathers the momentum and makes it orthogonal, the first matrix in blocks. `bug` says what is wrong instead."""

    def __init__(self, parameters, lr, bug=""):
        super().__init__(parameters, {"lr": lr})
        self.bug = bug

    @torch.no_grad()
    def step(self, closure=None):
        group = self.param_groups[0]
        for index, parameter in enumerate(group["params"]):
            state = self.state[parameter]
            buffer = state.setdefault("momentum_buffer", torch.zeros_like(parameter))
            buffer.lerp_(parameter.grad, 0.05)
            update = parameter.grad.lerp(buffer, 0.95)
            cut = BLOCKS if index == 0 and self.bug != "whole" else (len(update),)
            if self.bug == "thirds" and index == 0:
                cut = (len(update) // 3,) * 3
            if self.bug == "shard" and isinstance(update, DTensor):
                made = orthogonal(local(update))
            else:
                made = torch.cat([orthogonal(part) for part in whole(update).split(cut)])
                made = local(distribute_tensor(made, update.device_mesh, update.placements)) \
                    if isinstance(update, DTensor) else made
            scale = max(1, len(update) / update.shape[1]) ** 0.5
            local(parameter).mul_(1 - group["lr"] * 0.1).sub_(made, alpha=group["lr"] * scale)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def train(rank, out, golden, world_size, kind, layout="fsdp", bug=""):
    """`kind`: torch's Muon whose bfloat16 is lifted, the same as it is, or the one by hand as it is."""
    is_lifted = kind == "lifted"
    torch.set_default_dtype(torch.float64)
    with shardproof.float64() if is_lifted else nullcontext():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(16, 48, bias=False), nn.Tanh(), nn.Linear(48, 24, bias=False))
        if world_size > 1:
            mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=(layout,))
            if layout == "tp":
                parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
            else:
                fully_shard(model, mesh=mesh)
        hand = kind == "hand"
        optimizer = HandMuon(model.parameters(), 0.02, bug) if hand else torch.optim.Muon(model.parameters(), lr=0.02)
        if golden:
            shardproof.load(model, golden)
        rules = {"0.weight": shardproof.Muon(blocks=BLOCKS), "*": shardproof.Muon()} if hand else None
        with shardproof.record(model, optimizer, out=out, matrices=rules) as rec:
            for step in range(3):
                rows = (torch.arange(64.0 * 16).reshape(64, 16) ** 1.5 * (0.7 + step)).sin()
                inputs = rows if layout == "tp" else shardproof.batch(rows)
                optimizer.zero_grad()
                loss = (model(inputs) - inputs.roll(1, 1).repeat(1, 2)[:, :24]).square().mean()
                loss.backward()
                if bug in faults.BUGS:
                    with torch.no_grad():
                        faults.spoil(optimizer, bug, rank, step)
                optimizer.step()
                rec.scalar("loss", loss, mean_over=() if layout == "tp" else ("fsdp",))


class Lifted(unittest.TestCase):
    @unittest.skipUnless(HAS_MUON, "torch has no Muon")
    def test_bfloat16_within_an_optimizer_is_lifted_and_listed(self):
        start, gradient = torch.eye(4, 6, dtype=torch.float64), torch.arange(24.0, dtype=torch.float64).reshape(4, 6).sin()
        steps = {}
        for kind, context in (("plain", nullcontext()), ("lifted", shardproof.float64())):
            weight = nn.Parameter(start.clone())
            weight.grad = gradient.clone()
            with context:
                torch.optim.Muon([weight], lr=1.0, weight_decay=0.0).step()
                self.assertEqual(torch.ones(2).to(torch.bfloat16).dtype, torch.bfloat16)  # elsewhere it stays
            steps[kind] = (start - weight).detach()
        self.assertIn("Tensor.bfloat16 to bfloat16 in Muon.step", shardproof.float64().lifted)
        made = gradient / gradient.norm()
        for _ in range(5):
            gram = made @ made.T
            made = 3.4445 * made + (-4.7750 * gram + 2.0315 * gram @ gram) @ made
        self.assertLess(float((steps["lifted"] - made).abs().max()), 1e-12)
        self.assertGreater(float((steps["plain"] - made).abs().max()), 1e-4)

    def test_what_is_declared(self):
        model = nn.Linear(4, 6, bias=False)
        with tempfile.TemporaryDirectory() as folder:
            for blocks in ((4, 1), (3, 0)):
                with self.assertRaisesRegex(shardproof.Error, "6 rows, and blocks of"):
                    shardproof.record(model, torch.optim.SGD(model.parameters()), out=folder,
                                      matrices={"*": shardproof.Muon(blocks=blocks)})
            optimizer = torch.optim.SGD(model.parameters())
            with shardproof.record(model, optimizer, out=folder,
                                   matrices={"weight": shardproof.Muon(blocks=(2, 1), average=False)}):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
            self.assertEqual(runs.header(folder)["matrices"],
                             [{"blocks": [2, 1], "momentum": 0.95, "nesterov": True, "average": False,
                               "coefficients": [3.4445, -4.775, 2.0315], "iterations": 5, "state": "momentum_buffer",
                               "parameters": ["weight"]}])


@judging.needs_program
@unittest.skipUnless(HAS_MUON, "torch has no Muon")
class MuonTest(judging.SharedRunsTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for kind in ("lifted", "narrow", "hand"):
            ranks.run(1, train, cls.folder / kind, None, 1, kind)

    def judged(self, world_size, cases):
        """(case, what is said of it) of each case (kind, layout, bug). The same ranks run all of them."""
        places = [(case, self.folder / f"run{number}", self.folder / case[0]) for number, case in enumerate(cases)]
        ranks.run_each(world_size, train, [(out, golden, world_size, *case) for case, out, golden in places])
        for case, out, golden in places:
            status, text = judging.judge(out, golden)
            yield case, (status, re.sub(r"\s+", " ", text))

    def test_right_runs_match(self):
        for world_size, layouts in ((2, ("fsdp", "tp")), (4, ("fsdp",))):
            cases = [(kind, layout, "") for kind in ("lifted", "narrow", "hand") for layout in layouts]
            for case, said in self.judged(world_size, cases):
                with self.subTest(case, world_size=world_size):
                    text = self.expect(said, 0)
                    if case[0] == "lifted":
                        self.assertNotIn("not judged", text)

    def test_wrong_steps_are_named(self):
        found = {("hand", "fsdp", "shard"): ("param.0.weight .*of step 1", "the rank makes its own part orthogonal alone"),
                 ("hand", "tp", "shard"): ("param.*of step 1", "the rank makes its own part orthogonal alone"),
                 ("hand", "fsdp", "whole"): ("param.0.weight .*of step 1", "the whole matrix is made orthogonal at once, where "
                                                                           "blocks of 20, 14, 14 rows belong"),
                 ("hand", "fsdp", "thirds"): ("param.0.weight .*of step 1", "made orthogonal in 3 equal blocks of rows"),
                 ("narrow", "tp", "rate"): ("param.*of step 1", "moved by 2 x")}
        for case, said in self.judged(2, list(found)):
            with self.subTest(case):
                self.expect_patterns(said, 1, *found[case])

    def test_rates_and_momenta(self):
        """Found at the first step at which they show, with the cause."""
        for world_size, kinds in ((4, ("narrow", "hand")), (2, ("lifted",))):
            cases = [(kind, "fsdp", bug) for kind in kinds for bug in faults.BUGS]
            for case, said in self.judged(world_size, cases):
                with self.subTest(case, world_size=world_size):
                    tensor, step, cause = FOUND[case[2].split()[0]]
                    self.expect_patterns(said, 1, rf"tensor {tensor} \[48, 16\] of step {step} ", cause,
                                         "on rank 1 only" if case[2].endswith("there") else "on all ranks")


if __name__ == "__main__":
    unittest.main()
