"""Axes that have no names, or other names than a script takes them to have."""

import tempfile
import unittest
from pathlib import Path

import ranks
import runs
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import shardproof
from shardproof.global_batch import current
from shardproof.mesh import Mesh
from shardproof.sources.find import find_mesh


def model_on(device_mesh, is_fully_sharded):
    model = nn.Sequential(nn.Linear(4, 8))
    if is_fully_sharded:
        return fully_shard(model, mesh=device_mesh)
    return parallelize_module(model, device_mesh, {"0": ColwiseParallel()})


def axes_found(rank, size, is_fully_sharded, axes, mesh=None):
    """The axes of a run of which a device mesh without names has `size` neighboring ranks."""
    current.axes = axes
    groups = [dist.new_group(list(range(first, first + size))) for first in range(0, dist.get_world_size(), size)]
    device_mesh = DeviceMesh.from_group(groups[rank // size], "cpu")
    try:
        model = model_on(device_mesh, is_fully_sharded)
        return find_mesh([model], device_mesh if mesh == "device" else mesh).axes
    except shardproof.Error as error:
        return str(error)


def batch_of_tensor_parallelism(rank, out):
    model = model_on(init_device_mesh("cpu", (2,)), False)
    with shardproof.record(model, torch.optim.SGD(model.parameters()), out=out) as rec:
        texts = []
        for call in (lambda: shardproof.batch(torch.ones(4, 4)), lambda: rec.scalar("loss", 1.0, mean_over=("dp",))):
            try:
                call()
            except shardproof.Error as error:
                texts.append(str(error))
        rows = shardproof.batch(torch.ones(4, 4), axes=())
        model(rows).sum().backward()
        rec.stepped()
    return texts


class UnnamedMeshTest(unittest.TestCase):
    def found(self, world_size, *arguments):
        first, *others = ranks.run(world_size, axes_found, *arguments)
        self.assertEqual(others, [first] * (world_size - 1))
        return first

    def test_fsdp_alone_is_data_parallel(self):
        self.assertEqual(self.found(2, 2, True, None), [("dp", 2)])
        self.assertEqual(self.found(2, 2, True, None, "device"), [("dp", 2)])

    def test_other_dtensors_have_an_axis_of_which_nothing_is_known(self):
        self.assertEqual(self.found(2, 2, False, None), [("axis0", 2)])
        self.assertEqual(self.found(2, 2, False, None, "device"), [("axis0", 2)])

    def test_the_layout_that_started_the_ranks_has_a_name(self):
        self.assertEqual(self.found(2, 2, False, [("dp", 1), ("tp", 2)]), [("tp", 2)])
        self.assertEqual(self.found(2, 2, True, [("fsdp", 2)]), [("fsdp", 2)])

    def test_dtensors_on_a_part_of_the_ranks_need_names(self):
        self.assertIn("lie on 2 of the 4 ranks, and nothing says what the others are. Name the axes with mesh=",
                      self.found(4, 2, False, None))
        self.assertEqual(self.found(4, 2, False, None, {"dp": 2, "tp": 2}), [("dp", 2), ("tp", 2)])
        self.assertEqual(self.found(4, 2, False, [("dp", 2), ("tp", 2)]), [("dp", 2), ("tp", 2)])
        self.assertEqual(self.found(4, 2, True, None), [("dp", 4)])  # replicas of FSDP, averaged by hand

    def test_a_batch_and_a_mean_need_its_name(self):
        with tempfile.TemporaryDirectory() as folder:
            for texts in ranks.run(2, batch_of_tensor_parallelism, Path(folder)):
                self.assertIn('The device mesh {axis0: 2} has no names, which would tell what cuts the batch', texts[0])
                self.assertIn('{axis0: 2} has no axis "dp", and its axis "axis0" may cut the batch', texts[1])
            self.assertEqual(runs.header(folder)["mesh"], [{"axis": "axis0", "size": 2}])


class NamesOfTheBatchTest(unittest.TestCase):
    def test_a_name_that_is_not_here_while_another_axis_cuts_the_batch(self):
        for axes, given in (([("fsdp", 2)], ["dp"]), ([("dp_replicate", 2), ("dp_shard", 2)], ["dp"]),
                            ([("dp_shard", 2), ("cp", 2)], ["dp", "cp"]), ([("dp", 2), ("tp", 2)], ["fsdp"])):
            with self.assertRaisesRegex(shardproof.Error, f'has no axis "{given[0]}", and its axis "{axes[0][0]}" may cut'):
                Mesh(axes, 0).check_batch_axes(given)

    def test_axes_of_size_1_may_be_named(self):
        for axes, given in (([("tp", 2)], ["dp"]), ([("dp", 1), ("tp", 2)], ["dp"]), ([], ["dp"]), ([("fsdp", 1)], ["dp"]),
                            ([("dp_shard", 2)], ["dp_replicate", "dp_shard"]), ([("dp", 2)], ["dp"]), ([("own", 2)], ["dp"]),
                            ([("dp", 2)], ["cp"]), ([("pp", 2), ("cp", 2)], ["dp", "cp"])):
            Mesh(axes, 0).check_batch_axes(given)


if __name__ == "__main__":
    unittest.main()
