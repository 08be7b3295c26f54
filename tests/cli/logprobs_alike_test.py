#!/usr/bin/env python3
"""`logprobs A B` on faults of a small transformer that look like others: each gets its own name, or none, and never
that of the fault that it looks like.

Usage: logprobs_alike_test.py PROGRAM [--seed N] [--noise N] [--kind NAME] [--show]
"""
import logprobs_model_test as base  # ends with 77 where there is no numpy
import numpy as np
from logprobs_model_test import case, kind
from small_transformer import VOCAB, Batch, Run, kept_by, log_softmax, logits_of

base.KINDS.clear()  # those below alone


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
    return case(batch, batch.score(1, theta=float(draw.choice([20, 1000]))), ["attention_scores"])


@kind
def window_behind_which_the_difference_grows(draw):
    batch = Batch(draw, length=96)
    return case(batch, batch.score(1, window=int(draw.choice([32, 40]))), ["late_positions"])


@kind
def experts_of_nearly_equal_weights(draw):
    """Not all tokens that were scored from other experts are wrong, and many behind them are."""
    batch = Batch(draw, experts=True)
    routes = [{}, {"noise": draw, "size": 0.1}]
    a, b = (batch.score(side, routes=one) for side, one in enumerate(routes))
    return case(batch, b, ["routes"], "experts differ", a=a,
                routes=[np.stack(one["chosen"]).tolist() for one in routes])


@kind
def top_k_of_a_flat_distribution(draw):
    """Raises most logprobs by about a tenth of them, as a factor does."""
    batch = Batch(draw, top_k=12)
    z = batch.logits(1)
    kept = kept_by(z, top_k=12) | (np.arange(VOCAB) == np.roll(batch.ids, -1, 1)[..., None])
    return case(batch, batch.picked(log_softmax(np.where(kept, z, -np.inf))), ["renormalized"])


def capped(batch, side, size):
    z = batch.logits(side)
    cap = size * z.std()
    return batch.picked(log_softmax(cap * np.tanh(z / cap)))


@kind
def soft_cap_of_one_side(draw):
    """Makes likely tokens less likely, as a higher temperature does."""
    batch = Batch(draw)
    return case(batch, batch.score(1), [], "tanh", a=capped(batch, 0, 3))


def differing(batch, sizes):
    """The logprobs of B where those of A differ by `sizes` of 1 + |logprob|, up or down; nan: as in the other run."""
    a, b = batch.score(0), batch.score(1)
    moved = sizes * (1 + np.abs(a)) * batch.draw.choice([-1, 1], a.shape)
    return np.where(batch.scored(), np.where(np.isnan(sizes), b, a + np.where(a + moved > 0, -np.abs(moved), moved)), 0)


@kind
def packs_whose_prompts_differ_less(draw):
    """Prompts differ less than what was drawn behind them, so that the difference grows behind a pack boundary. Before
    it noise is not flat."""
    batch = Batch(draw, length=72, packed=5)
    t = np.arange(batch.length)[None]
    first = np.maximum.accumulate(np.where(batch.begins, t, 0), 1)
    wrong = batch.segments >= 2
    before = ~wrong & (wrong.argmax(1)[:, None] - t <= 2)
    sizes = np.where(wrong, np.where(t - first < 3, 0.3, 3.0), np.where(before, 0.006, 0.004))
    return case(batch, differing(batch, sizes), ["pack_boundary"])


@kind
def end_token_that_was_forced(draw):
    """Is improbable, so that a third of them show the fault of their place."""
    batch = Batch(draw, length=64)
    batch.ids[:, -1] = 2
    wrong = (np.arange(batch.length) >= 40)[None] & ((batch.ids != 2) | (np.arange(batch.rows) % 3 == 0)[:, None])
    return case(batch, differing(batch, np.where(wrong, 0.3, np.nan)), ["late_positions"])


def sharp(batch, side, by=3):
    """Logits of a trained model: most of what it draws is likely."""
    return by * batch.logits(side)


def drawn_from(logits, batch):
    """Draws each token again, by the logits of the position before it, which had other tokens behind it."""
    drawn = (logits[:, :-1] + batch.draw.gumbel(size=logits[:, :-1].shape)).argmax(-1)
    return np.concatenate([batch.ids[:, :1], drawn], 1)


def picked(batch, logits, ids):
    logprobs = log_softmax(logits)[:, :-1]
    return np.pad(np.take_along_axis(logprobs, ids[:, 1:, None], 2)[..., 0], ((0, 0), (1, 0))) * batch.scored()


@kind
def targets_that_were_shifted_twice(draw):
    """Are less likely nearly everywhere, as where B is normalized over fewer tokens."""
    batch = Batch(draw)
    ids = drawn_from(sharp(batch, 0), batch)
    a = picked(batch, sharp(batch, 0), np.roll(ids, -1, 1))
    return case(batch, picked(batch, sharp(batch, 1), ids), [], "do not follow", a=a)


@kind
def weights_that_were_not_loaded(draw):
    """All tokens are about as likely."""
    batch = Batch(draw)
    ids = drawn_from(sharp(batch, 0), batch)
    a = picked(batch, 0.05 * batch.logits(0) + 0.3 * draw.normal(size=batch.logits(0).shape), ids)
    return case(batch, picked(batch, sharp(batch, 1), ids), [], "do not follow", a=a)


@kind
def temperature_of_forced_tokens(draw):
    """The few improbable ones have most of the squared difference, and the likely ones alone fit a lower ratio better."""
    batch = Batch(draw)
    batch.runs = [Run(dtype="float32"), Run(dtype="float32", parts=2)]
    z = [sharp(batch, side, by=4) for side in (0, 1)]
    ids = drawn_from(z[0], batch)
    ids[:6, -1] = z[0][:6, -2].argmin(-1)
    return case(batch, picked(batch, z[1], ids), ["temperature"], a=picked(batch, z[0] / 1.4, ids))


@kind
def logprobs_that_were_filled(draw):
    """Are lower than those of the other file and do not follow them, but no other target makes them."""
    batch = Batch(draw)
    ids = drawn_from(sharp(batch, 0), batch)
    a = np.full(ids.shape, -12.5) * batch.scored()
    return case(batch, picked(batch, sharp(batch, 1), ids), [], "logprobs of A are -12.5: its file was filled", a=a)


if __name__ == "__main__":
    base.main()
