"""torchtitan's llama3 at tp 2 x dp 2 (examples/torchtitan) is recorded and judged clean against one rank.

SHARDPROOF_PROGRAM is the program; without it, or without torchtitan, the test is skipped (README.md here).
"""

import argparse
import importlib.util
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "examples" / "torchtitan")]

import judging  # noqa: E402
import ranks  # noqa: E402

INSTALLED = importlib.util.find_spec("torchtitan") is not None


def rank_main(_, options):
    import train
    with train.shardproof.float64():
        train.train(options)


@unittest.skipUnless(judging.PROGRAM and INSTALLED, "SHARDPROOF_PROGRAM is not set, or torchtitan is not installed")
class TorchtitanTest(judging.Judged):
    def test_tp2_dp2_matches(self):
        with tempfile.TemporaryDirectory() as folder:
            golden, run = f"{folder}/golden", f"{folder}/run"
            ranks.run(1, rank_main, argparse.Namespace(out=golden, golden=None, tp=1, ep=1, experts=False, steps=2))
            ranks.run(4, rank_main, argparse.Namespace(out=run, golden=golden, tp=2, ep=1, experts=False, steps=2))
            judged = judging.judge(run, golden)
            print(judged[1])
            self.expect(judged, 0)


if __name__ == "__main__":
    unittest.main()
