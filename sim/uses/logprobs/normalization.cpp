// One file is normalized over fewer tokens of the vocabulary.
//
// If B sums the probabilities of a part of the vocabulary alone, with the mass m in A, then
// B - A = -log(m) is never negative. Two causes have this form:
//
//   renormalized sampling  top-p or top-k keeps the chosen token, so B <= 0; top-p bounds B - A by
//                          -log(top_p)
//   a lost shard           the logsumexp lacks a range of token ids. Tokens outside of it have
//                          B <= 0. For tokens in it m <= 1 - p, so B - A >= -log(1 - p), and B may
//                          be above 0
//
// Without token ids, and without values above 0, the chosen logprobs do not tell the two apart.
// Both raise nearly every token that has likely alternatives; a few wrong tokens are neither.
//
// A = B + log(m), and what is kept of a flat distribution is little and flat: log(m) rises with B,
// so that the slope of A on B is 1 or more. Logprobs of other tokens or of weights that were not
// loaded are lower nearly everywhere too, but do not follow B: their slope is about 0.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "sim/uses/logprobs/causes.h"
#include "sim/uses/logprobs/moments.h"
#include "sim/uses/logprobs/signs.h"

namespace shardproof::sim::logprobs {
namespace {

constexpr double kRisingSigns = 0.98;  // of the signs must fit
// The share of open tokens that may keep their logprob, because what they lose is small.
constexpr double kStill = 0.1;
// The least slope and correlation of the file that is normalized over more tokens on the other.
constexpr double kLeastSlope = 0.5, kLeastCorrelation = 0.5;

// Seen from the file that is normalized over more tokens.
struct Direction {
  const Comparison& comparison;
  bool b_has_fewer;

  const char* fewer() const { return b_has_fewer ? "B" : "A"; }
  const char* more() const { return b_has_fewer ? "A" : "B"; }
  double rise(size_t i) const {
    return b_has_fewer ? comparison.differences[i] : -comparison.differences[i];
  }
  double of_more(size_t i) const {
    const Token& token = comparison.pair.tokens[i];
    return b_has_fewer ? token.a : token.b;
  }
  const Settings& settings() const {
    return b_has_fewer ? comparison.pair.settings_b : comparison.pair.settings_a;
  }
};

struct Shard {
  int64_t parts = 0, part = 0, size = 0;
  double nats = 0;
};

// A token whose own probability, if it were missing, would raise its logprob clearly: by `own`.
struct Evidence {
  int64_t id = 0;
  double own = 0;
  bool lacks = false;       // rises by that at least
  bool above_zero = false;  // its logprob is above 0
};

std::vector<Evidence> evidence_of(const Direction& direction, double tolerance) {
  const Pair& pair = direction.comparison.pair;
  std::vector<Evidence> all;
  for (size_t i = 0; i < pair.tokens.size(); ++i) {
    const double p = std::min(std::exp(std::min(direction.of_more(i), 0.0)), 1 - 1e-12);
    const double own = -std::log1p(-p);
    // An error of the logprob moves log(1 - p) by p / (1 - p) times as much.
    const double allowed = tolerance * direction.comparison.weights[i] / (1 - p);
    if (own <= kClear * allowed) continue;
    const double raised = direction.of_more(i) + direction.rise(i);
    all.push_back(
        {pair.tokens[i].id, own, direction.rise(i) >= own - allowed, raised > kClear * allowed});
  }
  std::ranges::sort(all, [](const Evidence& a, const Evidence& b) { return a.own < b.own; });
  return all;
}

// Tokens of like probability: any cause raises a token of small probability by more than its own.
constexpr size_t kStrata = 10;

struct Counts {
  std::array<double, kStrata> tokens = {}, lacking = {};
};

double sum_of(const std::array<double, kStrata>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// What it gains to give the tokens of a range a rate of their own, whatever their probability.
double nats_of(const Counts& inside, const Counts& all) {
  double nats = -bernoulli_nats(sum_of(inside.lacking), sum_of(inside.tokens));
  for (size_t k = 0; k < kStrata; ++k) {
    nats += bernoulli_nats(all.lacking[k], all.tokens[k]) -
            bernoulli_nats(all.lacking[k] - inside.lacking[k], all.tokens[k] - inside.tokens[k]);
  }
  return nats;
}

// The range of ids whose own probability is missing: B - A >= -log(1 - p) there alone.
Shard find_lost_shard(const Direction& direction, double tolerance) {
  const Pair& pair = direction.comparison.pair;
  if (!pair.has_ids) return {};
  const int64_t vocab_size = pair.vocab_size > 0 ? pair.vocab_size : pair.max_id + 1;
  const std::vector<Evidence> evidence = evidence_of(direction, tolerance);
  const auto count = [&](size_t i, Counts& counts) {
    counts.tokens[i * kStrata / evidence.size()] += 1;
    counts.lacking[i * kStrata / evidence.size()] += evidence[i].lacks ? 1 : 0;
  };
  Counts all;
  for (size_t i = 0; i < evidence.size(); ++i) count(i, all);
  Shard best;
  for (const int64_t parts : {2, 3, 4, 6, 8, 16, 32, 64}) {
    if (parts >= vocab_size) continue;
    const int64_t size = (vocab_size + parts - 1) / parts;
    std::vector<Counts> of_part(static_cast<size_t>(parts));
    std::vector<char> above_zero(static_cast<size_t>(parts), 0);
    for (size_t i = 0; i < evidence.size(); ++i) {
      const auto part = static_cast<size_t>(evidence[i].id / size);
      count(i, of_part[part]);
      if (evidence[i].above_zero) above_zero[part] = 1;
    }
    const auto above = std::ranges::count(above_zero, 1);
    for (int64_t part = 0; part < parts; ++part) {
      const Counts& inside = of_part[static_cast<size_t>(part)];
      const double tokens = sum_of(inside.tokens);
      const bool allows = above == above_zero[static_cast<size_t>(part)];
      if (!allows || sum_of(inside.lacking) < kRisingSigns * tokens || tokens == 0) continue;
      const double nats = nats_of(inside, all);
      if (nats > best.nats) best = {.parts = parts, .part = part, .size = size, .nats = nats};
    }
  }
  const double choices = std::log(135.0);
  best.nats -= choices;
  return best.nats >= kChanceNats ? best : Shard{};
}

double largest_rise(const Direction& direction) {
  double largest = 0;
  for (size_t i = 0; i < direction.comparison.differences.size(); ++i) {
    largest = std::max(largest, direction.rise(i));
  }
  return largest;
}

// Whether the file that is normalized over more tokens follows the other.
bool follows(const Direction& direction) {
  const size_t count = direction.comparison.differences.size();
  std::vector<double> more(count), fewer(count);
  for (size_t i = 0; i < count; ++i) {
    more[i] = direction.of_more(i);
    fewer[i] = more[i] + direction.rise(i);
  }
  const Moments moments = moments_of(fewer, more);
  return moments.covariance >= kLeastSlope * moments.variance_x &&
         moments.correlation() >= kLeastCorrelation;
}

bool has_values_above_zero(const Direction& direction, double tolerance) {
  for (size_t i = 0; i < direction.comparison.differences.size(); ++i) {
    const double value = direction.of_more(i) + direction.rise(i);
    if (value > kClear * tolerance * direction.comparison.weights[i]) return true;
  }
  return false;
}

void name_lost_shard(const Direction& direction, const Shard& shard, Claim& claim) {
  claim.cause = "lost_shard";
  claim.gained += shard.nats;
  claim.text += fmt::format(
      ", and for token ids {} to {} (shard {} of {} of the vocabulary) it lacks their own "
      "probability",
      shard.part * shard.size, (shard.part + 1) * shard.size - 1, shard.part, shard.parts);
  claim.likely = fmt::format("the logsumexp of {} lacks this shard; sum it over all tensor ranks",
                             direction.fewer());
}

void name_sampling(const Direction& direction, double rise, double tolerance, Claim& claim) {
  const auto top_p = direction.settings().top_p;
  claim.likely = fmt::format(
      "{} renormalizes after top-p or top-k, or its logsumexp lacks a part of the vocabulary, or "
      "the largest logit stands in its place, or all tokens are likely ones (greedy decoding) and "
      "its temperature is lower; compute its logprobs from all logits, at one temperature",
      direction.fewer());
  if (!top_p || *top_p == 1) return;
  const double bound = -std::log(*top_p);
  const bool within = rise <= bound + kClear * tolerance * 4;
  claim.text += fmt::format("; the top_p of {:g} allows {:.4g}", *top_p, bound);
  if (within) {
    claim.likely = fmt::format("{} renormalizes after top-p; compute its logprobs from all logits",
                               direction.fewer());
  }
}

std::optional<Claim> judge_direction(const Direction& direction, double tolerance) {
  const Comparison& comparison = direction.comparison;
  const double sign = direction.b_has_fewer ? 1 : -1;
  const Signs signs = count_signs(comparison, tolerance, [&](size_t i, double b, double) {
    return sign * (b - comparison.pair.tokens[i].a) > 0;
  });
  if (signs.fitting < kRisingSigns * signs.informative()) return std::nullopt;
  const double rise = largest_rise(direction);
  const double lost = nats_of_still_tokens(
      comparison, tolerance, kStill, [&](size_t i) { return direction.of_more(i); },
      [&](size_t i) { return direction.rise(i); });
  Claim claim{.cause = "renormalized",
              .text = fmt::format(
                  "{} is normalized over fewer tokens of the vocabulary than {}: {:.0f} of {:.0f} "
                  "clear differences raise the logprob, by up to {:.4g} (it keeps at least {:.3g} "
                  "of the probability)",
                  direction.fewer(), direction.more(), signs.fitting, signs.informative(), rise,
                  std::exp(-rise)),
              .description = std::log(2.0 * std::size(kTolerances)),
              .gained = signs.nats() - lost,
              .share = signs.share()};
  if (claim.share < kLeastShare || claim.chance_nats() < kChanceNats) return std::nullopt;
  // Noise of the dtype decides here, whichever tolerance fits the signs best.
  const Shard shard = find_lost_shard(direction, comparison.noise);
  if (shard.parts > 0) {
    name_lost_shard(direction, shard, claim);
  } else if (has_values_above_zero(direction, tolerance)) {
    claim.cause = "lost_shard";
    claim.text += ", and some logprobs of it are above 0";
    claim.likely = fmt::format(
        "the logsumexp of {} lacks a part of the vocabulary; sum it over all "
        "tensor ranks",
        direction.fewer());
  } else if (!follows(direction) || falls_as_smoothed(comparison)) {
    return std::nullopt;
  } else {
    name_sampling(direction, rise, tolerance, claim);
  }
  return claim;
}

}  // namespace

std::optional<Claim> propose_normalization(const Comparison& comparison) {
  return best_of(comparison.noise, [&](bool b_has_fewer, double tolerance) {
    return judge_direction({comparison, b_has_fewer}, tolerance);
  });
}

}  // namespace shardproof::sim::logprobs
