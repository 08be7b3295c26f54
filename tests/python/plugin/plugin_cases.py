"""Tests that plugin_test.py runs in another pytest, which has the plugin: right ones, and ones with planted faults."""

import logging
import os
import subprocess
import sys
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import shardproof


class Planted(UserWarning):
    """A category that the process of pytest knows, too."""


def note(text):
    """Writes a line for plugin_test.py."""
    with open(os.environ["NOTES"], "a") as file:
        file.write(text + "\n")


def local(tensor):
    return getattr(tensor, "_local_tensor", tensor)


def train(layout, wrong_rank=None, narrow=False):
    """One step of an MLP over (dp, tp). The wrong rank doubles its gradient of the first bias. A narrow tensor in a float64
    run is left unresolved."""
    torch.manual_seed(layout.rank)  # only the golden's start counts
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    mesh = init_device_mesh("cpu", (layout.sizes["dp"], layout.sizes["tp"]), mesh_dim_names=("dp", "tp"))
    if mesh.size() > 1:
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    layout.load(model)
    with layout.record(model, optimizer) as rec:
        rows = shardproof.batch(torch.arange(32.0).reshape(4, 8).sin())
        model(rows).square().mean().backward()
        if narrow:
            rec.tensor("narrow", torch.ones(2, dtype=torch.bfloat16), offset=(0,), global_shape=(2,))
        for parameter in model.parameters():
            dist.all_reduce(local(parameter.grad), op=dist.ReduceOp.SUM, group=mesh.get_group("dp"))
            local(parameter.grad).div_(layout.sizes["dp"])
        if layout.rank == wrong_rank:
            local(model[0].bias.grad).mul_(2)
        optimizer.step()


def test_this_process_uses_threads():
    """A pool of threads and autograd in the process of pytest must not hang the ranks of the tests that follow."""
    torch.set_num_threads(2)
    weight = torch.ones(600, 600, requires_grad=True)
    (weight @ weight).sin().sum().backward()


@pytest.mark.layouts("tp2", "dp2 tp2 sp", "dp2")
def test_right(layout):
    note(f"test_right {layout.text}: {dict(layout.sizes)} {sorted(layout.flags)} {layout.world_size}")
    with shardproof.float64():
        train(layout)


@pytest.mark.parametrize("wrong_rank", [1, 3])
@pytest.mark.layouts("tp2", "dp2 tp2")
def test_wrong_gradient(layout, wrong_rank):
    note(f"test_wrong_gradient {wrong_rank} {layout.text}")
    with shardproof.float64():
        train(layout, wrong_rank)


class Stage(nn.Module):
    """Some of four layers, with the names that they have in the whole model."""

    def __init__(self, numbers):
        super().__init__()
        self.layers = nn.ModuleDict({str(number): nn.Linear(8, 8) for number in numbers})

    def forward(self, x):
        for layer in self.layers.values():
            x = layer(x).tanh()
        return x


@pytest.mark.parametrize("divides", [True, False])
@pytest.mark.layouts("pp2", "pp2 vpp2")
def test_stages(layout, divides):
    """Under the schedules of torch.distributed.pipelining. Where it does not divide, gradients are as many times too large as
    there are microbatches."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
    ranks, chunks = layout.sizes["pp"], layout.sizes["vpp"]
    note(f"test_stages {layout.text}: {layout.world_size} {layout.mesh}")
    count, kind = ranks * chunks, ScheduleInterleaved1F1B if chunks > 1 else Schedule1F1B
    with shardproof.float64():
        numbers = range(layout.rank, count, ranks)
        parts = [Stage(range(4 * number // count, 4 * (number + 1) // count)) for number in numbers]
        optimizer = torch.optim.SGD([parameter for part in parts for parameter in part.parameters()], lr=1e-2)
        layout.load(parts, mesh=layout.mesh)
        with layout.record(parts, optimizer, mesh=layout.mesh):
            rows = shardproof.batch(torch.arange(32.0).reshape(4, 8).sin())
            if ranks == 1:
                parts[0](rows).square().mean().backward()
            else:
                stages = [PipelineStage(part, number, count, torch.device("cpu")) for part, number in zip(parts, numbers)]
                last = count - 1 in numbers
                kind(stages if chunks > 1 else stages[0], 2, loss_fn=lambda y, _: y.square().mean(), scale_grads=divides).step(
                    *[rows] if layout.rank == 0 else [], target=rows if last else None)
            optimizer.step()


class Experts(nn.Module):
    """Four experts, of which each rank of ep has its own, and computes their share of the output of all rows."""

    def __init__(self, ep, group):
        super().__init__()
        self.experts, self.gate = nn.Parameter(torch.randn(4 // ep, 8, 8)), nn.Linear(8, 4)
        self.group = group

    def forward(self, x):
        own = len(self.experts)
        first = own * dist.get_rank(self.group)
        share = torch.einsum("rh,ehf,re->rf", x, self.experts, self.gate(x).softmax(-1)[:, first:first + own])
        total = share.detach().clone()
        dist.all_reduce(total, group=self.group)
        return share + (total - share.detach())


@pytest.mark.parametrize("swaps", [False, True])
@pytest.mark.layouts("ep2", "dp2 ep2")
def test_experts(layout, swaps):
    """The last rank may exchange the gradients of its experts."""
    note(f"test_experts {layout.text}: {layout.world_size} {layout.mesh}")
    with shardproof.float64():
        mesh = init_device_mesh("cpu", (layout.sizes["dp"], layout.sizes["ep"]), mesh_dim_names=("dp", "ep"))
        model = Experts(layout.sizes["ep"], mesh.get_group("ep"))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        layout.load(model, mesh=layout.mesh, layouts={"experts": shardproof.Shard(0, "ep"), "*": shardproof.Replicate()})
        with layout.record(model, optimizer):
            rows = shardproof.batch(torch.arange(32.0).reshape(4, 8).sin())
            model(rows).square().mean().backward()
            for parameter in model.gate.parameters():  # each rank has the part of its own experts
                dist.all_reduce(parameter.grad, group=mesh.get_group("ep"))
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=mesh.get_group("dp"))
                parameter.grad.div_(layout.sizes["dp"])
            if swaps and layout.rank and layout.rank == layout.world_size - 1:
                model.experts.grad.copy_(model.experts.grad.flip(0))
            optimizer.step()


@pytest.mark.parametrize("wrong_rank", [None, 1])
@pytest.mark.layouts("tp2", noise=16)
def test_noise(layout, wrong_rank):
    """Below float64, 16 repeats of the golden say how far a right run may be off."""
    note(f"test_noise {wrong_rank} {layout.text} {layout.noise}")
    train(layout, wrong_rank)


@pytest.mark.layouts("tp2")
def test_unresolved(layout):
    note(f"test_unresolved {layout.text}")
    with shardproof.float64():
        train(layout, narrow=True)


@pytest.mark.layouts("tp2", no_unresolved=True)
def test_unresolved_fails(layout):
    with shardproof.float64():
        train(layout, narrow=True)


@pytest.mark.layouts("tp2", no_unresolved=False)
def test_unresolved_passes(layout):
    with shardproof.float64():
        train(layout, narrow=True)


@pytest.mark.xfail(reason="a known bug", strict=True)
@pytest.mark.layouts("tp2")
def test_expected_to_fail(layout):
    with shardproof.float64():
        train(layout, 0 if layout.world_size > 1 else None)


@pytest.mark.layouts("dp2 tp2")
def test_hand_written(layout):
    """The layout names the mesh of shards that no framework knows: rows of a weight over tp."""
    with shardproof.float64():
        model = nn.Linear(6, 8 // layout.sizes["tp"], bias=False)
        declared = {"weight": (shardproof.Shard(0, "tp"), shardproof.Partial("dp"))}
        rows = shardproof.batch(torch.arange(24.0).reshape(4, 6).cos())
        layout.load(model, layouts=declared)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with layout.record(model, optimizer, layouts=declared):
            model(rows).square().sum().backward()
            optimizer.step()


@pytest.mark.layouts("dp2", "tp3")
def test_records_nothing(layout):
    total = torch.tensor(1.0)
    dist.all_reduce(total)
    assert total == layout.world_size


@pytest.mark.layouts("tp2", no_unresolved=True)
def test_must_record(layout):
    assert layout.world_size < 3


@pytest.mark.layouts("tp2", "dp1 sp")
def test_notes(layout):
    """It warns on each rank of tp2, and the golden alone records a tensor more."""
    if layout.world_size > 1:
        warnings.warn("a planted <warning>", Planted)
    with shardproof.float64():
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        layout.load(model)
        with layout.record(model, optimizer, mesh=layout.mesh) as rec:
            model(torch.arange(8.0).reshape(2, 4).sin()).square().mean().backward()
            if not layout.golden:
                rec.tensor("acc", torch.ones(2), offset=(0,), global_shape=(2,))
            optimizer.step()


@pytest.mark.layouts("dp2 " + " ".join("flag_" + "x" * number for number in range(30)))
def test_with_many_flags(layout):
    assert len(layout.flags) in (0, 30)


@pytest.mark.layouts("tp2")
def test_records_only_on_one_rank(layout):
    if layout.world_size == 1:
        train(layout)


@pytest.mark.layouts("tp2")
def test_raises_within_its_recorder(layout):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError), layout.record(model, optimizer):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        raise ValueError("not a finite number")


@pytest.mark.layouts("tp2")
def test_leaves_its_recorder_open(layout):
    model = torch.nn.Linear(2, 2)
    recorder = layout.record(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(1, 2)).sum().backward()
    assert recorder


@pytest.fixture
def recorded(layout):
    model = torch.nn.Linear(2, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    layout.load(model)
    with layout.record(model, optimizer):
        yield model, optimizer


@pytest.mark.layouts("tp2")
def test_records_in_a_fixture(recorded):
    model, optimizer = recorded
    model(torch.ones(1, 2).double()).sum().backward()
    optimizer.step()


@pytest.mark.layouts("tp2")
def test_records_twice(layout):
    for wrong in (True, False):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        layout.load(model)
        with layout.record(model, optimizer):
            (model(torch.ones(1, 2)).sum() * (7 if wrong and layout.sizes else 1)).backward()
            optimizer.step()


@pytest.mark.layouts("tp2")
@pytest.mark.parametrize("given", [{"noise": 3}, {"out": "run"}], ids=["noise", "out"])
def test_records_with_what_the_marker_gives(layout, given):
    layout.record(torch.nn.Linear(2, 2), **given)


@pytest.mark.layouts("tp2")
def test_raises(layout):
    if layout.rank == 1:
        print("about to raise")
        print("and its errors", file=sys.stderr)
        logging.warning("a planted warning")
        raise ValueError("planted")
    dist.barrier()


@pytest.mark.layouts("tp2")
def test_asserts_on_all_ranks(layout):
    assert layout.world_size == 1


@pytest.mark.layouts("tp2", "dp2")
def test_golden_raises(layout):
    note("test_golden_raises")
    raise ValueError("planted")


@pytest.mark.layouts("tp2")
def test_exits(layout):
    if layout.rank == 1:
        os._exit(0)
    dist.barrier()


@pytest.mark.layouts("tp2")
def test_calls_sys_exit(layout):
    if layout.rank == 0:
        sys.exit(3)


@pytest.mark.layouts("tp2")
def test_segfaults(layout):
    if layout.rank == 1:
        os.kill(os.getpid(), 11)
    time.sleep(600 if layout.rank == 0 and layout.golden else 0)


@pytest.mark.layouts("tp2")
def test_hangs(layout):
    if layout.golden:
        note(f"pid {os.getpid()}")
        note(f"pid {subprocess.Popen(['sleep', '600']).pid}")
        while layout.rank == 1:
            time.sleep(0.1)
        dist.barrier()


@pytest.mark.layouts("tp2")
def test_skips(layout):
    pytest.skip("not here")


@pytest.mark.layouts("tp2")
def test_gives_up(layout):
    if layout.rank == 1:
        pytest.xfail("not yet")


@pytest.mark.layouts("tp2")
def test_one_rank_skips(layout):
    if layout.rank == 1:
        pytest.skip("only here")


@pytest.mark.layouts("tp2")
def test_has_a_failed_subtest(layout, request):
    if not hasattr(pytest, "Subtests"):  # pytest 9
        pytest.fail("contains 1 failed subtest")
    with request.getfixturevalue("subtests").test("odd"):
        assert not layout.golden


@pytest.fixture
def on_rank(layout, tmp_path):
    yield f"rank {layout.rank}"
    note(f"torn down on rank {layout.rank} of {layout.world_size}, {tmp_path.is_dir()}")


@pytest.mark.layouts("tp2")
class TestMethods:
    def test_fixtures(self, on_rank, layout):
        assert on_rank == f"rank {layout.rank}"


@pytest.mark.layouts("tp2")
def test_after_all_these(layout):
    with shardproof.float64():
        train(layout)
