"""Hashes of modules' outputs: what they depend on, their lines, and what the judge finds by them. SHARDPROOF_PROGRAM is the
program; without it the judged tests are skipped."""

import tempfile
import threading
import unittest

import judging
import layouts
import ranks
import runs
import torch
from schema_check import OF_RUNS, problems

from shardproof import digest
from shardproof.sources.dtensor import local_of

DTENSOR, HAND = ("dtensor", 1, 2), ("hand", 1, 2)
WHOLE = ("layers.?", "*.norm", "embed", "head")  # by hand, the output of layers.?.down is an addend


class DigestTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.values = torch.randn(37)

    def test_every_bit_and_its_position_counts(self):
        def signs(*places):
            changed = self.values.clone()
            changed[list(places)] *= -1
            return changed
        exchanged, last = self.values.clone(), self.values.clone()
        exchanged[[3, 8]] = self.values[[8, 3]]
        last[36] = last[36].nextafter(torch.tensor(9.0))
        tensors = [self.values, signs(3), signs(3, 8), signs(2, 9), exchanged, last, self.values.flip(0)]
        self.assertEqual(len({int(digest.digest(one)) for one in tensors}), len(tensors))

    def test_pairs_of_equal_changes_do_not_cancel(self):
        """One bit flipped in a word, or in each of two words, for each bit and pair: none has the digest of the original."""
        for words in (torch.randint(-2**62, 2**62, (8,)), torch.randint(-2**62, 2**62, (4, 2, 256))):
            self.each_differs(words)

    def each_differs(self, words):
        places = [0, 1, 2, 3, 4, 5, 6, 7] if words.dim() == 1 else [0, 1, 255, 256, 511, 512, 1024, 2047]
        words = words.flatten()
        known, singles = int(digest.digest(words)), set()
        for bit in range(64):
            mask = torch.tensor(1 << bit if bit < 63 else -2**63)
            for a in range(8):
                for b in range(a + 1):
                    changed = words.clone()
                    changed[sorted({places[a], places[b]})] ^= mask
                    found = int(digest.digest(changed))
                    self.assertNotEqual(found, known, (bit, places[a], places[b]))
                    singles |= {found} if a == b else set()
        self.assertEqual(len(singles), 64 * 8)

    def test_moved_and_negated_blocks(self):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            whole = torch.randn(64, 96, 128).to(dtype)
            negated, heads, rolled, rows = whole.clone(), whole.clone(), whole.roll(512, -1), whole.clone()
            negated[:, 32:64] *= -1
            heads[..., :64], heads[..., 64:] = whole[..., 64:], whole[..., :64]
            rows[[2, 40]] = whole[[40, 2]]
            tensors = [whole, -whole, negated, heads, whole.roll(1, 0), whole.roll(1, 1), rows, whole.transpose(0, 1)]
            self.assertEqual(len({int(digest.digest(one)) for one in tensors}), len(tensors))
            self.assertEqual(int(digest.digest(rolled)), int(digest.digest(whole)))  # 512 is 4 times 128

    def test_strides_and_dtypes(self):
        square = self.values[:36].reshape(6, 6)
        self.assertEqual(int(digest.digest(square.t())), int(digest.digest(square.t().contiguous())))
        for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.bool):
            odd = self.values.to(dtype)[1:8]
            self.assertEqual(int(digest.digest(odd)), int(digest.digest(odd.clone())))
        digest.digest(torch.zeros(0)), digest.digest(torch.tensor(1.0))

    def test_lines_follow_the_schema(self):
        with tempfile.TemporaryDirectory() as scratch:
            draw = layouts.Draw(2, torch.float32)
            ranks.run(2, layouts.train, draw, DTENSOR, scratch, None, None, None, "layers.*")
            *lines, end = runs.lines(scratch)
            hashes = [line for line in lines if line.get("kind") == "hash"]
            first = [line for line in hashes if line["step"] == 1]
            self.assertEqual({line["name"] for line in first},
                             {f"layers.{i}{part}" for i in range(draw.layers) for part in ("", ".norm", ".up", ".down")})
            self.assertEqual(sorted(line["order"] for line in first), list(range(4 * draw.layers)))
            for line in hashes:
                self.assertEqual(problems(line, OF_RUNS["hash"]), [])
            self.assertEqual(end, {"end": len(lines)})

    def test_the_sum_is_that_of_the_page(self):
        """Runs of one version are compared with each other: another way to compute it must give the same."""
        block = 1 << 15
        for words in (0, 1, 7, block - 1, block, block + 1, 2 * block + 5):
            for bytes_more in (0, 3):
                data = torch.randint(256, (8 * words + bytes_more,), dtype=torch.uint8)
                self.assertEqual(int(digest.digest(data)) % 2**64, by_formula(bytes(data.tolist())), (words, bytes_more))
        self.assertEqual(int(digest.digest(torch.tensor([1.0, -2.5]))) % 2**64, 0xd550b1011a6cb3ef)

    def test_in_inference_mode_first_and_in_other_threads(self):
        """What is kept for the next digest is made wherever the first one is."""
        values = torch.randn(700)
        found = []

        def in_a_thread():
            with torch.inference_mode():
                found.append(int(digest.digest(values * 1)))
            found.append(int(digest.digest((values.requires_grad_() * 1))))
        threads = [threading.Thread(target=in_a_thread) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, [int(digest.digest(values))] * 6)

    def test_an_output_whose_collective_is_pending(self):
        from torch.distributed._functional_collectives import AsyncCollectiveTensor
        values = torch.randn(3, 4)
        waited = local_of(AsyncCollectiveTensor(values))
        self.assertIs(type(waited), torch.Tensor)
        self.assertEqual(int(digest.digest(waited)), int(digest.digest(values)))

    def test_zeros_of_both_signs_and_nans_with_other_bits_differ(self):
        bits = torch.tensor([0x7fc00000, 0x7fc00001, 0x7f800001, -0x400000], dtype=torch.int32)
        found = {int(digest.digest(torch.stack([one, bits[0]]).view(torch.float32))) for one in bits}
        self.assertEqual(len(found), len(bits))
        self.assertNotEqual(int(digest.digest(torch.zeros(3))), int(digest.digest(-torch.zeros(3))))


def by_formula(data):
    """The digest of bytes as docs/recorded_runs.md has it, in Python's integers."""
    def signed(value):
        return (value + 2**63) % 2**64 - 2**63
    data += bytes(-len(data) % 8)
    words = [int.from_bytes(data[i:i + 8], "little", signed=True) for i in range(0, len(data), 8)]
    total = 0
    for i, word in enumerate(words, 1):
        c = signed(i * 0x9e3779b97f4a7c15)
        c = signed((c ^ (c >> 31)) * 0xbf58476d1ce4e5b9)
        total += (word ^ (word >> 29)) * ((c ^ (c >> 29)) | 1)
    return total % 2**64


def off_on_one_rank(model, dp, tp):
    """From the second norm on, tp rank 1 computes with another value in one element."""
    def off(module, inputs, output):
        output = output.clone()
        output.flatten()[5] += 1e-12
        return output
    if tp == 1:
        model.layers[-1].norm.register_forward_hook(off)


@judging.needs_program
class JudgedHashTest(judging.SharedRunsTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.draw = layouts.Draw(9, torch.float64)
        cls.golden = str(cls.folder / "one")
        ranks.run(1, layouts.train, cls.draw, layouts.ONE, cls.golden, None, None, None, "*")

    def judged(self, layout, hashes="*", prepare=None, out="run"):
        out = str(self.folder / out)
        ranks.run(2, layouts.train, self.draw, layout, out, self.golden, None, None, hashes, prepare)
        return judging.judge(out, self.golden)

    def test_equal_copies_match(self):
        self.expect(self.judged(DTENSOR), 0, "MATCH", "outputs that ranks share, 0 differ", ".up.output")
        self.expect(self.judged(HAND, WHOLE), 0, "MATCH", "outputs that ranks share, 0 differ")

    def test_the_first_output_that_differs_is_the_finding(self):
        last = self.draw.layers - 1
        self.expect(self.judged(DTENSOR, prepare=off_on_one_rank), 1, "MISMATCH", f"layers.{last}.norm.output",
                    "of step 1", "its hash on rank 1 is not that of rank 0", "and this is the first")

    def test_an_addend_is_named_as_a_likely_cause(self):
        self.expect(self.judged(HAND), 1, "layers.0.down.output", "addend that is summed outside of it")

    def test_repeats_of_one_layout_are_compared_rank_by_rank(self):
        self.judged(DTENSOR, out="first")
        self.judged(DTENSOR, out="second")
        count = 3 * self.draw.layers + self.draw.layers + 2
        total = 2 * count * self.draw.steps
        self.expect(judging.judge(self.folder / "first", self.folder / "second", "--reference"), 0,
                    f"{total} of {total} are those of the reference")


if __name__ == "__main__":
    unittest.main()
