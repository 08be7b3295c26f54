#!/usr/bin/env python3
"""`logprobs A B`: what the values themselves show. Values that went through a coarser dtype, the place of tokens that one
file does not score, and a factor that predicts nothing. SEED=n draws other batches.

Usage: logprobs_values_test.py PROGRAM [unittest arguments]
"""
import math
import random

import cli_test
import logprobs_test
from logprobs_test import NOISY, SEED, Batch, rounded


class LogprobsValuesTest(cli_test.CommandTest):
    pair = logprobs_test.LogprobsTest.pair
    compare = logprobs_test.LogprobsTest.compare
    expect = logprobs_test.LogprobsTest.expect

    def test_values_that_were_rounded(self):
        batch = Batch(random.Random(f"{SEED} rounded"), rows=8, length=48)
        a, b = (batch.score("float32") for _ in range(2))
        for dtype in ("bfloat16", "float16"):
            coarse = [[rounded(value, dtype) for value in row] for row in b]
            for name, other, pair in (("B", "A", (a, coarse)), ("A", "B", (coarse, a))):
                self.expect(self.compare(batch, *pair), 1, "the cause is known: rounded",
                            f"each of the 376 values of {name} that are not 0 is a number of {dtype}",
                            f"further from that of {other} than half a step", "and the rest is noise of float32")
            # Files that say so are compared with the noise of that dtype.
            self.expect(self.compare(batch, a, coarse, metadata_b={"dtype": dtype}), 0, "NOISE")
            # Both went through it: nothing was rounded on one side alone.
            both = [[rounded(value, dtype) for value in row] for row in a]
            both[3][7] *= 2
            self.assertNotIn("number of", self.compare(batch, both, coarse).stdout)
        one = [[rounded(value, "bfloat16") for value in row] for row in b]
        one[2][9] = b[2][9]
        self.assertNotIn("number of", self.compare(batch, a, one).stdout)

    def test_values_of_a_coarser_computation(self):
        """They are numbers of bfloat16, too, but further from the other file than its rounding takes them."""
        batch = Batch(random.Random(f"{SEED} computed"), rows=8, length=48)
        b = [[rounded(value, "bfloat16") for value in row] for row in batch.score("bfloat16")]
        self.expect(self.compare(batch, batch.score("float32"), b), 1, "the cause is known: rounded",
                    "each of the 376 values of B that are not 0 is a number of bfloat16", "a computation in it")

    def test_the_place_of_unscored_tokens(self):
        batch = Batch(random.Random(f"{SEED} unscored"), rows=12, length=40, padded=True)
        a, b = (batch.score("bfloat16") for _ in range(2))
        ends = [length - 1 for length in batch.lengths]
        for row, end in enumerate(ends):
            batch.ids[row][end] = 47
            a[row][end] = b[row][end] = -1.5 - row / 8

        def unscored(is_zero):
            zero = [[0.0 if is_zero(row, t) else value for t, value in enumerate(values)] for row, values in enumerate(b)]
            return self.compare(batch, a, zero, metadata_a={"dtype": "bfloat16"})

        self.expect(unscored(lambda row, t: t == ends[row]), 1, "the cause is known: unscored",
                    "they are the last ones of their rows, 1 in 12 of 12 rows, and all have token id 47",
                    "one file does not score how the rows end")
        done = unscored(lambda row, t: row % 3 and t >= ends[row] - row)
        self.expect(done, 1, "the last ones of their rows,", "in 8 of 12 rows; explains")
        self.assertNotIn("token id 47", done.stdout)
        self.expect(unscored(lambda row, t: t < 6), 1, "the first ones of their rows", "the prompt is masked")
        self.assertNotIn("of their rows", unscored(lambda row, t: 6 < t < 12 + row).stdout)
        self.expect(unscored(lambda row, t: row > 8), 1, "they are all of their rows in 3 of 12 rows",
                    "one file lacks these rows: a microbatch, or the part of a rank, was not scored")

    def test_a_bias_that_hides_in_noise(self):
        """Each token is within noise of bfloat16; all together they are not."""
        draw = random.Random(f"{SEED} bias")
        batch = Batch(draw, rows=16, length=64)
        a = batch.score("float32")
        for bias, status, texts in ((0, 0, ["NOISE"]), (-0.012, 1, ["no known cause: B is A - 0.01", "in the mean of 1008 tokens",
                                                                   "a padded vocabulary"])):
            b = [[value + (value != 0) * (bias + draw.gauss(0, 0.015)) for value in row] for row in a]
            self.expect(self.compare(batch, a, b, metadata_b={"dtype": "bfloat16"}), status, *texts)

    def test_the_same_infinities_are_counted(self):
        batch = Batch(random.Random(f"{SEED} infinite"), rows=4, length=16)
        a = batch.score("float32")
        a[1][3] = a[2][5] = -math.inf
        self.expect(self.compare(batch, a, a), 0, "EQUAL", "58 tokens compared",
                    "left out  2 tokens, where both are -infinity; the first at row 1, position 3")
        a[1][3] = math.inf  # which no logprob is
        self.expect(self.compare(batch, a, a), 1, "A has 0 NaN and 1 infinite values, B has 0 NaN and 1 infinite values")

    def test_tokens_that_contradict_a_claim_are_not_left_out(self):
        """No probability is negative, and none is below what was added to it."""
        draw = random.Random(f"{SEED} contradicted")
        batch = Batch(draw, rows=4, length=17)
        scored = [[t > 0 for t in range(17)] for _ in range(4)]

        def pair(b_of, other):  # of 5 tokens, 3 follow the claim
            a = [[-draw.uniform(0.3, 1.2) if one else 0.0 for one in row] for row in scored]
            b = [[(b_of(x) if t % 5 < 3 else other()) if x else 0.0 for t, x in enumerate(row)] for row in a]
            return a, b

        low = pair(lambda x: math.log(math.exp(x) - 0.2), lambda: -draw.uniform(2, 9))
        a, b = pair(math.exp, lambda: -draw.uniform(2, 9))
        for a, b in (low, tuple(reversed(low)), (b, a), (a, b)):
            self.assertNotIn("the cause is known", self.compare(batch, a, b, dtype="float32").stdout)

    def test_a_number_needs_more_than_the_tokens_it_follows_from(self):
        batch = Batch(random.Random(f"{SEED} few"), rows=1, length=9)
        for scored, status in ((1, None), (2, None), (3, None), (4, "factor")):
            a = [[0.0] + [-1.5 - t / 8 if t < scored else 0.0 for t in range(8)]]
            b = [[value * 6.5 for value in a[0]]]
            out = self.compare(batch, a, b, dtype="float64").stdout
            self.assertEqual("the cause is known" in out, status is not None, out)

    def test_what_a_claim_says_nothing_of(self):
        batch = Batch(random.Random(f"{SEED} edges"), rows=8, length=16)
        a = batch.score("float32")
        b = [row[1:] + [-1.0] for row in a]
        for row in b:
            row[0] = 0.0
        self.expect(self.compare(batch, a, b, dtype="float32"), 1, "the cause is known: shift", "it says nothing of 8 of 120 tokens")

    def test_the_chunks_of_a_rank_in_zigzag_order(self):
        draw = random.Random(f"{SEED} zigzag")
        batch = Batch(draw, rows=16, length=64)
        a, b = (batch.score("bfloat16") for _ in range(2))
        b = [[value - (value != 0 and t // 16 in (0, 3)) * draw.uniform(0.3, 0.9) for t, value in enumerate(row)] for row in b]
        self.expect(self.compare(batch, a, b), 1, "the cause is known: context_shard",
                    "only the positions of chunks 0 and 3 of 4 of each row differ, which rank 0 of 2 holds in zigzag order:")
        zigzag = batch
        # Of packed sequences whose ends do not count the chunks are those of the whole sequences.
        batch = Batch(draw, rows=24, length=96, packed=1)
        batch.segments = [[int(t >= 48) for t in range(96)] for _ in range(24)]
        own = [[t % 48 // 12 for t in range(96)] for _ in range(24)]
        packed = [batch.score("bfloat16") for _ in range(2)]
        packed[1] = [[value - (value != 0 and chunk in (1, 2)) * draw.uniform(0.3, 0.9) for value, chunk in zip(row, chunks)]
                     for row, chunks in zip(packed[1], own)]
        counts = {"mask": ("int64", [[int(t % 48 < 40) for t in range(96)]] * 24)}
        files = [batch.tensors(values, "bfloat16") | counts for values in packed]
        self.expect(self.pair(a=files[0], b=files[1]), 1, "the positions of chunks 1 and 2 of 4 of each segment differ")
        # With the prompt masked, a rank of 4 that holds one chunk has the same tokens.
        given = {"mask": ("int64", [[int(t >= 16) for t in range(64)]] * 16)}
        files = [zigzag.tensors(values, "bfloat16") | given for values in (a, b)]
        self.expect(self.pair(a=files[0], b=files[1]), 1,
                    "only positions 48 to 63 differ, chunk 3 of 4 of each row, or the positions of chunks 0 and 3 of 4")

    def test_tensors_of_other_names_are_listed(self):
        batch = Batch(random.Random(f"{SEED} names"), rows=4, length=16)
        given = batch.tensors(batch.score("float32"), "float32")
        self.expect(self.pair(a=given, b=given | {"inputids": given["input_ids"]}), 0, "EQUAL", "not read  inputids of B")

    def test_values_that_are_limited(self):
        draw = random.Random(f"{SEED} limit")
        batch = Batch(draw, rows=12, length=40)
        a = [[0.0] + [-draw.expovariate(1 / 3) for _ in range(39)] for _ in range(12)]
        floor = [[max(value, -5.0) for value in row] for row in a]
        self.expect(self.compare(batch, a, floor), 1, "the cause is known: limit", "B is A where that is above -5, and -5 at")
        self.expect(self.compare(batch, floor, a), 1, "the cause is known: limit", "A is B where that is above -5, and -5 at")
        added = [[value and math.log(math.exp(value) + 1e-3) for value in row] for row in a]
        self.expect(self.compare(batch, a, added), 1, "the cause is known: added", "B is log(exp(A) + 0.001) at every token")
        self.expect(self.compare(batch, added, a), 1, "the cause is known: added", "A is log(exp(B) + 0.001) at every token")
        constant = [[value and -1.5 for value in row] for row in a]
        self.assertNotIn("known: limit", self.compare(batch, a, constant).stdout)

    def both_ways(self, batch, a, b, *texts):
        """`texts` have the names {0} and {1}, of the other file and of the first one."""
        for pair, names in (((a, b), "BA"), ((b, a), "AB")):
            self.expect(self.compare(batch, *pair), 1, *(text.format(*names) for text in texts))

    def test_the_likeliest_token_in_place_of_the_chosen_one(self):
        batch = Batch(random.Random(f"{SEED} likeliest"))
        most = batch.score(NOISY, target=lambda row, t, logits: max(logits) - logits[batch.ids[row][t]])
        self.both_ways(batch, batch.score(NOISY), most, "the cause is known: likeliest_token", "{0} is higher at",
                       "{0} has the logprob of the likeliest token, and {1} that of the chosen one")

    def test_values_that_fill_in_are_not_those_of_the_likeliest_token(self):
        """An engine that returns its five best and writes a number for any other token."""
        batch = Batch(random.Random(f"{SEED} fill"))
        a = batch.score("float32")
        for fill in (-20.0, -9999.0):
            b = [[value if value == 0 or
                  batch.ids[row][t] in sorted(range(batch.vocab), key=lambda v: -batch.logits[row][t][v])[:5] else fill
                  for t, value in enumerate(values)] for row, values in enumerate(a)]
            for pair in ((a, b), (b, a)):
                self.assertNotIn("likeliest", self.compare(batch, *pair).stdout)

    def test_a_penalty_on_tokens_that_stood_before(self):
        """The probabilities of other tokens rise by as much as theirs fall."""
        draw = random.Random(f"{SEED} repeated")
        for packed in (0, 2):
            batch, penalty = Batch(draw, vocab=96, packed=packed), draw.uniform(0.5, 2)
            a, b = batch.score("float32"), batch.score("float32")
            for row in range(batch.rows):
                before = set()
                for t in range(batch.length):
                    if batch.begins(row, t):
                        before.clear()
                    elif before:
                        logits = [z - penalty * (v in before) for v, z in enumerate(batch.logits[row][t])]
                        b[row][t] = logprobs_test.log_softmax_of(logits, batch.ids[row][t])
                    before.add(batch.ids[row][t])
            self.both_ways(batch, a, b, "the cause is known: repeated_tokens", "{0} is lower at",
                           "whose id occurs earlier in their " + ("segment" if packed else "row"), "{0} has a penalty")

    def test_means_and_sums_so_far(self):
        batch = Batch(random.Random(f"{SEED} sums"), packed=2)
        a = batch.score("float32")
        for mean in (False, True):
            for unit in ("row", "segment"):
                b = []
                for row, values in enumerate(a):
                    total = count = 0
                    b.append([])
                    for t, value in enumerate(values):
                        if unit == "segment" and batch.begins(row, t):
                            total = count = 0
                        total, count = total + value, count + (value != 0)
                        b[-1].append(total / (count if mean else 1) if value else 0.0)
                self.both_ways(batch, a, b, "the cause is known: cumulative",
                               f"{{0}} at each token is the {'mean' if mean else 'sum'} of {{1}} up to it within each {unit}")

    def test_smoothed_targets(self):
        """No offset and no renormalization, though all tokens are lower by about as much."""
        batch = Batch(random.Random(f"{SEED} smoothed"))
        for share in (0.05, 0.2):
            def mean_logit(row, t, logits):
                return share * (sum(logits) / len(logits) - logits[batch.ids[row][t]])
            self.both_ways(batch, batch.score(NOISY), batch.score(NOISY, target=mean_logit), "the cause is known: smoothed",
                           "{0} is about", "and lower at tokens of a probability near 1 too", "with label smoothing of about")

    def test_a_factor_that_predicts_nothing(self):
        """The logprobs of improbable tokens in A, of probable ones in B: A times any small number is nearer to B."""
        draw = random.Random(f"{SEED} factor")
        batch = Batch(draw, rows=16, length=48)
        a, b = ([[0.0] + [-draw.expovariate(1 / mean) for _ in range(47)] for _ in range(16)] for mean in (12, 0.6))
        self.expect(self.compare(batch, a, b), 1, "no known cause")
        self.expect(self.compare(batch, b, a), 1, "no known cause")
        self.expect(self.compare(batch, a, [[value / 20 for value in row] for row in a]), 1, "the cause is known: factor")


if __name__ == "__main__":
    cli_test.main()
