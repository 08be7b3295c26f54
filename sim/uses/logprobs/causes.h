// The causes. Each has one function, which proposes its best form, and a row in the table of
// compare.cpp. The comments say when a claim is possible at all; claim.h has what all must meet.
#pragma once

#include <optional>
#include <string>

#include "sim/uses/logprobs/claim.h"

namespace shardproof::sim::logprobs {

// Causes that predict each value of b.

// b = -a, or a = -b: a loss was saved in place of the logprob.
std::optional<Claim> propose_sign(const Comparison& comparison);
// b = a / log(2) or a / log(10), or the reverse.
std::optional<Claim> propose_log_base(const Comparison& comparison);
// b = f * a with one factor f, found as the weighted median of b / a. The cause is `temperature`
// where f is the ratio of the metadata's temperatures.
std::optional<Claim> propose_factor(const Comparison& comparison);
// b = a / n, or a = b / n, where n is the number of the row's scored tokens, or one more.
std::optional<Claim> propose_mean(const Comparison& comparison);
// b is the sum of a up to each token within rows or segments, or its mean, or the reverse.
std::optional<Claim> propose_cumulative(const Comparison& comparison);
// b = exp(a), or a = exp(b).
std::optional<Claim> propose_probability(const Comparison& comparison);
// b = max(a, c), or the reverse, with the lowest value c of the limited file.
std::optional<Claim> propose_limit(const Comparison& comparison);
// b = log(exp(a) + c) with one c, of the token whose difference is the largest.
std::optional<Claim> propose_added(const Comparison& comparison);
// b = a + c with one c, found as the median of b - a.
std::optional<Claim> propose_offset(const Comparison& comparison);
// b = f * a - c with 1/2 < f < 1 and c > 0, or the reverse: smoothed targets (smoothed.cpp). Where
// only the signs fit, it is listed, and nothing else is claimed of such signs.
std::optional<Claim> propose_smoothed(const Comparison& comparison);
// Whether the signs fit, so that propose_smoothed() claims or lists it.
bool falls_as_smoothed(const Comparison& comparison);
// b[t] = a[t + k] with 0 < |k| <= 4, within rows or within segments.
std::optional<Claim> propose_shift(const Comparison& comparison);
// Rows of b are other rows of a.
std::optional<Claim> propose_rows(const Comparison& comparison);
// Each row of b has the chunks of a's row in another order.
std::optional<Claim> propose_chunks(const Comparison& comparison);
// All wrong tokens are exactly 0 in one file, and only those: they were not scored there. A logprob
// that rounds to 0 is near 0 in the other file too.
std::optional<Claim> propose_unscored(const Comparison& comparison);
// All values of one file are numbers of a coarser dtype, and are those of the other rounded to it,
// or differ from them by no more than the noise of a computation in it.
std::optional<Claim> propose_rounded(const Comparison& comparison);
// "each of the 96 values of B that are not 0 is a number of bfloat16"; "" if none is so, or if both
// are, or if the files say so.
std::string rounded_text(const Pair& pair);

// Causes that name the wrong tokens and predict no values.

// The first 1 to 16 scored tokens of each segment, or of each row without segments.
std::optional<Claim> propose_first_tokens(const Comparison& comparison);
// Rows with padding, where others have none.
std::optional<Claim> propose_padded_rows(const Comparison& comparison);
// All tokens of each segment, or of each row without segments, from position 2 on: attention over
// the one key of position 0 gives the token at position 1 its logprob, whatever the scores are.
std::optional<Claim> propose_attention_scores(const Comparison& comparison);
// "the first key may be there twice": position 1 is right, and the difference steps behind it and
// falls along the row; "" otherwise.
std::string extra_key_text(const Comparison& comparison);
// All segments of a row from one on that is not the first.
std::optional<Claim> propose_pack_boundary(const Comparison& comparison);
// Tokens that were scored from a position with other experts, or from one on (routes.h).
std::optional<Claim> propose_routes(const Comparison& comparison);
// Tokens of older, newer or one of the versions.
std::optional<Claim> propose_versions(const Comparison& comparison);
// Token ids in one of n equal ranges of the vocabulary.
std::optional<Claim> propose_vocabulary_shard(const Comparison& comparison);
// One token id.
std::optional<Claim> propose_token_id(const Comparison& comparison);
// One file scores the token k later or earlier, from the right logits: only tokens whose neighbor
// there has the same id are right (targets.cpp).
std::optional<Claim> propose_targets(const Comparison& comparison);
// One file has the logprob of the likeliest token: it is higher where the chosen token is another,
// and equal as often as the likeliest token is the one that was drawn (other_tokens.cpp).
std::optional<Claim> propose_likeliest(const Comparison& comparison);
// A penalty on tokens whose id stands before in their row or segment (other_tokens.cpp).
std::optional<Claim> propose_repeated(const Comparison& comparison);
// Rows of one or some of n replicas, dealt in blocks or in turn.
std::optional<Claim> propose_replica(const Comparison& comparison);
// Every row, or some rows, from one position on that is above 2.
std::optional<Claim> propose_late_positions(const Comparison& comparison);
// One of n equal ranges of positions.
std::optional<Claim> propose_context_shard(const Comparison& comparison);

// Causes that bound b, and fix the sign of b - a. Under the null hypothesis each sign is a coin's
// throw, so a token whose difference would be impossible with the other sign gains log 2, and an
// impossible one loses several nats.

// b is computed from the logits of a divided by a ratio of temperatures (temperature.cpp).
std::optional<Claim> propose_temperature(const Comparison& comparison);
// One file is normalized over fewer tokens of the vocabulary (normalization.cpp).
std::optional<Claim> propose_normalization(const Comparison& comparison);

}  // namespace shardproof::sim::logprobs
