import unittest

import judging
import layouts
import models
import ranks
import runs
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import shardproof
from shardproof import mesh as meshes

STEPS = 2


def train(rank, out, sizes, golden=None):
    """Trains the model over (dp, tp) by FSDP2 and tensor parallelism, and records it."""
    model = models.build()
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp"))
    if mesh.size() > 1:
        layouts.shard(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if golden:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        shardproof.load(model, golden)
    with shardproof.record(model, optimizer, out=out, activations="layers.*") as rec:
        for step in range(STEPS):
            tokens, targets = shardproof.batch(*models.global_batch(step))
            logprobs = models.logprobs_of(model(tokens), targets)
            loss = -logprobs.mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            rec.scalar("loss", loss, mean_over=("dp",))
            rec.logprobs(logprobs)


def boxes_by_hand(rank, dp_size, tp_size):
    """FSDP2 cuts the rows of what tensor parallelism left: {parameter: (offset, shape)} of a rank."""
    dp, tp = divmod(rank, tp_size)
    width, hidden, vocabulary = 8, 12, 12
    local = hidden // tp_size
    rows = local // dp_size
    found = {"embed.weight": ([dp * vocabulary // dp_size, 0], [vocabulary // dp_size, width]),
             "head.weight": ([dp * vocabulary // dp_size, 0], [vocabulary // dp_size, width])}
    for layer in range(2):
        found |= {f"layers.{layer}.up.weight": ([tp * local + dp * rows, 0], [rows, width]),
                  f"layers.{layer}.down.weight": ([dp * width // dp_size, tp * local], [width // dp_size, local]),
                  f"layers.{layer}.norm.weight": ([dp * width // dp_size], [width // dp_size]),
                  f"layers.{layer}.norm.bias": ([dp * width // dp_size], [width // dp_size])}
    return found


class DTensorTest(judging.SharedRunsTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.golden, cls.sharded = cls.folder / "golden", cls.folder / "run"
        ranks.run(1, train, cls.golden, (1, 1))
        ranks.run(4, train, cls.sharded, (2, 2), cls.golden)

    def test_start_parameters_are_the_known_values_at_the_boxes_cut_by_hand(self):
        full = models.full_values(models.Model())
        for rank in range(4):
            expected = boxes_by_hand(rank, 2, 2)
            found = {line["name"]: (line["offset"], line["shape"], tensor)
                     for line, tensor in runs.rank_pieces(self.sharded, rank)
                     if line["kind"] == "param" and line["step"] == 0}
            self.assertEqual(set(found), set(expected))
            for name, (offset, shape) in expected.items():
                self.assertEqual(found[name][:2], (offset, shape), f"rank {rank}, {name}")
                box = tuple(slice(start, start + size) for start, size in zip(offset, shape))
                self.assertTrue(torch.equal(found[name][2], full[name][box]), f"rank {rank}, {name}")

    def test_gradients_put_together_equal_those_of_one_rank(self):
        for step in range(1, STEPS + 1):
            for name in models.full_values(models.Model()):
                wanted = {"kind": "grad", "name": name, "step": step}
                torch.testing.assert_close(runs.whole(self.sharded, **wanted), runs.whole(self.golden, **wanted),
                                           rtol=0, atol=1e-12)

    def test_parameters_and_states_of_each_step_equal_those_of_one_rank(self):
        for kind in ("param", "opt"):
            names = runs.names(self.golden, kind=kind, step=STEPS)
            self.assertEqual(len(names), 10 if kind == "param" else 30)
            for name in names:
                wanted = {"kind": kind, "name": name, "step": STEPS}
                torch.testing.assert_close(runs.whole(self.sharded, **wanted), runs.whole(self.golden, **wanted),
                                           rtol=0, atol=1e-9)

    def test_logprobs_lie_in_the_global_batch(self):
        full = runs.whole(self.sharded, kind="logprobs", step=1)
        self.assertEqual(list(full.shape), [4, 5])
        torch.testing.assert_close(full, runs.whole(self.golden, kind="logprobs", step=1), rtol=0, atol=1e-12)

    def test_a_plain_activation_that_tp_could_have_cut_has_no_place(self):
        outputs = runs.pieces(self.sharded, kind="act", name="layers.1", step=1)
        self.assertEqual([(line["offset"], line["shape"]) for _, line, _ in outputs], [(None, [2, 5, 8])] * 4)
        golden = runs.whole(self.golden, kind="act", name="layers.1", step=1)
        for rank, _, output in outputs:
            rows = slice(rank // 2 * 2, rank // 2 * 2 + 2)
            torch.testing.assert_close(output, golden[rows], rtol=0, atol=1e-12)

    def test_the_loss_is_a_mean_over_dp(self):
        losses = runs.pieces(self.sharded, kind="scalar", name="loss", step=1)
        self.assertEqual([line["partial"] for _, line, _ in losses], [{"axes": ["dp"], "op": "mean"}] * 4)
        by_dp = [losses[0][2], losses[2][2]]
        golden = runs.pieces(self.golden, kind="scalar", name="loss", step=1)
        self.assertNotIn("partial", golden[0][1])
        torch.testing.assert_close(sum(by_dp) / 2, golden[0][2], rtol=0, atol=1e-12)

    def test_the_header_names_the_mesh_and_the_optimizer(self):
        header = runs.header(self.sharded)
        self.assertEqual(header["mesh"], [{"axis": "dp", "size": 2}, {"axis": "tp", "size": 2}])
        self.assertEqual((header["world_size"], header["steps"], header["precision"]), (4, STEPS, "float64"))
        self.assertEqual((header["optimizer"]["type"], header["optimizer"]["lr"]), ("AdamW", [1e-2] * STEPS))

    def test_gradients_are_ordered_from_the_output_down(self):
        for folder in (self.golden, self.sharded):
            lines = [line for rank, line, _ in runs.pieces(folder, kind="grad", step=2) if rank == 0]
            order = [line["name"] for line in sorted(lines, key=lambda line: line["order"])]
            self.assertEqual(order[:3], ["head.weight", "layers.1.down.weight", "layers.1.up.weight"])
            self.assertEqual(order[-1], "embed.weight")


def record_tensors(rank, out):
    """Records tensors with placements that one box does not describe, or that are not reduced."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    full = torch.arange(8 * 3, dtype=torch.float64).reshape(8, 3)
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(distribute_tensor(full, mesh, [Replicate(), Shard(0)]))
    uneven = distribute_tensor(torch.arange(5.0, dtype=torch.float64), mesh, [Shard(0), Shard(0)])
    from torch.distributed.tensor.placement_types import _StridedShard
    strided = DTensor.from_local(full.reshape(2, 2, 2, 3)[:, rank // 2].reshape(4, 3)[2 * (rank % 2):][:2],
                                 mesh, [_StridedShard(0, split_factor=2), Shard(0)])
    split = DTensor.from_local(full.reshape(2, 2, 2, 3)[:, rank // 2].reshape(4, 3),
                               mesh, [_StridedShard(0, split_factor=2), Replicate()])
    addend = DTensor.from_local(torch.full((2,), float(rank), dtype=torch.float64), mesh, [Partial("avg"), Shard(0)])
    with shardproof.record(model, out=out) as rec:
        for name, tensor in (("uneven", uneven), ("strided", strided), ("split", split), ("addend", addend)):
            rec.tensor(name, tensor)
        rec.stepped()


class PlacementTest(judging.SharedRunsTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        ranks.run(4, record_tensors, cls.folder)

    def boxes(self, name):
        return [[(line["offset"], line["shape"]) for line, _ in runs.rank_pieces(self.folder, rank)
                 if line["name"] == name] for rank in range(4)]

    def test_an_uneven_shard_has_the_sizes_of_chunk_and_empty_pieces_have_no_line(self):
        self.assertEqual(self.boxes("uneven"), [[([0], [2])], [([2], [1])], [([3], [1])], [([4], [1])]])

    def test_a_strided_shard_is_cut_from_right_to_left(self):
        self.assertEqual(self.boxes("strided"), [[([0, 0], [2, 3])], [([4, 0], [2, 3])],
                                                 [([2, 0], [2, 3])], [([6, 0], [2, 3])]])

    def test_a_strided_shard_that_is_not_contiguous_has_several_pieces(self):
        low, high = [([0, 0], [2, 3]), ([4, 0], [2, 3])], [([2, 0], [2, 3]), ([6, 0], [2, 3])]
        self.assertEqual(self.boxes("split"), [low, low, high, high])
        full = runs.whole(self.folder, name="split")
        self.assertTrue(torch.equal(full, torch.arange(24, dtype=torch.float64).reshape(8, 3)))

    def test_a_partial_tensor_names_its_axis_and_operation(self):
        found = runs.pieces(self.folder, name="addend")
        self.assertEqual([line["partial"] for _, line, _ in found], [{"axes": ["dp"], "op": "mean"}] * 4)
        self.assertEqual(self.boxes("addend"), [[([0], [2])], [([2], [2])], [([0], [2])], [([2], [2])]])


def unflattened_axes(rank, sizes, names):
    """The axes that are found for a tensor on an unflattened view of a mesh with one axis, as torchtitan has them."""
    root = init_device_mesh("cpu", (4,), mesh_dim_names=("world",))
    mesh = root._unflatten(0, sizes, names)
    return meshes.of_tensors([distribute_tensor(torch.ones(4, 4), mesh, [Shard(0), Shard(1)][:len(sizes)])], rank, 4).axes


class UnflattenedMeshTest(unittest.TestCase):
    @unittest.skipUnless(hasattr(DeviceMesh, "_unflatten"), "this torch does not unflatten meshes")
    def test_the_axes_of_the_view_are_found(self):
        for sizes, names in (((2, 2), ("fsdp", "tp")), ((4,), ("fsdp",))):
            self.assertEqual(ranks.run(4, unflattened_axes, sizes, names), [list(zip(names, sizes))] * 4)


if __name__ == "__main__":
    unittest.main()
