#!/usr/bin/env python3
"""`logprobs A B` on faults of a small transformer that look like others: each gets its own name, or none, and never that
of the fault that it looks like.

Usage: logprobs_alike_test.py PROGRAM [--seed N] [--noise N] [--kind NAME] [--show]
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
try:
    import numpy as np
except ImportError:
    print("skipped: this Python has no numpy")
    sys.exit(77)
import logprobs_model_test as base  # noqa: E402
from logprobs_model_test import case  # noqa: E402
from small_transformer import VOCAB, Batch, kept_by, log_softmax, logits_of  # noqa: E402

KINDS = []


def kind(function):
    KINDS.append(function)
    return function


@kind
def top_k_of_a_flat_distribution(draw):
    """Raises most logprobs by about a tenth of them, as a factor does. An offset may look the same, see the page."""
    batch = Batch(draw, top_k=16)
    z = batch.logits(1)
    kept = kept_by(z, top_k=16) | (np.arange(VOCAB) == np.roll(batch.ids, -1, 1)[..., None])
    return case(batch, batch.picked(log_softmax(np.where(kept, z, -np.inf))), ["renormalized", "offset"])


@kind
def second_bos(draw):
    """Leaves position 1 right, as wrong scores of attention do."""
    batch = Batch(draw, length=96)
    ids = np.concatenate([batch.ids[:, :1], batch.ids], 1)
    z = logits_of(batch.model, ids, batch.runs[1])
    return case(batch, batch.picked(log_softmax(z[:, 1:])), [], "BOS")


@kind
def rank_reads_the_id_before_the_target(draw):
    """The first id of the shard has none before it, and is right."""
    batch, shard = Batch(draw), draw.integers(4)
    z = batch.logits(1)
    low = 16 * shard
    moved = z.copy()
    moved[..., low + 1:low + 16] = z[..., low:low + 15]
    b = batch.picked(moved - (z - log_softmax(z)))
    return case(batch, b, ["vocabulary_shard"], f"{low + 1} to {low + 15}")


@kind
def another_theta(draw):
    """Grows over the first keys, and then stays."""
    batch = Batch(draw, length=80)
    return case(batch, batch.score(1, theta=10.0), ["attention_scores"])


@kind
def window_behind_which_the_difference_grows(draw):
    batch = Batch(draw, length=96)
    return case(batch, batch.score(1, window=int(draw.choice([24, 32]))), ["late_positions"])


@kind
def experts_of_nearly_equal_weights(draw):
    batch = Batch(draw, experts=True)
    routes = [{}, {"noise": draw, "size": 0.01}]
    a, b = (batch.score(side, routes=one) for side, one in enumerate(routes))
    return case(batch, b, ["routes"], a=a, routes=[np.stack(one["chosen"]).tolist() for one in routes])


if __name__ == "__main__":
    base.KINDS[:] = KINDS
    base.main()
