#!/usr/bin/env python3
"""`logprobs A B` on the logprobs of a small transformer whose second run has one fault: in its attention, its caches, its
weights, its ranks or what it does with the result. The faults and the names that they should get were written from
docs/logprobs.md alone, by someone who had not read the code that names causes. Then pairs of runs without a fault, which
differ by the order of their sums: none of these may be given a cause.

Usage: logprobs_model_test.py PROGRAM [--seed N] [--noise N] [--kind NAME] [--show]
"""
import argparse
import collections
import os
import sys

try:
    import numpy as np
except ImportError:
    print("skipped: this Python has no numpy")
    sys.exit(77)
from logprobs_drawn_test import findings_of
from small_transformer import VOCAB, Batch, Model, Run, kept_by, log_softmax, rounded

LEAST_NAMED = 28 / 30

Case = collections.namedtuple("Case", "batch a b causes says meta_a meta_b extra")  # "" in causes: or none
KINDS = []


def kind(function):
    KINDS.append(function)
    return function


def case(batch, b, causes, says="", a=None, meta_a=(), meta_b=(), **extra):
    return Case(batch, batch.score(0) if a is None else a, b, causes, says, dict(meta_a), dict(meta_b), extra)


# --- What is done with right logprobs
@kind
def engine_reports_the_next_token(draw):
    batch = Batch(draw)
    return case(batch, np.roll(batch.score(1), -1, 1) * (np.arange(batch.length) < batch.length - 1), ["shift"])


@kind
def targets_rolled_within_packed_sequences(draw):
    batch = Batch(draw, length=60, packed=3)
    b, right = np.zeros(batch.ids.shape), batch.score(1)
    b[:, :-1] = np.where(batch.begins[:, 1:], 0, right[:, 1:])
    return case(batch, b, ["shift"])


@kind
def targets_shifted_twice(draw):
    """The logprob of the next token but one: right where two tokens that follow each other are one id."""
    batch, by = Batch(draw, rows=24), int(draw.choice([-1, 1]))
    ids = np.roll(batch.ids, -by, 1)
    wrong = Batch.__new__(Batch)
    wrong.__dict__.update(batch.__dict__)
    wrong.ids = ids
    return case(batch, wrong.picked(log_softmax(batch.logits(1))), ["targets"], "later" if by > 0 else "earlier")


@kind
def log_softmax_in_bfloat16_saved_in_float32(draw):
    batch = Batch(draw)
    batch.runs = [Run(dtype="float32"), Run(dtype="bfloat16")]
    b = rounded(batch.picked(log_softmax(rounded(batch.logits(1), "bfloat16"))), "bfloat16")
    return case(batch, b, ["rounded"], "computation")


@kind
def divided_by_the_temperature_too_late(draw):
    batch = Batch(draw)
    return case(batch, batch.score(1) / draw.uniform(1.2, 1.8), ["factor"])


@kind
def mean_over_the_answer(draw):
    batch = Batch(draw, padded=True)
    right = batch.score(1)
    return case(batch, right / batch.scored().sum(1, keepdims=True), ["mean_of_row"])


@kind
def probabilities_without_the_log(draw):
    batch = Batch(draw)
    return case(batch, np.exp(batch.score(1)) * batch.scored(), ["probability"])


@kind
def answers_in_the_order_of_their_ends(draw):
    batch = Batch(draw, padded=True)
    return case(batch, batch.score(1)[np.argsort(batch.lengths, kind="stable")], ["rows"])


@kind
def zigzag_not_undone(draw):
    batch, size = Batch(draw), draw.choice([2, 4])
    chunks = np.split(batch.score(1), 2 * size, 1)
    order = [one for rank in range(size) for one in (rank, 2 * size - 1 - rank)]
    return case(batch, np.concatenate([chunks[one] for one in order], 1), ["chunk_order"], "zigzag")


@kind
def prompts_not_scored_by_one_side(draw):
    batch = Batch(draw)
    prompts = draw.integers(4, 16, (batch.rows, 1))
    return case(batch, batch.score(1) * (np.arange(batch.length) >= prompts), ["unscored"])


@kind
def tool_outputs_masked_by_one_side(draw):
    batch = Batch(draw)
    begin = draw.integers(8, 30, (batch.rows, 1))
    t = np.arange(batch.length)
    return case(batch, np.where((t >= begin) & (t < begin + 7), 0, batch.score(1)), ["unscored"])


@kind
def one_logit_overflowed(draw):
    batch = Batch(draw)
    b = batch.score(1)
    b[draw.integers(batch.rows), draw.integers(1, batch.length)] = draw.choice([np.nan, -np.inf])
    return case(batch, b, ["non_finite"])


# --- The distribution
@kind
def another_temperature(draw):
    batch = Batch(draw)
    b = batch.picked(log_softmax(batch.logits(1) / draw.choice([0.6, 0.7, 1.4])))
    return case(batch, b, ["temperature"])


@kind
def temperatures_of_both_metadata(draw):
    batch = Batch(draw, temperature=0.7)
    b = batch.picked(log_softmax(batch.logits(1) / 0.7))
    return case(batch, b, ["temperature"], "0.7", meta_a={"temperature": "1"}, meta_b={"temperature": "0.7"})


@kind
def temperatures_near_zero(draw):
    batch, (low, high) = Batch(draw), [(0.005, 0.01), (0.002, 0.02)][draw.integers(2)]
    batch.runs = [Run(dtype="float32"), Run(dtype="float32", parts=2)]
    a, b = (batch.picked(log_softmax(batch.logits(side) / one)) for side, one in enumerate((low, high)))
    return case(batch, b, ["temperature"], f"{high}", a=a, meta_a={"temperature": str(low)},
                meta_b={"temperature": str(high)})


@kind
def engine_renormalizes_top_p(draw):
    top_p = draw.choice([0.7, 0.8, 0.9])
    batch = Batch(draw, top_p=top_p)
    z = batch.logits(1)
    kept = kept_by(z, top_p) | (np.arange(VOCAB) == np.roll(batch.ids, -1, 1)[..., None])
    return case(batch, batch.picked(log_softmax(np.where(kept, z, -np.inf))), ["renormalized"])


@kind
def engine_renormalizes_top_k(draw):
    top_k = int(draw.choice([3, 5, 8]))
    batch = Batch(draw, top_k=top_k)
    z = batch.logits(1)
    kept = kept_by(z, top_k=top_k) | (np.arange(VOCAB) == np.roll(batch.ids, -1, 1)[..., None])
    return case(batch, batch.picked(log_softmax(np.where(kept, z, -np.inf))), ["renormalized"])


@kind
def each_tp_rank_normalizes_alone(draw):
    batch, ranks = Batch(draw), int(draw.choice([2, 4]))
    z = batch.logits(1).reshape(batch.rows, batch.length, ranks, -1)
    b = batch.picked(log_softmax(z).reshape(batch.rows, batch.length, VOCAB))
    return case(batch, b, ["renormalized", "lost_shard"])  # no value shows which tokens are missing


@kind
def padded_vocabulary_counts(draw):
    batch = Batch(draw)
    z = np.concatenate([batch.logits(1), np.zeros((batch.rows, batch.length, 192))], -1)
    return case(batch, batch.picked(log_softmax(z)), ["renormalized", "lost_shard"])


@kind
def sum_of_exponentials_counted_by_both_ranks(draw):
    batch = Batch(draw)
    return case(batch, batch.score(1) - np.log(2) * batch.scored(), ["offset"])


@kind
def one_id_is_penalized(draw):
    batch = Batch(draw)
    z = batch.logits(1)
    z[..., np.bincount(batch.ids.ravel()).argsort()[-12]] -= draw.uniform(1.5, 3)  # some 25 tokens
    return case(batch, batch.picked(log_softmax(z)), ["token_id"])


@kind
def one_shard_of_the_head_is_old(draw):
    """Which moves the logprobs of all other ids a little, as it moves the sum that all are divided by."""
    batch, old = Batch(draw), Model(draw)
    shard = draw.integers(4)
    old.layers, old.embedding = batch.model.layers, batch.model.embedding
    head = batch.model.head.copy()
    head[16 * shard:16 * shard + 16] = 0.8 * head[16 * shard:16 * shard + 16] + 0.6 * old.head[16 * shard:16 * shard + 16]
    old.head = head
    return case(batch, batch.score(1, model=old), ["vocabulary_shard", ""])


@kind
def target_logits_of_one_shard_not_summed(draw):
    batch = Batch(draw)
    z, shard = batch.logits(1), draw.integers(4)
    sums = z - log_softmax(z)
    z[..., 16 * shard:16 * shard + 16] = 0
    return case(batch, batch.picked(z - sums), ["vocabulary_shard"])


# --- Attention
@kind
def no_rotary_positions(draw):
    batch = Batch(draw)
    return case(batch, batch.score(1, rotary="none"), ["attention_scores"])


@kind
def rotary_pairs_for_halves(draw):
    batch = Batch(draw, padded=True)
    return case(batch, batch.score(1, rotary="pairs"), ["attention_scores"])


@kind
def scale_of_another_width(draw):
    batch = Batch(draw)
    return case(batch, batch.score(1, scale=draw.choice([0.35, 2.8])), ["attention_scores"])


@kind
def padding_is_attended(draw):
    """Rows are padded on the left by one side, which does not mask what it put there."""
    batch = Batch(draw, padded=True)
    left = batch.length - batch.lengths
    at = (np.arange(batch.length)[None] - left[:, None]) % batch.length
    moved = Batch.__new__(Batch)
    moved.__dict__.update(batch.__dict__)
    moved.ids = np.where(np.arange(batch.length) < left[:, None], 0, np.take_along_axis(batch.ids, at, 1))
    moved.begins = np.arange(batch.length) == left[:, None]
    moved.lengths = np.full(batch.rows, batch.length)
    right = np.where(np.arange(batch.length) < left[:, None], 0, moved.score(1))
    back = (np.arange(batch.length)[None] + left[:, None]) % batch.length
    return case(batch, np.take_along_axis(right, back, 1), ["padding"])


@kind
def attention_across_packed_sequences(draw):
    batch = Batch(draw, length=64, packed=3)
    return case(batch, batch.score(1, segments=np.zeros_like(batch.segments)), ["pack_boundary"])


@kind
def boundaries_lost_from_one_sequence_on(draw):
    batch = Batch(draw, length=72, packed=5)
    return case(batch, batch.score(1, segments=np.minimum(batch.segments, 2)), ["pack_boundary"])


@kind
def window_of_one_side(draw):
    batch = Batch(draw, length=64)  # one more key is missing at each position, so the difference may grow
    return case(batch, batch.score(1, window=int(draw.choice([12, 24]))), ["late_positions", ""])


@kind
def rotary_table_ends(draw):
    batch = Batch(draw, length=64)
    return case(batch, batch.score(1, last_position=int(draw.choice([21, 27]))), ["late_positions"])


# --- Weights, caches and ranks
def old_model(batch, by=0.7):
    return batch.model.moved(batch.draw, by)


@kind
def prefix_of_old_weights_in_even_rows(draw):
    batch = Batch(draw, length=64)
    prefix = np.where(np.arange(batch.rows) % 2, 0, draw.integers(20, 44))
    return case(batch, batch.score(1, old=(old_model(batch, 0.9), prefix)), ["late_positions"])


@kind
def answers_of_old_versions(draw):
    batch = Batch(draw)
    versions = draw.integers(3, 6, batch.rows)
    old = (versions == 3)[:, None]
    return case(batch, np.where(old, batch.score(1, model=old_model(batch)), batch.score(1)), ["stale_weights"],
                versions=versions[:, None].repeat(batch.length, 1))


@kind
def replica_that_takes_every_fourth_row(draw):
    batch, which = Batch(draw, rows=32), draw.integers(4)
    old = (np.arange(batch.rows) % 4 == which)[:, None]
    return case(batch, np.where(old, batch.score(1, model=old_model(batch)), batch.score(1)), ["replica"])


@kind
def replica_that_takes_a_block_of_rows(draw):
    batch, which = Batch(draw, rows=32), draw.integers(4)
    old = (np.arange(batch.rows) // 8 == which)[:, None]
    return case(batch, np.where(old, batch.score(1, model=old_model(batch)), batch.score(1)), ["replica"])


@kind
def old_head_on_one_rank_of_the_context(draw):
    batch = Batch(draw, length=64)
    old = Model(draw)
    old.embedding, old.layers = batch.model.embedding, batch.model.layers
    rank = np.arange(batch.length) // 16 == draw.integers(1, 3)
    z = np.where(rank[None, :, None], batch.logits(1, model=old), batch.logits(1))
    b = log_softmax(z)
    shifted = np.concatenate([b[:, :1], b[:, :-1]], 1)  # the rank scores its own tokens
    own = np.take_along_axis(shifted, batch.ids[..., None], -1)[..., 0] * batch.scored()
    return case(batch, own, ["context_shard"])


@kind
def first_answer_token_from_an_old_prefill(draw):
    batch = Batch(draw)
    prompts = draw.integers(6, 20, (batch.rows, 1))
    t = np.arange(batch.length)
    b = np.where(t == prompts, batch.score(1, model=old_model(batch, 0.95)), batch.score(1))
    return case(batch, b * (t >= prompts), ["first_tokens"], a=batch.score(0) * (t >= prompts))


@kind
def other_experts(draw):
    batch = Batch(draw, experts=True)
    routes = [{}, {"noise": draw, "size": draw.uniform(0.01, 0.04)}]
    a, b = (batch.score(side, routes=one) for side, one in enumerate(routes))
    return case(batch, b, ["routes"], "other routes", a=a, routes=[np.stack(one["chosen"]).tolist() for one in routes])


@kind
def some_of_the_replicas_have_old_weights(draw):
    batch = Batch(draw, rows=28, length=24)
    which, blocks = draw.choice(7, 3, replace=False), draw.integers(2)
    old = np.isin(np.arange(28) // 4 if blocks else np.arange(28) % 7, which)[:, None]
    return case(batch, np.where(old, batch.score(1, model=old_model(batch)), batch.score(1)), ["replica"],
                ", ".join(str(one) for one in sorted(which)))


@kind
def old_weights_in_rows_of_no_order(draw):
    """No place says where: the cause may only be listed. Of 29 rows no equal shares can be made."""
    batch = Batch(draw, rows=29, length=24)
    old = np.isin(np.arange(29), draw.choice(29, 14, replace=False))[:, None]
    return case(batch, np.where(old, batch.score(1, model=old_model(batch)), batch.score(1)), [], "stale")


# --- Without a fault
def clean_pair(draw):
    batch = Batch(draw, rows=int(draw.choice([4, 12, 24])), length=int(draw.choice([24, 48])),
                  packed=int(draw.choice([0, 0, 2])), padded=bool(draw.integers(2)))
    dtype = draw.choice(["bfloat16", "bfloat16", "float32"])
    parts = draw.choice([1, 2, 4, 8], 2, replace=False)
    batch.runs = [Run(dtype=dtype, parts=int(one)) for one in parts]
    return case(batch, batch.score(1), [])


def sides(one, draw):
    """[(tensors, metadata)] of A and B; half of the files keep their values in the dtype of the computation."""
    batch, dtype = one.batch, one.batch.runs[0].dtype
    stored = dtype if draw.random() < 0.5 else "float32"
    tensors = {"input_ids": ("int64", batch.ids.tolist())}
    if (batch.lengths < batch.length).any():
        tensors["lengths"] = ("int64", batch.lengths.tolist())
    if batch.segments.any():
        tensors["segments"] = ("int64", batch.segments.tolist())
    if "versions" in one.extra:
        tensors["versions"] = ("int64", one.extra["versions"].tolist())
    tensors["logprobs"] = (stored, one.a.tolist())
    return [(tensors, {"dtype": dtype, **one.meta_a}),
            ({"logprobs": (stored, one.b.tolist())}, {"dtype": dtype, **one.meta_b})]


def is_named(one, finding):
    if one.causes == ["non_finite"]:
        return "non_finite" in finding
    if not one.causes:
        return not finding["causes"] and one.says in finding.get("possible", "")
    if not finding["causes"]:  # few of the tokens behind other routes need differ
        return "" in one.causes or one.causes == ["routes"] and one.says in finding.get("possible", "")
    first = finding["causes"][0]
    return first["cause"] in one.causes and (one.says in first["text"] or one.causes == ["routes"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--noise", type=int, default=200)
    parser.add_argument("--kind", default="")
    parser.add_argument("--show", action="store_true")
    arguments = parser.parse_args()
    program = os.path.abspath(arguments.program)
    kinds = [one for one in KINDS if arguments.kind in one.__name__]
    cases = [one(np.random.default_rng([arguments.seed, i])) for i, one in enumerate(KINDS) if one in kinds]
    store = np.random.default_rng(arguments.seed)
    findings = findings_of(program, [sides(one, store) for one in cases], [one.extra.get("routes") for one in cases])
    named = [is_named(one, finding) for one, finding in zip(cases, findings)]
    for function, one, finding, right in zip(kinds, cases, findings, named):
        if arguments.show or not right:
            got = [f"{cause['cause']}: {cause['text']}" for cause in finding["causes"]] or ["no cause"]
            print(f"{function.__name__}: should be {one.causes or 'listed'} {one.says}, is {'; or '.join(got)}")
    clean = [clean_pair(np.random.default_rng([arguments.seed, 1000 + i])) for i in range(arguments.noise)]
    claimed = [finding["causes"][0] for finding in findings_of(program, [sides(one, store) for one in clean])
               if finding["causes"]]
    for cause in claimed:
        print(f"without a fault: {cause['text']}")
    print(f"seed {arguments.seed}: {sum(named)} of {len(cases)} faults named; {len(claimed)} of {len(clean)} pairs without "
          "a fault given a cause")
    sys.exit(1 if claimed or sum(named) < LEAST_NAMED * len(cases) else 0)


if __name__ == "__main__":
    main()
