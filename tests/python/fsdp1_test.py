import tempfile
import unittest
from pathlib import Path

import models
import ranks
import runs
import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import shardproof


def train(rank, out, use_orig_params=None, golden=None):
    with shardproof.float64():  # FSDP1 asks for the norm in float32
        train_in_float64(out, use_orig_params, golden)


def train_in_float64(out, use_orig_params, golden):
    model = models.build()
    if use_orig_params is not None:
        model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({models.Block}), device_id=torch.device("cpu"),
                                         use_orig_params=use_orig_params)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if golden:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3)
        shardproof.load(model, golden)
    with shardproof.record(model, optimizer, out=out) as rec:
        for step in range(2):
            tokens, targets = shardproof.batch(*models.global_batch(step))
            loss = -models.logprobs_of(model(tokens), targets).mean()
            loss.backward()
            clip = model.clip_grad_norm_ if use_orig_params is not None else clip_plainly(model)
            clip(0.05)
            optimizer.step()
            optimizer.zero_grad()
            rec.scalar("loss", loss, mean_over=("dp",))


def clip_plainly(model):
    return lambda max_norm: torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)


class Fsdp1Test(unittest.TestCase):
    def compare(self, use_orig_params):
        with tempfile.TemporaryDirectory() as folder:
            golden, sharded = Path(folder) / "golden", Path(folder) / "run"
            ranks.run(1, train, golden)
            ranks.run(2, train, sharded, use_orig_params, golden)
            self.assertEqual({line["source"] for _, line, _ in runs.pieces(sharded, kind="grad")}, {"fsdp1"})
            for kind, count in (("param", 10), ("grad", 10), ("opt", 30)):
                names = runs.names(golden, kind=kind, step=2)
                self.assertEqual(len(names), count)
                for name in names:
                    wanted = {"kind": kind, "name": name, "step": 2}
                    torch.testing.assert_close(runs.whole(sharded, **wanted), runs.whole(golden, **wanted),
                                               rtol=0, atol=1e-12 if kind == "grad" else 1e-9)
            norm = {"kind": "scalar", "name": "grad_norm", "step": 2}
            self.assertAlmostEqual(float(runs.whole(sharded, **norm)), float(runs.whole(golden, **norm)), 6)
            start = runs.whole(sharded, kind="param", name="layers.1.up.weight", step=0)
            self.assertTrue(torch.equal(start, models.full_values(models.Model())["layers.1.up.weight"]))

    def test_flat_parts_put_together_equal_one_rank_with_original_parameters(self):
        self.compare(use_orig_params=True)

    def test_flat_parts_put_together_equal_one_rank_with_flat_parameters(self):
        self.compare(use_orig_params=False)


if __name__ == "__main__":
    unittest.main()
