#!/usr/bin/env python3
"""`logprobs A B` on many drawn pairs: causes of all kinds, which must be named, and random differences, which must not.

Usage: logprobs_drawn_test.py PROGRAM [--pairs N] [--noise N] [--seed N]
"""
import argparse
import collections
import json
import math
import os
import random
import subprocess
import sys
import tempfile

import logprobs_test
from logprobs_test import Batch, named_right, planted, write_file
from routes_test import write_routes

LIMIT_S = 1500
LEAST_RIGHT = 0.97


def changed(batch, width, is_wrong):
    """Both files' logprobs: half of the batches are equal to the bit outside of what is_wrong(row, t) names, and in
    the others both files round to bfloat16."""
    def change(row, t):
        return width if is_wrong(row, t) else 0
    batch.noisy = False
    if batch.draw.random() < 0.5:
        batch.noisy = True
        return batch.score("bfloat16"), batch.score("bfloat16", change=change)
    a, other = batch.score("float64"), batch.score("float64", change=change)
    return a, [[other[row][t] if is_wrong(row, t) else a[row][t] for t in range(batch.length)]
               for row in range(batch.rows)]


def place(batch, is_wrong, cause, text):
    a, b = changed(batch, batch.draw.uniform(0.3, 1), is_wrong)
    return planted(batch, b, cause, text, a=a)


def late_positions(draw):
    batch = Batch(draw, rows=draw.choice([8, 16, 24]), length=draw.choice([32, 64, 96]))
    begin = draw.randint(batch.length // 4, 3 * batch.length // 4) | 1  # no chunk begins there
    return place(batch, lambda row, t: t >= begin, "late_positions", "in every row")


def late_positions_of_some_rows(draw):
    batch = Batch(draw, rows=24, length=80)
    begin, rows = draw.randint(20, 60), set(draw.choice([range(0, 24, 2), draw.sample(range(24), 12)]))
    return place(batch, lambda row, t: row in rows and t >= begin, "late_positions", "in 12 of 24 rows")


def attention_scores(draw):
    batch = Batch(draw, rows=draw.choice([12, 24]), length=draw.choice([32, 64]), padded=draw.random() < 0.5)
    return place(batch, lambda row, t: t >= 2, "attention_scores", "of each row is right")


def attention_scores_of_segments(draw):
    batch = Batch(draw, length=draw.choice([48, 64]), packed=draw.randint(1, 3))
    return place(batch, lambda row, t: t >= 2 and not batch.begins(row, t) and not batch.begins(row, t - 1),
                 "attention_scores", "of each segment is right")


def later_segments(draw):
    batch = Batch(draw, length=96, packed=draw.randint(3, 6))
    first = draw.randint(2, 3)
    return place(batch, lambda row, t: batch.segments[row][t] >= first, "pack_boundary",
                 rf"segments 0 to {first - 1} of each row are right")


def context_shard(draw):
    batch, parts = Batch(draw, length=64), draw.choice([2, 4, 8])
    part = draw.randrange(parts - 1)  # the last one is that of late positions
    return place(batch, lambda row, t: t * parts // 64 == part, "context_shard", rf"chunk {part} of {parts}")


def context_shard_in_zigzag_order(draw):
    """Of each row, or of each packed sequence, padded to equal chunks."""
    packed, ranks = draw.random() < 0.5, draw.choice([2, 3, 4])
    batch, rank = Batch(draw, rows=24, length=96, packed=1 if packed else 0), draw.randrange(ranks)

    def held(row, t):
        at, length = t, batch.length
        if packed:
            own = batch.segments[row]
            at, length = t - own.index(own[t]), own.count(own[t])
        chunk = at // -(-length // (2 * ranks))
        return min(chunk, 2 * ranks - 1 - chunk) == rank

    return place(batch, held, "context_shard",
                 rf"chunks {rank} and {2 * ranks - 1 - rank} of {2 * ranks} of each {'segment' if packed else 'row'}")


def penalty_of_one_token(draw):
    batch, penalty = Batch(draw), draw.choice([-1, 1]) * draw.uniform(1, 4)
    counts = collections.Counter(token for row in batch.ids for token in row)
    token = draw.choice([token for token, count in counts.items() if count > 8])
    b = batch.score("bfloat16", target=lambda row, t, z: penalty if batch.ids[row][t] == token else 0)
    return planted(batch, b, "token_id", f"only token id {token} differs")


def low_temperatures(draw):
    batch, low = Batch(draw), draw.choice([0.002, 0.005, 0.01])
    a_of, b_of = draw.choice([(low, 2 * low), (2 * low, low), (low, 10 * low)])
    return planted(batch, batch.score("float32", temperature=b_of), "temperature",
                   f"the metadata say {a_of:g} in A and {b_of:g} in B", a=batch.score("float32", temperature=a_of),
                   metadata_a={"temperature": str(a_of)}, metadata_b={"temperature": str(b_of)})


def some_rows_of_different_lengths(draw):
    """Other weights for 4 of each 7 rows of few tokens: no place says where."""
    batch = Batch(draw, rows=draw.choice([23, 53, 97]), length=22, padded=True)  # no equal shares
    batch.lengths = [draw.randint(10, 21) for _ in range(batch.rows)]
    batch = clipped(batch)
    return place(batch, lambda row, t: row % 7 not in (1, 2, 4), None, "stale or partly updated weights")


def clipped(batch):
    """The batch with its rows cut to batch.lengths."""
    for row, length in enumerate(batch.lengths):
        batch.logits[row] += [[0.0] * batch.vocab for _ in range(length - len(batch.logits[row]))]
        batch.segments[row] = [0] * length + [-1] * (batch.length - length)
    return batch


def mean_of_each_row(draw):
    batch = Batch(draw, rows=16, length=draw.choice([24, 48]), padded=draw.random() < 0.7)
    more = draw.choice([0, 1])
    b = [[value / (sum(one != 0 for one in row) + more) for value in row] for row in batch.score("bfloat16")]
    a = batch.score("bfloat16")
    text = r"[AB] is [AB] divided by the number of the row's scored tokens" + (r" plus 1" if more else "$")
    return planted(batch, a, "mean_of_row", text, a=b) if draw.random() < 0.3 else planted(batch, b, "mean_of_row", text, a=a)


def sum_of_the_sequence_so_far(draw):
    batch = Batch(draw, rows=16, length=48, packed=draw.choice([0, 2]))
    b = []
    for row, values in enumerate(batch.score("bfloat16")):
        total, sums = 0.0, []
        for t, value in enumerate(values):
            total = 0.0 if batch.begins(row, t) else total + value
            sums.append(total)
        b.append(sums)
    return planted(batch, b, "cumulative", "B at each token is the sum of A up to it")


def probabilities(draw):
    batch = Batch(draw)
    b = [[value and math.exp(value) for value in row] for row in batch.score("bfloat16")]
    return planted(batch, b, "probability", r"B is exp\(A\)")


def first_token_after_an_unscored_prompt(draw):
    """The first of each answer comes from another state; the prompts, of other lengths, are scored in neither file."""
    batch, count = Batch(draw, rows=24, length=64), draw.choice([1, 2, 3])
    a, b = batch.score("bfloat16"), batch.score("bfloat16")
    for row in range(batch.rows):
        begin = draw.randint(4, 30)
        a[row][:begin] = b[row][:begin] = [0.0] * begin
        b[row][begin:begin + count] = [-draw.uniform(3, 20) for _ in range(count)]
    return planted(batch, b, "first_tokens", "only the first scored token of each row differs" if count == 1 else
                   f"only the first {count} scored tokens of each row differ", a=a)


KINDS = [mean_of_each_row, sum_of_the_sequence_so_far, probabilities, first_token_after_an_unscored_prompt, late_positions,
         late_positions_of_some_rows, attention_scores, attention_scores_of_segments, later_segments, context_shard,
         context_shard_in_zigzag_order,
         penalty_of_one_token, low_temperatures, some_rows_of_different_lengths]


def scale_of(shape, draw, rows, length):
    """A factor for the size of each token's difference: by row, by position, by id or by its own logprob."""
    if shape == "rows":
        of_row = [math.exp(draw.gauss(0, 1.5)) for _ in range(rows)]
        return lambda row, t, token, a: of_row[row]
    if shape == "two kinds of rows":
        of_row = [draw.choice([1, 100]) for _ in range(rows)]
        return lambda row, t, token, a: of_row[row]
    if shape == "growing":
        power = draw.uniform(0.3, 3)
        return lambda row, t, token, a: (t / length) ** power
    if shape == "walk":
        drift = [draw.uniform(0, 2) for _ in range(rows)]
        return lambda row, t, token, a: 1 + drift[row] * t
    if shape == "ids":
        of_id = [math.exp(draw.gauss(0, 1)) for _ in range(48)]
        return lambda row, t, token, a: of_id[token]
    if shape == "logprob":
        return lambda row, t, token, a: -a
    return lambda row, t, token, a: 1


def difference(form, draw):
    if form == "gauss":
        return draw.gauss(0, 1)
    if form == "uniform":
        return draw.uniform(-1, 1)
    if form == "laplace":
        return draw.choice([-1, 1]) * draw.expovariate(1)
    if form == "cauchy":
        return math.tan(math.pi * (draw.random() - 0.5))
    if form == "lognormal":
        return draw.choice([-1, 1]) * math.exp(draw.gauss(0, 2))
    return draw.gauss(0, 1) if draw.random() < float(form) else 0.0  # a share of the tokens


FORMS = ["gauss", "uniform", "laplace", "cauchy", "lognormal", "0.01", "0.05", "0.2", "0.5", "0.8"]
SHAPES = ["even", "even", "rows", "two kinds of rows", "growing", "walk", "ids", "logprob"]


def noise_pair(draw):
    """Files whose difference is random: tensors and metadata of the pair say nothing of it."""
    rows, length = draw.choice([1, 2, 4, 8, 12, 16, 24, 32, 64]), draw.choice([8, 16, 40, 64, 128])
    form, shape, size = draw.choice(FORMS), draw.choice(SHAPES), 10 ** draw.uniform(-6, 0.5)
    scale = scale_of(shape, draw, rows, length)
    ids = [[min(47, int(draw.expovariate(0.1))) for _ in range(length)] for _ in range(rows)]
    a = [[0.0] + [-draw.expovariate(draw.choice([0.3, 1, 10])) - 1e-6 for _ in range(length - 1)] for _ in range(rows)]
    b = [[0.0] + [a[row][t] + size * difference(form, draw) * scale(row, t, ids[row][t], a[row][t])
                  for t in range(1, length)] for row in range(rows)]
    if draw.random() < 0.7:  # no logprob is above 0
        b = [[min(value, 0.0) for value in row] for row in b]
    tensors = {"input_ids": ("int64", ids)}
    lengths = [draw.randint(max(2, length // 2), length) for _ in range(rows)]
    if draw.random() < 0.5:
        tensors["lengths"] = ("int64", [draw.choice([n, length]) for n in lengths])
    if draw.random() < 0.5:
        cuts = [sorted(draw.sample(range(1, length), min(draw.randint(1, 6), length - 1))) for _ in range(rows)]
        tensors["segments"] = ("int64", [[sum(t >= cut for cut in cuts[row]) for t in range(length)]
                                         for row in range(rows)])
    if draw.random() < 0.5:
        by_row = [draw.randint(1, 3) for _ in range(rows)]
        tensors["versions"] = ("int64", [[by_row[row]] * length for row in range(rows)])
    metadata = [{name: str(value) for name, value in (("temperature", draw.choice([0.5, 1, 2])), ("top_p", 0.9),
                                                      ("vocab_size", 48)) if draw.random() < 0.4} for _ in range(2)]
    dtype = draw.choice(["float64", "float32", "bfloat16"])
    stored = "float32" if dtype == "bfloat16" and draw.random() < 0.5 else dtype
    for one in metadata:
        one["dtype"] = dtype
    name = f"{form}, {shape}, {size:.2g}, {rows} rows of {length}, {dtype}"
    return name, {**tensors, "logprobs": (stored, a)}, {"logprobs": (stored, b)}, metadata


def findings_of(program, pairs, routes=()):
    """The findings for pairs of (tensors, metadata) for A and B. `routes`: of some pairs, those of both sides."""
    if not pairs:
        return []
    with tempfile.TemporaryDirectory(prefix="logprobs-") as folder:
        for name in "ab":
            os.mkdir(os.path.join(folder, name))
        for i, sides in enumerate(pairs):
            for name, (tensors, metadata) in zip("ab", sides):
                write_file(os.path.join(folder, name, f"{i:05d}.safetensors"), tensors, metadata)
        for i, sides in enumerate(routes):
            for name, one in zip("ab", sides or ()):
                write_routes(os.path.join(folder, name, f"{i:05d}.routes.safetensors"), one)
        done = subprocess.run([program, "logprobs", "a", "b", "--json", "found.json"], cwd=folder, text=True,
                              timeout=LIMIT_S, stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode not in (0, 1):
            sys.exit(f"status {done.returncode}: {done.stderr}")
        with open(os.path.join(folder, "found.json"), encoding="utf-8") as file:
            return json.load(file)


def planted_pairs(count, seed):
    """Causes of all kinds in turn: (name of the kind, case)."""
    kinds = KINDS + list(logprobs_test.KINDS.values())
    return [(kinds[i % len(kinds)].__name__, kinds[i % len(kinds)](random.Random(f"{seed} drawn {i}")))
            for i in range(count)]


def sides_of(name, case):
    """The tensors and metadata of both files of a planted case."""
    noisy = getattr(case.batch, "noisy", name != low_temperatures.__name__)
    dtype = {"dtype": "bfloat16"} if noisy else {}
    return ((case.batch.tensors(case.a, "float32"), {**case.metadata_a, **dtype}),
            (case.batch.tensors(case.b, "float32", ()), {**case.metadata_b, **dtype}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--pairs", type=int, default=390, help="planted causes")
    parser.add_argument("--noise", type=int, default=200, help="random differences")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    program = os.path.abspath(arguments.program)
    cases = planted_pairs(arguments.pairs, arguments.seed)
    table = collections.defaultdict(collections.Counter)
    for (name, case), finding in zip(cases, findings_of(program, [sides_of(*one) for one in cases])):
        right = named_right(case, finding)
        named = [cause["cause"] for cause in finding["causes"]] + ["non_finite"] * ("non_finite" in finding)
        table[name]["right" if right else "silent" if not named else
                    "vague" if case.cause in named else "false"] += 1
        if not right:
            print(name, case.cause, json.dumps(finding, indent=1))
    for name, row in table.items():
        print(f"{name:36} {row['right']:3} right {row['vague']:3} without all its numbers {row['silent']:3} silent "
              f"{row['false']:3} false")
    right, false = (sum(row[word] for row in table.values()) for word in ("right", "false"))
    pairs = [noise_pair(random.Random(f"{arguments.seed} noise {i}")) for i in range(arguments.noise)]
    found = findings_of(program, [((a, of_a), (b, of_b)) for _, a, b, (of_a, of_b) in pairs])
    claimed = [(name, one["causes"][0]["text"]) for (name, *_), one in zip(pairs, found) if one["causes"]]
    for name, text in claimed:
        print(f"{name}: {text}")
    print(f"seed {arguments.seed}: {right} of {len(cases)} planted causes named right, {false} named falsely; "
          f"{len(claimed)} of {len(pairs)} random differences given a cause")
    sys.exit(1 if claimed or right < LEAST_RIGHT * len(cases) else 0)


if __name__ == "__main__":
    main()
