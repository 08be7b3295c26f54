"""The safetensors files, and the arithmetic of pieces."""

import importlib.util
import itertools
import math
import tempfile
import unittest
from pathlib import Path

import ranks  # noqa: F401  (finds the package)
import runs
import torch

import shardproof
from shardproof import safetensors_file
from shardproof.mesh import Mesh
from shardproof.piece import boxes_of_indices, boxes_of_range

TENSORS = {"0": torch.arange(6, dtype=torch.float64).reshape(2, 3), "1": torch.tensor(1.5, dtype=torch.bfloat16),
           "2": torch.empty(0, 4), "3": torch.tensor([[7, -8]])}


class FilesTest(unittest.TestCase):
    def setUp(self):
        self.path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "x.safetensors"

    def equal(self, found):
        self.assertEqual(list(found), list(TENSORS))
        for key, tensor in TENSORS.items():
            self.assertEqual((found[key].dtype, found[key].shape), (tensor.dtype, tensor.shape))
            self.assertTrue(torch.equal(found[key], tensor))

    def test_tensors_are_read_as_they_were_written(self):
        safetensors_file.write(self.path, TENSORS)
        self.equal(runs.tensors(self.path))
        reader = safetensors_file.Reader(self.path)
        self.equal({key: reader.tensor(key) for key in TENSORS})
        self.assertEqual((8 + int.from_bytes(self.path.read_bytes()[:8], "little")) % 8, 0)

    def test_a_damaged_header_is_refused(self):
        safetensors_file.write(self.path, {"w": torch.zeros(2, 3)})
        whole = self.path.read_bytes()
        entry = b'{"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}'
        self.assertIn(entry, whole)
        for other in (b'{"dtype": "F3?", "shape": [2, 3], "data_offsets": [0, 24]}', b'{"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 24]}',
                      b'{"dtype": "F32", "shape": [2, 3], "data_offsets": [0, "24"]}', b'{"dtype": "F32", "shape": [2, 3], "data_offsets": [1, 25]}',
                      b'{"dtype": "F32", "shape": [-2, -3], "data_offsets": [0, 24]}', b'{"dtype": [], "shape": [2, 3], "data_offsets": [0, 24]}',
                      b'{"dtype": "F32", "shape": 6, "data_offsets": [0, 24]}', b'7', b'{"shape": [2, 3]}'):
            with self.subTest(other):
                self.path.write_bytes(whole.replace(entry, other.ljust(len(entry))))
                with self.assertRaisesRegex(shardproof.Error, "is no whole file of a recorded run: .*\"w\""):
                    safetensors_file.Reader(self.path)
        for other, said in ((whole.replace(b'{"w": ', b'["w", '), "Expecting"), (b"\2" + bytes(7) + b"[]", "not a JSON object"),
                            (b"\xff" * 8 + whole[8:], "its header has 18446744073709551615 bytes, and it has 104")):
            with self.subTest(said), self.assertRaisesRegex(shardproof.Error, said):
                self.path.write_bytes(other)
                safetensors_file.Reader(self.path)

    @unittest.skipUnless(importlib.util.find_spec("safetensors"), "the safetensors package is not there")
    def test_the_safetensors_package_reads_the_file(self):
        from safetensors.torch import load_file
        safetensors_file.write(self.path, TENSORS)
        found = load_file(self.path)
        self.equal({key: found[key] for key in sorted(found)})


class ArithmeticTest(unittest.TestCase):
    def test_the_boxes_of_a_range_hold_exactly_its_elements(self):
        for shape in ((7,), (3, 4), (2, 3, 4), (1, 5), ()):
            numbers = torch.arange(math.prod(shape)).reshape(shape)
            for start, end in itertools.combinations(range(numbers.numel() + 1), 2):
                held = [numbers[box.slices].flatten().tolist() for box in boxes_of_range(shape, start, end)]
                self.assertEqual(sum(held, []), list(range(start, end)), f"{shape} {start} {end}")

    def test_the_boxes_of_indices_hold_each_index_once(self):
        rows, columns = [0, 1, 5, 6, 7], [2, 0, 1]
        full = torch.arange(8 * 3).reshape(8, 3)
        local = full[rows][:, columns]
        rebuilt = torch.full_like(full, -1)
        boxes = boxes_of_indices([rows, columns])
        self.assertEqual(len(boxes), 4)
        for box in boxes:
            part = local[box.slices]
            rebuilt[tuple(slice(o, o + n) for o, n in zip(box.offset, part.shape))] = part
        self.assertTrue(torch.equal(rebuilt[rows], full[rows]))
        self.assertEqual(int((rebuilt == -1).sum()), 9)

    def test_a_mesh_names_the_axes_of_a_group(self):
        mesh = Mesh([("pp", 2), ("dp", 3), ("tp", 2)], rank=7)
        self.assertEqual(mesh.coordinates(), {"pp": 1, "dp": 0, "tp": 1})
        self.assertEqual(mesh.peers(["dp"]), [7, 9, 11])
        for ranks_, axes in (([7], ()), ([6, 7], ("tp",)), ([1, 7], ("pp",)), ([6, 7, 8, 9, 10, 11], ("dp", "tp"))):
            self.assertEqual(mesh.axes_of(ranks_), axes)
        with self.assertRaisesRegex(RuntimeError, "not a set of axes"):
            mesh.axes_of([5, 7])
        self.assertEqual(mesh.place_along(["pp", "dp"]), (3, 6))


if __name__ == "__main__":
    unittest.main()
