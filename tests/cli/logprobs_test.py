#!/usr/bin/env python3
"""`logprobs A B`: planted causes, noise alone, and bad input. The logprobs are real ones: logits are drawn, a token is
drawn from their softmax, and each file computes its logprob with rounding of its own. SEED=n draws other batches.

Usage: logprobs_test.py PROGRAM [unittest arguments]
"""
import collections
import json
import math
import os
import pathlib
import random
import re
import struct

import cli_test

SEED = int(os.environ.get("SEED", "1"))
BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}  # of the significand
CODES = {"float64": ("F64", "d"), "float32": ("F32", "f"), "float16": ("F16", "e"), "int64": ("I64", "q"),
         "bool": ("BOOL", "?")}
WIDTHS = {"float64": 8, "int64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "bool": 1}  # wider ones come first


def rounded(value, dtype):
    """The nearest number of the dtype; no exponent here is out of range."""
    if value == 0 or not math.isfinite(value):
        return value
    significand, exponent = math.frexp(value)
    bits = BITS[dtype]
    return math.ldexp(round(significand * (1 << bits)), exponent - bits)


def packed_bytes(values, dtype):
    if dtype == "bfloat16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{len(values)}{CODES[dtype][1]}", *values)


def write_file(path, tensors, metadata=()):
    """{name: (dtype, rows)} as a safetensors file; rows is a list of numbers or of lists."""
    made = {}
    for name, (dtype, rows) in sorted(tensors.items(), key=lambda one: -WIDTHS[one[1][0]]):
        flat = [value for row in rows for value in row] if isinstance(rows[0], list) else rows
        shape = [len(rows), len(rows[0])] if isinstance(rows[0], list) else [len(rows)]
        raw = packed_bytes([rounded(value, dtype) for value in flat] if dtype in BITS else flat, dtype)
        made[name] = ("BF16" if dtype == "bfloat16" else CODES[dtype][0], shape, raw)
    pathlib.Path(path).write_bytes(cli_test.case_maker.safetensors(made, metadata=dict(metadata)))


def log_softmax_of(logits, token, keep=None):
    most = max(logits)
    kept = logits if keep is None else [logits[v] for v in keep]
    return logits[token] - most - math.log(sum([math.exp(z - most) for z in kept]))


def nucleus(logits, top_p):
    """The fewest likeliest tokens with a probability of at least top_p."""
    order = sorted(range(len(logits)), key=lambda v: -logits[v])
    total, sum_ = sum(math.exp(z) for z in logits), 0
    for i, v in enumerate(order):
        sum_ += math.exp(logits[v])
        if sum_ >= top_p * total:
            return order[:i + 1]
    return order


class Batch:
    """Logits of every token and the tokens that were drawn from them."""

    def __init__(self, draw, rows=16, length=64, vocab=48, packed=0, padded=False, keep=None):
        """`packed` is the number of cuts between the segments of each row; True gives two."""
        self.draw, self.rows, self.length, self.vocab = draw, rows, length, vocab
        popular = [draw.gauss(0, 1) for _ in range(vocab)]
        self.lengths = [draw.randint(length // 2, length - 1) if padded and draw.random() < 0.5 else length
                        for _ in range(rows)]
        self.segments = [self._segments(self.lengths[b], 2 if packed is True else packed) for b in range(rows)]
        self.logits, self.ids = [], []
        for b in range(rows):
            row = []
            for _ in range(self.lengths[b]):
                width = draw.uniform(1, 4)  # some contexts are almost certain, some open
                row.append([0.5 * p + draw.gauss(0, width) for p in popular])
            self.logits.append(row)
            self.ids.append([self._token(z, keep) for z in row] + [0] * (length - self.lengths[b]))
        self.versions = None

    def _segments(self, length, num_cuts):
        cuts = sorted(self.draw.sample(range(4, length - 4), num_cuts))
        return [sum(t >= cut for cut in cuts) for t in range(length)] + [-1] * (self.length - length)

    def _token(self, logits, keep):
        kept = range(self.vocab) if keep is None else keep(logits)
        most = max(logits)
        return self.draw.choices(list(kept), [math.exp(logits[v] - most) for v in kept])[0]

    def begins(self, b, t):
        return t == 0 or self.segments[b][t] != self.segments[b][t - 1]

    def score(self, dtype, temperature=1.0, keep=None, change=None, target=None):
        """One engine's logprobs: each logit is off by roundings of its own. change(b, t) is the width of other
        weights' logits; target(b, t, logits) may give another logit for the token."""
        unit, gauss = 2.0 ** -BITS[dtype], self.draw.gauss
        splitter = (1 << 53 - BITS[dtype]) + 1.0  # Veltkamp's: as rounded(), for the millions of logits here
        values = []
        for b in range(self.rows):
            row = [0.0] * self.length
            for t in range(self.lengths[b]):
                if self.begins(b, t):
                    continue
                width = change(b, t) if change else 0
                logits = []
                for z in self.logits[b][t]:
                    other = z + gauss(0, width) if width else z
                    noisy = other + unit * abs(z) * gauss(0, 1)
                    wide = splitter * noisy
                    logits.append((wide - (wide - noisy)) / temperature)
                token = self.ids[b][t]
                value = log_softmax_of(logits, token, keep(self.logits[b][t]) if keep else None)
                row[t] = value + (target(b, t, logits) if target else 0)
            values.append(row)
        return values

    def tensors(self, values, dtype, names=("input_ids", "lengths", "segments", "versions")):
        out = {"logprobs": (dtype, values)}
        if "input_ids" in names:
            out["input_ids"] = ("int64", self.ids)
        if "lengths" in names and min(self.lengths) < self.length:
            out["lengths"] = ("int64", self.lengths)
        if "segments" in names and max(map(max, self.segments)) > 0:
            out["segments"] = ("int64", self.segments)
        if "versions" in names and self.versions:
            out["versions"] = ("int64", self.versions)
        return out


Planted = collections.namedtuple("Planted", "batch a b cause text metadata_a metadata_b")
NOISY = "bfloat16"
KINDS = {}


def kind(function):
    KINDS[function.__name__] = function
    return function


def planted(batch, b, cause, text, a=None, metadata_a=None, metadata_b=None):
    return Planted(batch, a or batch.score(NOISY), b, cause, text, metadata_a or {}, metadata_b or {})


def shifted(batch, by, in_segments):
    """B[t] = A'[t + by], with noise of its own."""
    values = batch.score(NOISY)
    out = []
    for b in range(batch.rows):
        row = []
        for t in range(batch.length):
            inside = 0 <= t + by < batch.lengths[b] and t < batch.lengths[b]
            same = inside and (not in_segments or batch.segments[b][t] == batch.segments[b][t + by])
            row.append(values[b][t + by] if same else 0.0)
        out.append(row)
    return out


def shift_text(by):
    return re.escape(f"A[t {'+' if by > 0 else '-'} {abs(by)}]")


@kind
def shift_of_rows(draw):
    batch, by = Batch(draw, padded=draw.random() < 0.5), draw.choice([-1, 1])
    return planted(batch, shifted(batch, by, False), "shift", shift_text(by) + " within each row")


@kind
def shift_in_segments(draw):
    batch, by = Batch(draw, packed=True), draw.choice([-1, 1])
    # The first token of a segment is 0, so a shift to the left gives the same values within rows.
    where = "segment" if by < 0 else "(segment|row)"
    return planted(batch, shifted(batch, by, True), "shift", shift_text(by) + f" within each {where}")


@kind
def shift_by_more(draw):
    batch, by = Batch(draw), draw.choice([-4, -3, -2, 2, 3, 4])
    return planted(batch, shifted(batch, by, False), "shift", shift_text(by))


def some_temperature(draw):
    return round(draw.choice([draw.uniform(0.5, 0.9), draw.uniform(1.15, 2)]), 2)


@kind
def temperatures_of_the_metadata(draw):
    batch, t = Batch(draw), some_temperature(draw)
    return planted(batch, batch.score(NOISY, temperature=t), "temperature", rf"the metadata say 1 in A and {t:g} in B",
                   metadata_a={"temperature": "1"}, metadata_b={"temperature": str(t)})


@kind
def temperature_unnamed(draw):
    batch, t = Batch(draw), some_temperature(draw)
    return planted(batch, batch.score(NOISY, temperature=t), "temperature",
                   lambda text: abs(math.log(float(re.search(r"about ([\d.]+) times", text)[1]) / t)) < 0.15)


@kind
def logits_not_divided(draw):
    batch, t = Batch(draw), some_temperature(draw)
    both = {"temperature": str(t), "vocab_size": str(batch.vocab)}
    return planted(batch, batch.score(NOISY), "temperature", "and B was computed from logits that were not divided",
                   a=batch.score(NOISY, temperature=t), metadata_a=both, metadata_b=both)


@kind
def factor_on_logprobs(draw):
    batch, t = Batch(draw), some_temperature(draw)
    values = [[value / t for value in row] for row in batch.score(NOISY)]
    return planted(batch, values, "factor", lambda text: abs(float(text.split()[2]) * t - 1) < 0.02)


@kind
def top_p_renormalized(draw):
    top_p = draw.choice([0.8, 0.9, 0.95])
    batch = Batch(draw, keep=lambda z: nucleus(z, top_p))
    b = batch.score(NOISY, keep=lambda z: nucleus(z, top_p))
    return planted(batch, b, "renormalized", "B is normalized over fewer", metadata_b={"top_p": str(top_p)})


@kind
def top_k_renormalized(draw):
    def keep(z):
        return sorted(range(len(z)), key=lambda v: -z[v])[:k]
    k = draw.randint(3, 8)
    batch = Batch(draw, keep=keep)
    return planted(batch, batch.score(NOISY), "renormalized", "A is normalized over fewer",
                   a=batch.score(NOISY, keep=keep))


@kind
def first_tokens_of_segments(draw):
    batch, count = Batch(draw, packed=True), draw.randint(1, 3)
    b = batch.score(NOISY)
    for row in range(batch.rows):
        for t in range(batch.length):
            for back in range(1, count + 1):
                if t >= back and not batch.begins(row, t) and batch.begins(row, t - back):
                    b[row][t] = -draw.expovariate(0.3)
                    break
    return planted(batch, b, "first_tokens", "of each segment")


@kind
def padding_in_the_attention(draw):
    batch, width = Batch(draw, rows=24, padded=True), draw.uniform(0.3, 1)
    b = batch.score(NOISY, change=lambda row, t: width if batch.lengths[row] < batch.length else 0)
    return planted(batch, b, "padding", "on the right")


@kind
def attention_over_the_boundary(draw):
    batch, width = Batch(draw, packed=True), draw.uniform(0.3, 1)
    return planted(batch, batch.score(NOISY, change=lambda row, t: width if batch.segments[row][t] > 0 else 0),
                   "pack_boundary", "the first segment of each row is right")


@kind
def two_rows_exchanged(draw):
    batch = Batch(draw)
    b = batch.score(NOISY)
    i, j = sorted(draw.sample(range(batch.rows), 2))
    b[i], b[j] = b[j], b[i]
    return planted(batch, b, "rows", rf"row {i} of B is row {j} of A, row {j} of B is row {i} of A$")


@kind
def rows_rotated(draw):
    batch, by = Batch(draw, padded=True), draw.randint(1, 15)
    b = batch.score(NOISY)
    return planted(batch, b[by:] + b[:by], "rows", f"rotated by {by}:")


@kind
def rows_in_turn(draw):
    batch, n = Batch(draw), draw.choice([2, 4, 8])
    b = batch.score(NOISY)
    size = batch.rows // n
    return planted(batch, [b[r % n * size + r // n] for r in range(batch.rows)], "rows", rf"{n} blocks of A in turn")


@kind
def old_rows(draw):
    batch, width = Batch(draw, rows=24), draw.uniform(0.2, 0.8)
    batch.versions = [[draw.choice([6, 7])] * batch.length for _ in range(batch.rows)]
    return planted(batch, batch.score(NOISY, change=lambda row, t: width if batch.versions[row][t] == 6 else 0),
                   "stale_weights", "only tokens of version 6 differ")


@kind
def old_tokens(draw):
    batch, width = Batch(draw), draw.uniform(0.2, 0.8)
    cuts = [sorted(draw.sample(range(batch.length), 2)) for _ in range(batch.rows)]
    batch.versions = [[3 + sum(t >= cut for cut in cuts[row]) for t in range(batch.length)]
                      for row in range(batch.rows)]
    return planted(batch, batch.score(NOISY, change=lambda row, t: width if batch.versions[row][t] < 5 else 0),
                   "stale_weights", "only tokens of version 4 and older differ")


@kind
def other_weights_everywhere(draw):
    batch, width = Batch(draw), draw.uniform(0.3, 1)
    return planted(batch, batch.score(NOISY, change=lambda row, t: width), None, "stale or partly updated weights")


@kind
def one_replica_not_updated(draw):
    batch, width, n = Batch(draw, rows=32, length=40), draw.uniform(0.3, 1), 4
    part = draw.randrange(n)
    return planted(batch, batch.score(NOISY, change=lambda row, t: width if row // 8 == part else 0), "replica",
                   rf"block {part} of {n}")


@kind
def target_logit_of_one_shard_lost(draw):
    batch, n = Batch(draw), draw.choice([2, 3, 4, 6, 8])
    part, size = draw.randrange(n), 48 // n
    b = batch.score(NOISY, target=lambda row, t, z: -z[batch.ids[row][t]] if batch.ids[row][t] // size == part else 0)
    return planted(batch, b, "vocabulary_shard", rf"shard {part} of {n} of", metadata_a={"vocab_size": "48"})


@kind
def one_shard_with_an_offset(draw):
    batch, n, offset = Batch(draw), draw.choice([2, 4]), draw.choice([-1, 1]) * draw.uniform(0.4, 2)
    part, size = draw.randrange(n), 48 // n
    b = batch.score(NOISY, target=lambda row, t, z: offset if batch.ids[row][t] // size == part else 0)
    return planted(batch, b, "vocabulary_shard", rf"shard {part} of {n} of", metadata_b={"vocab_size": "48"})


@kind
def logsumexp_without_one_shard(draw):
    batch, n = Batch(draw), draw.choice([2, 4])
    part, size = draw.randrange(n), 48 // n
    kept = [v for v in range(48) if v // size != part]
    return planted(batch, batch.score(NOISY, keep=lambda z: kept), "lost_shard", rf"shard {part} of {n} of",
                   metadata_a={"vocab_size": "48"})


@kind
def offset_of_log_n(draw):
    batch, n = Batch(draw), draw.choice([2, 4, 8])
    b = [[value - math.log(n) if value else 0.0 for value in row] for row in batch.score(NOISY)]
    return planted(batch, b, "offset", lambda text: abs(float(text.split()[4]) - math.log(n)) < 0.02)


@kind
def small_offset(draw):
    batch, offset = Batch(draw), draw.uniform(0.05, 0.3)
    b = [[value + offset if value else 0.0 for value in row] for row in batch.score(NOISY)]
    return planted(batch, b, "offset", lambda text: abs(float(text.split()[4]) - offset) < 0.02)


@kind
def prompt_scored_in_one_file(draw):
    batch = Batch(draw)
    b = batch.score(NOISY)
    for row in b:
        prompt = draw.randint(3, 20)
        row[:prompt] = [0.0] * prompt
    return planted(batch, b, "unscored", "0 in B and clearly not in A; they are the first")


@kind
def mask_of_one_file(draw):
    batch, share = Batch(draw), draw.uniform(0.03, 0.3)
    a = [[0.0 if draw.random() < share else value for value in row] for row in batch.score(NOISY)]
    return planted(batch, batch.score(NOISY), "unscored", "0 in A and clearly not in B", a=a)


@kind
def other_sign(draw):
    batch = Batch(draw, padded=True)
    return planted(batch, [[-value for value in row] for row in batch.score(NOISY)], "sign", "B is -A")


@kind
def other_base(draw):
    batch, base = Batch(draw), draw.choice([2, 10])
    other = [[value / math.log(base) for value in row] for row in batch.score(NOISY)]
    text = rf"{'B' if base == 2 else 'A'} has the logarithm to base {base}"
    if base == 2:
        return planted(batch, other, "log_base", text)
    return planted(batch, batch.score(NOISY), "log_base", text, a=other)


@kind
def values_not_finite(draw):
    batch, bad = Batch(draw), draw.choice([math.nan, -math.inf])
    b = batch.score(NOISY)
    row, t = draw.randrange(batch.rows), draw.randrange(1, batch.length)
    b[row][t] = bad
    what = "1 NaN and 0 infinite" if math.isnan(bad) else "0 NaN and 1 infinite"
    return planted(batch, b, "non_finite", rf"B has {what} values, in 1 of 16 rows; the first at row {row}, position {t}$")


@kind
def zigzag_not_undone(draw):
    batch, cp = Batch(draw), draw.choice([2, 4])
    size = batch.length // (2 * cp)
    order = [chunk for r in range(cp) for chunk in (r, 2 * cp - 1 - r)]
    b = [[row[chunk * size + t] for chunk in order for t in range(size)] for row in batch.score(NOISY)]
    return planted(batch, b, "chunk_order", rf"the {2 * cp} chunks of each row of B are in zigzag order")


def planted_cases(seed):
    """30: each kind once, then kinds that the seed draws."""
    draw = random.Random(seed)
    kinds = list(KINDS)
    kinds += draw.choices(kinds, k=max(0, 30 - len(kinds)))
    return [(name, KINDS[name](random.Random(f"{seed} {i}"))) for i, name in enumerate(kinds[:30])]


def named_right(case, finding):
    """Whether the finding names the planted cause with its numbers."""
    if case.cause is None:
        return not finding["causes"] and case.text in finding.get("possible", "")
    if case.cause == "non_finite":
        return re.search(case.text, finding.get("non_finite", "")) is not None
    if not finding["causes"] or finding["causes"][0]["cause"] != case.cause:
        return False
    text = finding["causes"][0]["text"]
    return case.text(text) if callable(case.text) else re.search(case.text, text) is not None


class LogprobsTest(cli_test.CommandTest):
    def folders(self):
        for name in ("a", "b"):
            os.makedirs(os.path.join(self.scratch, name), exist_ok=True)

    def findings(self, status):
        done = self.run_to_end("logprobs", "a", "b", "--json", "found.json", status=status)
        return done.stdout, json.loads(self.read("found.json"))

    def write(self, folder, name, tensors, metadata=()):
        write_file(os.path.join(self.scratch, folder, name + ".safetensors"), tensors, metadata)

    def test_planted_causes_are_named(self):
        self.folders()
        cases = planted_cases(SEED)
        self.assertEqual(len(cases), 30)
        for i, (_, case) in enumerate(cases):
            # Half of the files hold the values as they were computed, half in bfloat16.
            stored = "bfloat16" if i % 2 else "float32"
            dtype = {} if i % 2 else {"dtype": "bfloat16"}
            self.write("a", f"{i:03d}", case.batch.tensors(case.a, stored), {**case.metadata_a, **dtype})
            self.write("b", f"{i:03d}", case.batch.tensors(case.b, stored, ()), {**case.metadata_b, **dtype})
        _, findings = self.findings(1)
        wrong = [f"{name}: {json.dumps(finding, indent=1)}" for (name, case), finding in zip(cases, findings)
                 if not named_right(case, finding)]
        print(f"seed {SEED}: {30 - len(wrong)} of 30 planted causes named right")
        self.assertLessEqual(len(wrong), 3, "\n".join(wrong))

    def pair(self, *words, a=None, b=None, metadata_a=(), metadata_b=()):
        write_file(os.path.join(self.scratch, "a.st"), a, metadata_a)
        write_file(os.path.join(self.scratch, "b.st"), b or a, metadata_b)
        return self.run_program("logprobs", "a.st", "b.st", *words)

    def compare(self, batch, a, b, *words, dtype="float32", **metadata):
        """Two files of a batch's logprobs."""
        return self.pair(*words, a=batch.tensors(a, dtype), b=batch.tensors(b, dtype), **metadata)

    def expect(self, done, status, *texts, absent=()):
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.says(done, *texts, absent=absent)
        self.assertEqual(done.stderr.count("\n"), 1 if status == 2 else 0, done.stderr)

    def test_a_pair_that_cannot_be_compared_leaves_the_others(self):
        self.folders()
        values = {"logprobs": ("float32", [[0.0, -1.0, -2.0]])}
        longer = {"logprobs": ("float32", [[0.0, -1.0, -2.0, -3.0]])}
        for name, a, b in (("first", values, longer), ("second", values, values)):
            self.write("a", name, a)
            self.write("b", name, b)
        text, findings = self.findings(2)
        self.assertIn("NOT COMPARED logprobs is [1, 3] in a/first.safetensors and [1, 4] in b/first.safetensors", text)
        self.assertIn("EQUAL     a/second", text)
        self.assertEqual([one["verdict"] for one in findings], ["not_compared", "equal"])

    def test_other_weights_are_no_named_cause(self):
        self.folders()
        for i in range(20):
            draw = random.Random(f"{SEED} weights {i}")
            batch = Batch(draw, rows=draw.choice([4, 8]), length=40, packed=i % 4 == 1, padded=i % 4 == 2)
            batch.versions = [[draw.choice([1, 2])] * batch.length for _ in range(batch.rows)] if i % 3 == 0 else None
            width = draw.uniform(0.4, 1.5)
            wrong = {row for row in range(batch.rows) if i % 5 or draw.random() < 0.5} or {0}
            values = [batch.score("bfloat16"),
                      batch.score("bfloat16", change=lambda row, t: width if row in wrong else 0)]
            for folder, one in zip("ab", values if i % 2 else values[::-1]):
                self.write(folder, f"{i:03d}", batch.tensors(one, "float32"), {"dtype": "bfloat16"})
        text, findings = self.findings(1)
        self.assertEqual([(found["verdict"], found["causes"]) for found in findings], [("different", [])] * 20, text)

    def test_the_text_has_the_sizes_and_the_place(self):
        batch = Batch(random.Random(f"{SEED} text"), rows=4, length=32)
        a = batch.tensors(batch.score("float64"), "float64")
        done = self.pair(a=a)
        self.expect(done, 0, "EQUAL", "124 tokens compared, all are equal to the bit")
        b = [list(row) for row in a["logprobs"][1]]
        b[2][7] -= 3.0
        done = self.pair(a=a, b={"logprobs": ("float64", b)})
        self.expect(done, 1, "DIFFERENT", "median 0, largest 3 at row 2, position 7, token",
                    "no known cause", "1 of 124 tokens differ", "in row 2 only", "few tokens differ", absent=["likely"])

    def test_a_whole_row_is_not_called_a_few_tokens(self):
        batch = Batch(random.Random(f"{SEED} row"), rows=16, length=32)
        a, b = (batch.score("float32", change=lambda row, t, width=width: width if row == 5 else 0) for width in (0, 0.8))
        done = self.pair(a=batch.tensors(a, "float32"), b=batch.tensors(b, "float32"))
        self.expect(done, 1, "DIFFERENT", "row 5 differs throughout, and no other does", absent=["few tokens differ"])

    def test_few_facts_are_no_cause(self):
        # One padded row of 4 that differs: chance would do that in one of 4 files.
        batch = Batch(random.Random(f"{SEED} few"), rows=4, length=48)
        batch.lengths[2] = 40
        a, b = (batch.score("bfloat16", change=change)
                for change in (None, lambda row, t: 0.6 if row == 2 else 0))
        done = self.pair(a=batch.tensors(a, "bfloat16"), b={"logprobs": ("bfloat16", b)})
        self.expect(done, 1, "no known cause", "in row 2 only")

    def test_a_wide_file_of_a_narrow_computation(self):
        batch = Batch(random.Random(f"{SEED} wide"), rows=8, length=48)
        a, b = (batch.tensors(batch.score("bfloat16"), "float32") for _ in range(2))
        self.expect(self.pair(a=a, b=b), 1, "no known cause", "noise of float32", "name it in the metadata dtype")
        self.expect(self.pair(a=a, b=b, metadata_b={"dtype": "bfloat16"}), 0, "NOISE", "noise of bfloat16")

    def test_two_temperatures_alone_are_no_cause(self):
        batch = Batch(random.Random(f"{SEED} same"), rows=8, length=48)
        a, b = (batch.tensors(batch.score("bfloat16"), "bfloat16") for _ in range(2))
        self.expect(self.pair(a=a, b=b, metadata_a={"temperature": "1"}, metadata_b={"temperature": "0.5"}), 0,
                    "NOISE")

    def test_few_wrong_tokens_are_no_cause(self):
        """Tokens at random places, all moved to one side, while the others are equal to the bit or noise."""
        self.folders()
        moves = {f"{c:+}": (0.02, lambda v, draw, c=c: v + c) for c in (0.3, -0.3, 1.0, -1.0)}
        moves["up"] = (0.02, lambda v, draw: v + abs(draw.gauss(0, 1)))
        moves["half"] = (0.1, lambda v, draw: v / 2)
        moves["a third, up"] = (0.33, lambda v, draw: v + abs(draw.gauss(0, 1)))
        for name, (share, move) in moves.items():
            for noisy in (False, True):
                draw = random.Random(f"{SEED} few {name}")
                batch = Batch(draw, rows=8)
                a = batch.score(NOISY)
                b = [[move(value, draw) if value and draw.random() < share else value for value in row]
                     for row in (batch.score(NOISY) if noisy else a)]
                for folder, values in zip("ab", (a, b)):
                    self.write(folder, f"{name} {noisy}", batch.tensors(values, "float32"),
                               {"dtype": NOISY} if noisy else {})
        text, findings = self.findings(1)
        self.assertEqual([found["causes"] for found in findings], [[]] * 14, text)
        exact = [found["verdict"] for found in findings if "False" in found["files"]]  # a move of 0.3 may be noise
        self.assertEqual(exact, ["different"] * 7, text)

    def test_half_of_16_rows(self):
        for wrong, text in ((range(8, 16), "only rows 8 to 15 differ, block 1 of 2"),
                            (range(1, 16, 2), "only rows 1, 3, ... differ, every 2nd"),
                            (range(0, 16, 2), "only rows 0, 2, ... differ, every 2nd")):
            batch = Batch(random.Random(f"{SEED} half"), length=24)
            other = batch.score("float64", change=lambda row, t, wrong=wrong: 0.5 if row in wrong else 0)
            a = batch.score("float64")
            b = [other[row] if row in wrong else a[row] for row in range(16)]
            self.expect(self.compare(batch, a, b), 1, "the cause is known: replica", text)
        rows = {0, 1, 4, 6, 7, 10, 13, 15}
        other = batch.score("float64", change=lambda row, t: 0.5)
        b = [other[row] if row in rows else a[row] for row in range(16)]
        self.expect(self.compare(batch, a, b), 1, "no known cause",
                    "stale or partly updated weights",
                    absent=["few tokens"])

    def test_a_top_p_that_every_token_reaches(self):
        """Where logits are flat, top-p adds about -log(top_p) to each logprob."""
        for flat in (False, True):
            batch = Batch(random.Random(f"{SEED} flat"), rows=8, length=40)
            a = batch.score("float64")
            if flat:
                a = [[value and min(value, -1.5) for value in row] for row in a]
            b = [[value and value - math.log(0.8) for value in row] for row in a]
            if flat:
                self.expect(self.compare(batch, a, b, metadata_b={"top_p": "0.8"}), 1, "the cause is known: renormalized",
                            "B renormalizes after top-p", "the top_p of 0.8")
            for top_p in ("0.8", "0.5", "0.95") if flat else ("0.5", "0.95"):
                name = {"metadata_a" if top_p == "0.8" else "metadata_b": {"top_p": top_p}}
                self.expect(self.compare(batch, a, b, **name), 1, "the cause is known: offset")

    def test_improbable_tokens_are_not_a_lost_shard(self):
        """Top-k raises a token of small probability by more than its own probability. Only such tokens have ids 12 to 14."""
        draw = random.Random(f"{SEED} improbable")
        batch = Batch(draw, rows=8, length=40)
        a, b = [], []
        for row in range(batch.rows):
            for t in range(batch.length):
                batch.ids[row][t] = draw.choice([v for v in range(48) if v // 3 != 4])
            for t in draw.sample(range(1, batch.length), 4):
                batch.ids[row][t] = draw.choice([12, 13, 14])
            p = [draw.uniform(0.01, 0.05) if v // 3 == 4 or draw.random() < 0.1 else draw.uniform(0.5, 0.7)
                 for v in batch.ids[row]]
            a.append([math.log(one) for one in p])
            b.append([value - math.log(draw.uniform(max(0.6, math.exp(value) + 0.02), 0.95)) for value in a[-1]])
        done = self.compare(batch, a, b, metadata_b={"vocab_size": "48", "top_k": "12"})
        self.expect(done, 1, "the cause is known: renormalized", absent=["shard"])

    def changed(self, batch, is_wrong, width=0.5):
        """A pair that is equal to the bit, but where is_wrong(row, t)."""
        a, other = batch.score("float64"), batch.score("float64", change=lambda row, t: width)
        b = [[other[row][t] if is_wrong(row, t) else a[row][t] for t in range(batch.length)] for row in range(batch.rows)]
        return self.compare(batch, a, b, "--json", "found.json", "--force", dtype="float64")

    def found(self):
        return json.loads(self.read("found.json"))[0]

    def test_late_positions_of_some_rows(self):
        batch = Batch(random.Random(f"{SEED} late"), rows=24, length=100)
        done = self.changed(batch, lambda row, t: row % 2 == 0 and t >= 82)
        self.expect(done, 1, "the cause is known: late_positions",
                    "only positions from 82 on differ, in 12 of 24 rows: 0, 2, 4, 6, 8, 10, 12, 14, ...",
                    "inside 216 of 216 tokens are wrong and outside 2160 of 2160 are right",
                    "the first wrong token is at row 0, position 82, token",
                    "these rows alone", absent=["every row"])
        found = self.found()
        self.assertEqual((found["first_wrong"]["row"], found["first_wrong"]["position"]), (0, 82))
        self.assertEqual(found["causes"][0]["inside"], {"wrong": 216, "tokens": 216})
        self.assertEqual(found["causes"][0]["outside"], {"right": 2160, "tokens": 2160})
        self.expect(self.changed(batch, lambda row, t: t >= 82), 1, "from 82 on differ, in every row: inside 432 of 432")
        done = self.changed(batch, lambda row, t: row % 5 == 0 and t >= 90 - row)
        self.expect(done, 1, "no known cause", "the first wrong token is at row 0, position 90",
                    "the lowest wrong position of any row is 70")

    def test_a_place_that_holds_nearly_all_tokens_is_no_cause(self):
        """Rows of 10 to 21 tokens, of which 3 of each 7 are right: only these have more than 17 tokens. No number of
        replicas has equal shares of 107 rows."""
        batch = Batch(random.Random(f"{SEED} nearly"), rows=107, length=22, padded=True)
        right = (1, 2, 4)
        for row in range(batch.rows):
            batch.lengths[row] = 12 + row % 10 if row % 7 in right else 12 + row % 5
            batch.logits[row] = (batch.logits[row] * 2)[:batch.lengths[row]]
            batch.segments[row] = [0] * batch.lengths[row] + [-1] * (22 - batch.lengths[row])
        done = self.changed(batch, lambda row, t: row % 7 not in right)
        self.expect(done, 1, "no known cause")
        self.assertEqual(self.found()["causes"], [], done.stdout)

    def test_scores_of_attention(self):
        for packed, unit in ((0, "row"), (2, "segment")):
            batch = Batch(random.Random(f"{SEED} scores"), length=48, packed=packed)
            done = self.changed(batch, lambda row, t, batch=batch: t >= 2 and not batch.begins(row, t - 1))
            self.expect(done, 1, "the cause is known: attention_scores",
                        f"the token at position 1 of each {unit} is right, and all later ones differ",
                        "attention over one key is always 1", f"outside {16 * (packed + 1)} of {16 * (packed + 1)}",
                        absent=["limit of the context"])

    def test_differences_that_grow_are_no_place(self):
        draw = random.Random(f"{SEED} grow")
        for power, rows in ((1, 32), (2, 24), (3, 16)):
            batch = Batch(draw, rows=rows, length=64)
            a = batch.score("float64")
            b = [[value and value + draw.gauss(0, 0.3) * (t / 64) ** power for t, value in enumerate(row)] for row in a]
            self.expect(self.compare(batch, a, b, dtype="float64"), 1, "no known cause")

    def test_later_segments_of_a_pack(self):
        draw = random.Random(f"{SEED} pack")
        for same_cuts in (False, True):
            batch = Batch(draw, length=96, packed=6)
            if same_cuts:
                batch.segments = [[min(t // 14, 6) for t in range(96)] for _ in range(16)]
            done = self.changed(batch, lambda row, t, batch=batch: batch.segments[row][t] >= 3)
            self.expect(done, 1, "the cause is known: pack_boundary",
                        "segments 0 to 2 of each row are right, and all from segment 3 on differ: inside")
        for first in (1, 3):
            batch = Batch(draw, rows=1, length=96)
            batch.segments = [[min(t // 14, 6) for t in range(96)]]
            done = self.changed(batch, lambda row, t, batch=batch, first=first: batch.segments[row][t] >= first)
            self.expect(done, 1, "no known cause", f"those are in segments {', '.join(map(str, range(first, 7)))} of row 0",
                        "add versions, lengths, or compare")

    def test_advice_names_what_is_missing(self):
        batch = Batch(random.Random(f"{SEED} advice"), rows=8, length=40, packed=1, padded=True)
        batch.versions = [[1] * 40 for _ in range(8)]
        a, b = batch.score("float64"), batch.score("float64", change=lambda row, t: 0.5)
        self.expect(self.compare(batch, a, b, dtype="float64"), 1,
                    "apart; compare the logits of one row")

    def test_temperatures_of_the_metadata_win_over_a_factor(self):
        batch = Batch(random.Random(f"{SEED} low"))
        for a_of, b_of in ((0.005, 0.01), (0.02, 0.002)):
            a = batch.score("float64", temperature=a_of)
            exact = [[value * a_of / b_of for value in row] for row in a]
            for b in (exact, batch.score("float64", temperature=b_of)):
                done = self.compare(batch, a, b, dtype="float64", metadata_a={"temperature": str(a_of)},
                                    metadata_b={"temperature": str(b_of)})
                self.expect(done, 1, "the cause is known: temperature", f"the metadata say {a_of} in A and {b_of} in B",
                            "score both files at the same temperature",
                            absent=["after log_softmax"])
        for of_both in ({}, {"temperature": "0.3"}):
            done = self.compare(batch, a, exact, dtype="float64", metadata_a=of_both, metadata_b=of_both)
            self.expect(done, 1, "the cause is known: factor", "after log_softmax")

    def test_a_mean_by_lengths_where_a_mask_counts_fewer(self):
        draw = random.Random(f"{SEED} lengths")
        lengths = [14, 22, 31, 40]
        mask = [[int(5 <= t < length) for t in range(40)] for length in lengths]
        a = [[-draw.random() * 5 for _ in range(40)] for _ in lengths]
        b = [[value / length for value in row] for row, length in zip(a, lengths)]
        more = {"lengths": ("int64", lengths), "mask": ("int64", mask)}
        self.expect(self.pair(a={"logprobs": ("float64", a), **more}, b={"logprobs": ("float64", b), **more}), 1,
                    "the cause is known: mean_of_row", "B is A divided by the number of the row's tokens (lengths)")

    def test_a_temperature_of_both_blames_no_file(self):
        batch = Batch(random.Random(f"{SEED} twice"))
        a, b = (batch.tensors(batch.score("float32", temperature=t), "float32") for t in (0.8, 0.64))
        self.expect(self.pair(a=a, b=b, metadata_a={"temperature": "0.8"}, metadata_b={"temperature": "0.8"}), 1,
                    "the cause is known: temperature", "A was computed from logits that were not divided by it, or B from "
                    "logits divided twice", "divide the logits of each file by the temperature once before log_softmax")

    def test_files_without_logprobs(self):
        values = [[0.0] + [-1.0 - t / 8 for t in range(15)] for _ in range(4)]
        zeros = [[0.0] * 16 for _ in range(4)]
        minus = [[-math.inf] * 16 for _ in range(4)]

        def files(a, b):
            return self.pair(a={"logprobs": ("float32", a)}, b={"logprobs": ("float32", b)})

        self.expect(files(zeros, zeros), 2, "have no scored token to compare: all 64 logprobs that count are 0")
        self.expect(files(minus, minus), 2, "no scored token to compare")
        for a, b, name in ((values, zeros, "B"), (zeros, values, "A")):
            self.expect(files(a, b), 1, "the cause is known: unscored", f"{name} is 0 everywhere: unscored",
                        absent=["temperature"])
        for a, b, name in ((values, [[5.0] * 16] * 4, "B"), ([[0.0] + [-1.0] * 15] * 4, [[0.0] + [5.0] * 15] * 4, "B"),
                           ([[v and 0.8 * -v for v in row] for row in values], values, "A")):
            self.expect(files(a, b), 1, "one file holds no logprobs", f"{name} has positive logprobs: 6",
                        "above 0, the first at row 0", absent=["temperature", "cause"])
        self.expect(files(values, [[-v for v in row] for row in values]), 1, "the cause is known: sign", "B is -A")

    def test_json_replaces_no_other_file(self):
        batch = Batch(random.Random(f"{SEED} json"), rows=2, length=16)
        a = batch.tensors(batch.score("float64"), "float64")
        self.pair(a=a)
        before = {name: pathlib.Path(self.scratch, name).read_bytes() for name in ("a.st", "b.st")}
        os.link(os.path.join(self.scratch, "a.st"), os.path.join(self.scratch, "hard"))
        os.symlink("b.st", os.path.join(self.scratch, "soft"))
        for name in ("a.st", "b.st", "./a.st", "hard", "soft"):
            for force in ((), ("--force",)):
                self.expect(self.run_program("logprobs", "a.st", "b.st", "--json", name, *force), 2,
                            f"--json {name}: the same command reads this file")
        for name, raw in before.items():
            self.assertEqual(pathlib.Path(self.scratch, name).read_bytes(), raw)
        notes = pathlib.Path(self.scratch, "notes.txt")
        for text in ("my notes", "", "{}", "[]", "[1]"):
            notes.write_text(text, encoding="utf-8")
            self.expect(self.run_program("logprobs", "a.st", "b.st", "--json", "notes.txt"), 2, "is not findings",
                        "--force")
            self.assertEqual(notes.read_text(encoding="utf-8"), text)
        self.expect(self.run_program("logprobs", "a.st", "b.st", "--json", "notes.txt", "--force"), 0, "EQUAL")
        self.expect(self.run_program("logprobs", "a.st", "b.st", "--json", "notes.txt"), 0, "EQUAL")  # its own kind
        self.folders()
        for folder in "ab":
            write_file(os.path.join(self.scratch, folder, "x.safetensors"), a)
        self.expect(self.run_program("logprobs", "a", "b", "--json", "b/x.safetensors", "--force"), 2,
                    "the same command reads this file")

    def test_json_goes_to_standard_output_alone(self):
        batch = Batch(random.Random(f"{SEED} dash"), rows=2, length=16)
        values = batch.score("float64")
        tensors = batch.tensors(values, "float64")
        text = self.pair(a=tensors, b=batch.tensors([[-value for value in row] for row in values], "float64")).stdout
        done = self.run_program("logprobs", "a.st", "b.st", "--json", "-")
        self.assertEqual((1, text), (done.returncode, done.stderr))
        self.assertEqual(json.loads(done.stdout)[0]["causes"][0]["cause"], "sign")
        self.assertFalse(os.path.exists(os.path.join(self.scratch, "-")))

    def test_a_file_is_not_compared_with_itself(self):
        self.pair(a=Batch(random.Random(f"{SEED} same"), rows=2, length=16).tensors([[0.0] + [-1.0] * 15] * 2, "float64"))
        os.symlink("a.st", os.path.join(self.scratch, "soft"))
        for other in ("a.st", "./a.st", "soft"):
            self.expect(self.run_program("logprobs", "a.st", other), 2, f"a.st and {other} are the same, and")
        self.expect(self.run_program("logprobs", "a.st", "b.st"), 0, "EQUAL")

    def test_bad_input(self):
        values = [[0.0, -1.0, -2.0], [0.0, -0.5, -0.25]]
        good = {"logprobs": ("float32", values)}

        def bad(*texts, metadata_a=(), **tensors):
            self.expect(self.pair(a=good, b={**good, **tensors}, metadata_a=metadata_a), 2, *texts)

        bad("[2, 3]", "[1, 3]", logprobs=("float32", values[:1]))
        bad("logprobs is int64", logprobs=("int64", [[0, 1, 2], [3, 4, 5]]))
        bad("logprobs has the shape [3]", logprobs=("float32", values[0]))
        bad("input_ids", "[3]", "[2, 3]", input_ids=("int64", [1, 2, 3]))
        bad("mask is float32", mask=("float32", values))
        bad("lengths is 4 in row 1", lengths=("int64", [3, 4]))
        bad("none of the 6 tokens", lengths=("int64", [0, 0]))
        bad("is -7, and ids are from 0", input_ids=("int64", [[1, 2, 3], [4, -7, 6]]))
        bad("position 2 is 9", input_ids=("int64", [[1, 2, 9], [4, 5, 6]]), metadata_a={"vocab_size": "8"})
        bad("temperature is 'hot'", metadata_a={"temperature": "hot"})
        bad("top_p is '1.5'", metadata_a={"top_p": "1.5"})
        bad("dtype is 'fp8'", metadata_a={"dtype": "fp8"})
        ids = [[1, 2, 3], [4, 5, 6]]
        self.expect(self.pair(a={**good, "input_ids": ("int64", ids)},
                              b={**good, "input_ids": ("int64", [[1, 2, 3], [4, 5, 7]])}), 2,
                    "at row 1, position 2", "compare files of the same batch")
        self.expect(self.pair(a=good, metadata_a={"vocab_size": "8"}, metadata_b={"vocab_size": "9"}), 2,
                    "vocab_size")
        self.expect(self.pair(a={"logits": ("float32", values)}), 2, "logprobs")
        self.expect(self.run_program("logprobs", "a.st", "none.st"), 2, "none.st does not exist")
        self.folders()
        self.expect(self.run_program("logprobs", "a", "b"), 2, "0 safetensors files")

    def test_noise_alone_is_no_cause(self):
        self.folders()
        for i in range(100):
            draw = random.Random(f"{SEED} noise {i}")
            dtype = ("float32", "bfloat16", "float16")[i % 3]
            batch = Batch(draw, rows=8, length=32, packed=i % 4 == 1, padded=i % 4 == 2)
            if i % 5 == 0:
                batch.versions = [[draw.choice([1, 2])] * batch.length for _ in range(batch.rows)]
            stored = dtype if i % 2 else "float32"
            metadata = {"dtype": dtype, "vocab_size": "48", "temperature": "0.8", "top_p": "0.9"}
            for folder in ("a", "b"):
                self.write(folder, f"{i:03d}", batch.tensors(batch.score(dtype), stored), metadata)
        text, findings = self.findings(0)
        self.assertEqual([finding["causes"] for finding in findings], [[]] * 100, text)
        print(f"seed {SEED}: 100 of 100 pairs are noise")


if __name__ == "__main__":
    cli_test.main()
