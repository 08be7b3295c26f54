"""The examples that no other test here judges: DeepSpeed ZeRO 1 to 3, and transformers' Llama under DTensor and FSDP2, are
recorded and judged clean against one rank. The script that reproduces a bug of Megatron-core is judged, too.

SHARDPROOF_PROGRAM is the program; without it, or without a framework, its tests are skipped (README.md here).
"""

import argparse
import importlib.util
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(Path(__file__).parent)]

import ranks  # noqa: E402
from programs import example  # noqa: E402

PROGRAM = os.environ.get("SHARDPROOF_PROGRAM")


def is_installed(package):
    return importlib.util.find_spec(package) is not None


@unittest.skipUnless(PROGRAM, "SHARDPROOF_PROGRAM is not set")
class ExamplesTest(unittest.TestCase):
    def check(self, rank_main, sizes, status=0, texts=(), **options):
        options = dict(tp=1) | options
        with tempfile.TemporaryDirectory() as folder:
            golden, run = (argparse.Namespace(out=f"{folder}/{name}", golden=start, steps=2, **options)
                           for name, start in (("golden", None), ("run", f"{folder}/golden")))
            vars(run).update(sizes)
            ranks.run(1, rank_main, golden)
            ranks.run(math.prod(sizes.values()), rank_main, run)
            done = subprocess.run([PROGRAM, "judge", run.out, "--golden", golden.out], text=True, capture_output=True,
                                  timeout=120, check=False)
            print(done.stdout, flush=True)
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
            for text in texts or ["MATCH"]:
                self.assertIn(text, done.stdout)
            self.assertNotIn("not compared", done.stdout)

    @unittest.skipUnless(is_installed("deepspeed"), "deepspeed is not installed")
    def test_deepspeed(self):
        os.environ["DS_ACCELERATOR"] = "cpu"  # which it reads when it is imported
        import deepspeed  # noqa: F401
        train = example("deepspeed")

        def rank_main(rank, options):
            train.on_cpu(rank, train.dist.get_world_size(), options.stage)
            with train.shardproof.float64():
                train.train(options)
        for stage in (1, 2, 3):
            with self.subTest(stage=stage):
                self.check(rank_main, dict(dp=2), stage=stage)

    @unittest.skipUnless(is_installed("megatron"), "megatron-core is not installed")
    def test_label_smoothing_is_wrong_in_megatron(self):
        """The script that reproduces it: a bug of the installed version, which is gone without smoothing."""
        script = example("megatron_core", "label_smoothing")

        def rank_main(_, options):
            script.cuda_on_cpu.install()
            script.parallel_state.initialize_model_parallel(options.tp)
            with script.cuda_on_cpu.OnCpu(), script.shardproof.float64():
                script.train(options)
        self.check(rank_main, dict(tp=2), smoothing=0.0)
        self.check(rank_main, dict(tp=2), 1, ["loss   of step 1", "the ranks of tp do not agree"], smoothing=0.1)

    @unittest.skipUnless(is_installed("transformers"), "transformers is not installed")
    def test_transformers(self):
        train = example("transformers_tp")

        def rank_main(_, options):
            with train.shardproof.float64():
                train.train(options)
        self.check(rank_main, dict(tp=2, dp=2))


if __name__ == "__main__":
    unittest.main()
