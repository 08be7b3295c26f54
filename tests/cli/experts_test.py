#!/usr/bin/env python3
"""Tests experts on several ranks with the real program: both views of the mesh, what a run writes of them, and sizes that do
not fit.

Usage: experts_test.py PROGRAM [unittest arguments]
"""
import array
import json
import pathlib
import struct

import cli_test

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASE = str(ROOT / "golden/hf/qwen3_moe_dense_layer")


def tensors(path):
    """{name: (shape, values)} of a file of float64 tensors."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (one["shape"], array.array("d", data[8 + length:][slice(*one["data_offsets"])]))
            for name, one in header.items() if one["dtype"] == "F64"}


class Experts(cli_test.CommandTest):
    def test_describe_shows_both_views_of_the_mesh(self):
        text = self.call("describe", str(ROOT / "scenarios/ep/meshes.yaml"), "--only", "ep/meshes[dp4_ep2]")
        self.assertIn("dp=4, experts edp=2 ep=2, 4 ranks\n", text)
        self.assertIn("the same ranks for experts\n         ep  0  1\n  edp 0      0  1\n  edp 1      2  3\n", text)

    def test_the_dumped_gradients_of_experts_are_whole(self):
        files = [self.folder / "spread.safetensors", self.folder / "one.safetensors"]
        for mesh, file in zip(("dp=2,tp=2,ep=2,etp=2", "dp=1"), files):
            flags = ["--sequence-parallel"] if "tp=2" in mesh else []
            self.call("check", CASE, "--mesh", mesh, *flags, "--dump", str(file))
        spread, one = map(tensors, files)
        self.assertEqual(spread.keys(), one.keys())
        experts = [name for name in one if ".mlp.experts." in name and "grad" in name]
        self.assertGreater(len(experts), 0)
        for name in experts:
            self.assertEqual(spread[name][0], one[name][0])
            for here, there in zip(spread[name][1], one[name][1]):
                self.assertAlmostEqual(here, there, delta=1e-12)

    def test_sizes_that_do_not_divide_the_ranks_are_refused_with_those_that_do(self):
        text = self.call("check", CASE, "--mesh", "dp=4,ep=3", status=2)
        self.assertIn("ep=3 times etp=1 does not divide the 4 ranks that hold a layer; choose sizes whose product is 1, 2, 4",
                      text)
        self.assertIn("unknown mesh axis 'edp'", self.call("check", CASE, "--mesh", "edp=2", status=2))

    def test_refused_sizes_come_with_those_that_work(self):
        text = self.call("check", CASE, "--mesh", "dp=4,ep=4", status=4)
        self.assertIn("ep=4 does not divide the 6 experts of a layer; ep = 1, 2 would work", text.replace("\n", " "))
        text = self.call("check", CASE, "--mesh", "dp=3,etp=3", status=4)
        self.assertIn("etp=3 does not divide the width 8 of an expert; etp = 1 would work", text.replace("\n", " "))


if __name__ == "__main__":
    cli_test.main()
