"""`shardproof model` on families of transformers: clean layouts match, and two defects of the release are found by name.

SHARDPROOF_PROGRAM is the program; without it, or without transformers, these tests are skipped (README.md here).
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from said import SaidTest  # noqa: E402

PROGRAM = os.environ.get("SHARDPROOF_PROGRAM")
LACKING = [name for name in ("transformers", "accelerate", "psutil") if importlib.util.find_spec(name) is None]


def run(*arguments):
    done = subprocess.run([sys.executable, "-B", "-m", "shardproof", "model", *arguments], text=True, capture_output=True,
                          env=dict(os.environ, PYTHONPATH=str(ROOT / "python")), check=False)
    print(done.stdout, done.stderr, flush=True)
    return done.returncode, done.stdout + done.stderr


@unittest.skipUnless(PROGRAM, "SHARDPROOF_PROGRAM is not set")
@unittest.skipIf(LACKING, f"{' and '.join(LACKING)} are not installed")
class ModelTest(SaidTest):
    def test_clean_layouts_match(self):
        status, text = run("llama", "qwen3", "--layouts", "tp2, dp2, fsdp2, dp2 tp2")
        self.assertEqual((status, text.count(" match ")), (0, 8), text)
        self.assertRegex(text, r"llama +tp2 +match +\d+ of \d+ rules of the plan fit")

    def test_experts_on_data_parallel_ranks_match(self):
        """In float64 FSDP2 divides twice on a mesh of one rank, which is that of the experts here."""
        status, text = run("mixtral", "--layouts", "ep2")
        self.assertEqual((status, text.count(" match ")), (0, 1), text)

    def test_all_layouts_of_a_family_with_experts(self):
        status, text = run("hunyuan_v1_moe", "--layouts", "tp2, dp2, fsdp2, dp2 tp2, ep2")
        self.assertEqual((status, text.count(" match ")), (0, 5), text)

    def test_kernels_that_fsdp_loads_in_another_order(self):
        self.expect_patterns(run("kimi_linear", "--layouts", "dp2, fsdp2"), 1, r"dp2 +match",
                             r"fsdp2 +mismatch +param.*conv1d.weight .* at the start")

    def test_a_missing_sum_is_named_with_tensor_and_cause(self):
        self.expect(run("apertus", "--layouts", "tp2"), 1, "act_fn.alpha_n", "the sum over tp is missing")

    def test_a_statistic_over_a_shard_is_named(self):
        self.expect(run("gemma3n", "--layouts", "tp2"), 1, "inference")

    def test_a_folder_keeps_what_is_not_a_size(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "mine"
            path.mkdir()
            (path / "config.json").write_text(json.dumps(
                {"model_type": "llama", "hidden_size": 4096, "attention_bias": True, "architectures": ["LlamaForCausalLM"]}))
            self.expect(run(str(path), "--layouts", "tp2", "--json", f"{folder}/found.json"), 0)
            found, = json.loads(Path(f"{folder}/found.json").read_text())["results"]
            plan = found["plan"]
        self.assertEqual(plan["rules"]["model.layers.*.self_attn.o_proj"]["count"], 2)
        self.assertLess(found["parameters"], 1_000_000)

    def test_a_name_that_is_not_there(self):
        self.expect(run("lama"), 2, 'none of the name "lama". The nearest is "llama"')


if __name__ == "__main__":
    unittest.main()
