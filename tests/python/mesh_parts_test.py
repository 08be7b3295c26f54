"""Parts of a mesh: experts that lie over axes that the rest of the model counts otherwise."""

import tempfile
import unittest
from pathlib import Path

import ranks
import runs
import shardproof
import torch
from shardproof.mesh import Mesh, Part, from_user
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

EXPERTS, ROWS, COLUMNS = 4, 3, 2
OVER_BOTH = {"dp": 2, "tp": 2, "ep": ("dp", "tp")}


def full():
    return torch.arange(EXPERTS * ROWS * COLUMNS, dtype=torch.float64).reshape(EXPERTS, ROWS, COLUMNS)


class Experts(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.experts = nn.Parameter(weight)


def record(model, out, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with shardproof.record(model, optimizer, out=out, **options):
        sum((one * one).sum() for one in model.parameters()).backward()
        optimizer.step()


def record_declared(rank, out):
    record(Experts(full()[rank:rank + 1].clone()), out, mesh=OVER_BOTH, layouts={"experts": shardproof.Shard(0, "ep")})


def record_dtensors(rank, out):
    dense = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
    of_experts = init_device_mesh("cpu", (1, 4), mesh_dim_names=("efsdp", "ep"))
    model = nn.ModuleDict({"dense": Experts(distribute_tensor(full()[0], dense, [Replicate(), Shard(0)])),
                           "sparse": Experts(distribute_tensor(full(), of_experts["ep"], [Shard(0)]))})
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, foreach=False)
    with shardproof.record(model, optimizer, out=out):
        for one in model.parameters():
            (one * one).sum().backward()
        optimizer.step()


class PartsTest(unittest.TestCase):
    def setUp(self):
        self.out = Path(self.enterContext(tempfile.TemporaryDirectory())) / "run"

    def check(self, mesh, parts, name="experts"):
        header = runs.header(self.out)
        self.assertEqual([(one["axis"], one["size"]) for one in header["mesh"]], mesh)
        self.assertEqual([(one["axis"], one["stride"], one["size"]) for one in header["parts"]], parts)
        self.assertEqual(header["coordinates"], [[0, 0], [0, 1], [1, 0], [1, 1]])
        for kind, step, expected in (("param", 0, full()), ("grad", 1, 2 * full())):
            self.assertTrue(torch.equal(runs.whole(self.out, kind=kind, name=name, step=step), expected))
            self.assertEqual([line["offset"][0] for _, line, _ in runs.pieces(self.out, kind=kind, name=name, step=step)],
                             [0, 1, 2, 3])

    def test_a_declared_part(self):
        ranks.run(4, record_declared, self.out)
        self.check([("dp", 2), ("tp", 2)], [("ep", 1, 4)])

    def test_meshes_of_dtensors(self):
        ranks.run(4, record_dtensors, self.out)
        self.check([("fsdp", 2), ("tp", 2)], [("ep", 1, 4)], "sparse.experts")

    def test_one_rank_has_no_parts(self):
        self.assertEqual(from_user({"dp": 1, "tp": 1, "ep": ("dp", "tp")}, 0, 1).parts, [])

    def test_axes_of_parts(self):
        mesh = from_user({"pp": 2, "dp": 2, "cp": 1, "tp": 2, "ep": ("dp", "tp")}, 5, 8)
        self.assertEqual((mesh.parts, mesh.world_size), ([Part("ep", 1, 4)], 8))
        self.assertEqual([mesh.axes_in(name) for name in ("ep", "pp", "other")], [("dp", "tp"), ("pp",), ("other",)])

    def test_a_part_that_says_no_more_than_an_axis_is_left_out(self):
        parts = [Part("edp", 4, 2), Part("ep", 1, 4), Part("etp", 1, 1), Part("tp", 1, 4)]
        self.assertEqual(Mesh([("dp", 2), ("tp", 4)], 0, parts=parts).parts, [Part("ep", 1, 4)])

    def test_mistakes(self):
        for mesh, message in (({"dp": 2, "tp": 2, "ep": ("dp", "cp")}, 'has no axis "cp"'),
                              ({"pp": 2, "dp": 2, "tp": 2, "ep": ("pp", "tp")}, "are not neighbors"),
                              ({"dp": 2, "tp": 2, "ep": ("tp", "dp")}, "are not neighbors")):
            with self.assertRaisesRegex(shardproof.Error, message):
                from_user(mesh, 0, 8 if "pp" in mesh else 4)
        for mesh in (2, "dp", (2, 2), ["ab"], {"dp": 1.5}, {"dp": "2"}, {"dp": -1, "tp": -1}, {"dp": 0}, {3: 1}, {"dp": None},
                     [("dp", 1), ("dp", 1)]):
            with self.subTest(mesh), self.assertRaisesRegex(shardproof.Error, "^mesh is .*Give a DeviceMesh, or each axis once"):
                from_user(mesh, 0, 1)
        tensor = torch.ones(4, 2)
        for tensors, words in (((), "nothing"), ((tensor.tolist(),), "list"), (({"tokens": tensor},), "dict"), ((tensor, None), "Tensor, NoneType"),
                               ((torch.tensor(4),), "Tensor"), ((4,), "int")):
            with self.assertRaisesRegex(shardproof.Error, f"^shardproof.batch was given {words}, and cuts tensors of one dim or more"):
                shardproof.batch(*tensors)
        with self.assertRaisesRegex(shardproof.Error, "^axes is 3. Give the name of an axis"):
            shardproof.batch(tensor, axes=3)
        mesh = Mesh([("dp", 4)], 0, parts=[Part("ep", 1, 2)])
        with self.assertRaisesRegex(shardproof.Error, '"ep" cuts the axes of the mesh {dp: 4} in the middle'):
            mesh.axes_in("ep")


if __name__ == "__main__":
    unittest.main()
