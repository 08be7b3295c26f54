"""Saved, loaded and saved again is the same to the bit: the start of a run that was loaded from a golden, on every layout
and in three dtypes, and the whole state of a program that goes on from what it saved."""

import unittest
from pathlib import Path

import judging
import layouts
import ranks
import resume_test
import runs
import torch
from torch.distributed.device_mesh import init_device_mesh

import shardproof

# Every layout in one dtype, and a cut by hand and one by FSDP2 in the others.
LAYOUTS = {torch.float64: (*layouts.LAYOUTS, ("fsdp2", 3, 1)), torch.float32: (("hand", 1, 2), ("fsdp2", 2, 2)),
           torch.bfloat16: (("hand", 1, 2), ("fsdp2", 3, 1))}
BITS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.int64: torch.int64}


def bits(tensor):
    """Tells zeros of both signs and numbers that are none apart, as torch.equal does not."""
    return tensor.contiguous().view(BITS[tensor.dtype])


class Draw(layouts.Draw):
    """Its weights begin with every kind of number that a dtype has."""

    def model(self, hidden=None):
        built = super().model(hidden)
        limits = torch.finfo(self.dtype)
        kinds = torch.tensor([0.0, -0.0, limits.tiny, -limits.tiny / 2, limits.max, limits.min, float("inf"), -float("inf"),
                              float("nan"), 1 + limits.eps], dtype=self.dtype)
        with torch.no_grad():
            for parameter in built.parameters():
                parameter.view(-1)[:len(kinds)] = kinds[:parameter.numel()]
        return built


def start(rank, draw, layout, out, golden=None):
    """Records what a model starts from, and a step in which nothing is done. One that is to load a golden has other values before."""
    mesh = init_device_mesh("cpu", layout[1:], mesh_dim_names=("dp", "tp"))
    model, options, _ = layouts.build(draw, layout, mesh)
    if golden:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.5)
        shardproof.load(model, golden, **options)
    with shardproof.record(model, out=out, **options) as rec:
        rec.stepped()


class StartTest(judging.RunsTest):
    def again(self, dtype, layout):
        ranks.run(layout[1] * layout[2], start, Draw(3, dtype), layout, self.out, self.golden)

    def test_layouts_and_dtypes(self):
        for dtype, several in LAYOUTS.items():
            ranks.run(1, start, Draw(3, dtype), layouts.ONE, self.golden)
            for layout in several:
                with self.subTest(dtype=dtype, layout=layout):
                    self.again(dtype, layout)
                    names = runs.names(self.golden, kind="param", step=0)
                    self.assertEqual(names, sorted(dict(Draw(3, dtype).model().named_parameters())))
                    for name in names:
                        one = runs.pieces(self.golden, kind="param", name=name, step=0)[0][2]
                        for rank, line, part in runs.pieces(self.out, kind="param", name=name, step=0):
                            is_whole = line["offset"] is None and "flat" not in line
                            wanted = one if is_whole else runs.part(one, line)
                            self.assertTrue(torch.equal(bits(part), bits(wanted)), f"{name} on rank {rank}")

    def test_the_file_of_one_rank(self):
        for dtype in LAYOUTS:
            ranks.run(1, start, Draw(3, dtype), layouts.ONE, self.golden)
            self.again(dtype, layouts.ONE)
            one, again = (Path(folder, "rank0.safetensors").read_bytes() for folder in (self.golden, self.out))
            self.assertGreater(len(one), 1000)
            self.assertEqual(one, again)


class StateTest(judging.RunsTest):
    """Parameters, moments, counts of steps and buffers of the program of resume_test."""

    def test_a_state_that_was_saved_and_loaded(self):
        saved = resume_test.SAVED
        straight, resumed = resume_test.Program(), resume_test.Program()
        with shardproof.record(straight.model, straight.optimizer, out=self.golden):
            straight.train(saved)
            state = straight.save()
        resumed.load(state)
        with shardproof.record(resumed.model, resumed.optimizer, out=self.out, from_step=saved):
            resumed.train(saved + 1)
        for kind in ("param", "opt", "buffer"):
            names = runs.names(self.golden, kind=kind, step=saved)
            self.assertEqual(runs.names(self.out, kind=kind, step=0), names)
            for name in names:
                before, after = (runs.pieces(folder, kind=kind, name=name, step=step)[0][2]
                                 for folder, step in ((self.golden, saved), (self.out, 0)))
                self.assertTrue(torch.equal(bits(before), bits(after)), name)


if __name__ == "__main__":
    unittest.main()
