"""What extra heads read and predict, beside the rolls of Megatron-core: the tokens that head k reads, its labels, the mask of
those that count and their number, in rows of one sequence each and in packed rows.

SHARDPROOF_PROGRAM is the program unit_train, which prints drawn microbatches; without it, or without Megatron-core, the test
is skipped.
"""
import json
import os
import subprocess
import unittest
from collections import Counter
from types import SimpleNamespace

import torch

try:
    from megatron.core.transformer.multi_token_prediction import roll_tensor
except ImportError as error:
    roll_tensor, WHY = None, error

PROGRAM = os.environ.get("SHARDPROOF_PROGRAM")


@unittest.skipUnless(PROGRAM, "SHARDPROOF_PROGRAM is not set")
@unittest.skipUnless(roll_tensor, f"megatron.core cannot be imported: {None if roll_tensor else WHY}")
class MtpRollsTest(unittest.TestCase):
    def compare(self, drawn):
        rows, borders = drawn["rows"], drawn["borders"]

        def tensor(values):
            return torch.tensor(values, dtype=torch.float64).view(rows, -1)

        def roll(values):
            packed = SimpleNamespace(cu_seqlens_q=borders) if drawn["packed"] else None
            return roll_tensor(values, shifts=-1, dims=-1, packed_seq_params=packed)

        def ahead(values, count):
            """The values so many places further on in the same sequence, written out; 0 where it has ended."""
            found = torch.zeros_like(values)
            for row in range(rows):
                for start, end in zip(borders, borders[1:]):
                    for place in range(start, end - count):
                        found[row, place] = values[row, place + count]
            return found

        ids = tensor(drawn["ids"]) * tensor(drawn["real"])   # Megatron's padding is token 0
        labels, mask = ahead(ids, 1), ahead(tensor(drawn["masks"][0]), 1)   # as its data sets have them
        self.assertTrue(torch.equal(labels, tensor(drawn["ahead"][0])))
        for depth, count in enumerate(drawn["counts"], 1):
            ids, _ = roll(ids)
            labels, _ = roll(labels)
            mask, tokens = roll(mask)
            self.assertTrue(torch.equal(ids, tensor(drawn["ahead"][depth - 1])), f"inputs of head {depth}")
            self.assertTrue(torch.equal(labels, tensor(drawn["ahead"][depth])), f"labels of head {depth}")
            self.assertTrue(torch.equal(mask, ahead(tensor(drawn["masks"][depth]), 1 + depth)), f"mask of head {depth}")
            self.assertAlmostEqual(tokens.item(), count, places=12)

    def test_drawn_microbatches(self):
        printed = subprocess.run([PROGRAM, "print what heads read and predict"], text=True, capture_output=True,
                                 timeout=120, check=True)
        compared = Counter()
        for line in printed.stdout.splitlines():
            if line.startswith("{"):
                drawn = json.loads(line)
                with self.subTest(line=line):
                    self.compare(drawn)
                compared["packed" if drawn["packed"] else "rows"] += 1
        print(dict(compared))
        self.assertGreaterEqual(compared["packed"], 150)
        self.assertGreaterEqual(compared["rows"], 50)


if __name__ == "__main__":
    unittest.main()
