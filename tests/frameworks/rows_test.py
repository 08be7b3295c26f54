"""Fixes that frameworks really made, each reverted in the installed package: the run is recorded on the ranks of a layout
and judged against one rank, which has the fix. With the fix, the same layout must match.

SHARDPROOF_PROGRAM is the program; without it, or without a framework, its rows are skipped (README.md here).
"""

import argparse
import importlib
import math
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(Path(__file__).parent)]

import judging  # noqa: E402
import ranks  # noqa: E402
from planting import needs, plant  # noqa: E402
from rows import ROWS  # noqa: E402

# The versions whose text the rows have, by program.
PINNED = {"megatron": ("megatron-core", "0.16."), "transformers": ("transformers", "5.23."), "pytorch": ("torch", "2.11."),
          "deepspeed": ("deepspeed", "0.19."), "torchtitan": ("torchtitan", "0.3."), "verl": ("verl", "0.9.")}


def program_of(row):
    """Imported before ranks are forked, so that they need not import a framework each."""
    return importlib.import_module(f"programs.{row.program}")


def rank_main(_, row, options, is_broken):
    program = program_of(row)
    for setting in row.settings:
        getattr(program, setting)(options)
    if row.is_newer and not is_broken:
        plant(row.where, row.broken, row.fixed)
    if row.where and is_broken and not row.is_newer:
        plant(row.where, row.fixed, row.broken)
    program.run(options)


def tensor_of(text):
    """The name of the first wrong tensor."""
    return next((line.split()[1] for line in text.splitlines() if line.startswith("  tensor ")), "")


@judging.needs_program
class RowsTest(judging.SharedRunsTest):
    goldens, right = {}, set()  # of a program, its settings and, of what is right, the layout

    def record(self, row, golden, sizes, is_broken):
        options = argparse.Namespace(out=tempfile.mkdtemp(dir=self.folder) + "/run", golden=golden, steps=1,
                                     experts=False, layers=2, **dict(tp=1, pp=1, vpp=1, ep=1, etp=None, dispatcher="allgather") | sizes)
        program_of(row)
        ranks.run(math.prod(sizes.values()), rank_main, row, options, is_broken)
        return options.out

    def golden_of(self, row):
        key = row.program, row.settings, row.where if row.is_newer else ""
        if key not in self.goldens:
            self.goldens[key] = self.record(row, None, {}, False)
        golden = self.goldens[key]
        if row.where and (*key, str(row.sizes)) not in self.right:
            self.expect(judging.judge(self.record(row, golden, row.sizes, False), golden), 0)
            self.right.add((*key, str(row.sizes)))
        return golden

    def check(self, row):
        golden = self.golden_of(row)
        status, text = judging.judge(self.record(row, golden, row.sizes, True), golden)
        print(f"{row.name}\n{text}", flush=True)
        self.assertEqual(status, 1, text)
        self.assertIn(row.tensor, tensor_of(text), text)
        self.assertIn(row.explained, text)


def test_of(row):
    @needs(*PINNED[row.program])
    def test(self):
        self.check(row)
    return test


for one in ROWS:
    setattr(RowsTest, "test_" + one.name.replace(" ", "_").replace("'", ""), test_of(one))


if __name__ == "__main__":
    unittest.main()
