// Values that one file rounded through a dtype coarser than the one that it keeps them in.
//
// A value of float32 that was not rounded is a number of bfloat16 in one of 65536 cases, and one of
// float16 in one of 8192. So a file whose values all are went through that dtype.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sim/uses/logprobs/causes.h"

namespace shardproof::sim::logprobs {
namespace {

// The least share of the other file's values that the dtype does not hold.
constexpr double kLeastUnrounded = 0.5;

struct Coarse {
  const char* name;
  int bits;               // of the significand
  double least;           // normal number; the steps below it are those of it
  double nats_per_value;  // of a float32 that it holds by chance
};

constexpr std::array<Coarse, 2> kCoarse = {
    {{"bfloat16", 8, 0x1p-126, 16 * 0.693147}, {"float16", 11, 0x1p-14, 13 * 0.693147}}};

double step_at(double value, const Coarse& dtype) {
  return std::exp2(std::floor(std::log2(std::max(std::abs(value), dtype.least))) + 1 - dtype.bits);
}

bool holds(const Coarse& dtype, double value) {
  const double steps = value / step_at(value, dtype);
  return steps == std::round(steps);
}

// How many of a file's values are not 0, and how many of these the dtype does not hold.
struct Values {
  double all = 0, unrounded = 0;
};

Values values_of(const Pair& pair, double Token::*value, const Coarse& dtype) {
  Values values;
  for (const Token& token : pair.tokens) {
    if (token.*value == 0) continue;
    values.all += 1;
    values.unrounded += holds(dtype, token.*value) ? 0 : 1;
  }
  return values;
}

bool is_rounded(const Values& one, const Values& other) {
  return one.all > 0 && one.unrounded == 0 && other.unrounded >= kLeastUnrounded * other.all;
}

struct Rounded {
  Coarse dtype;
  bool b;  // the file that is rounded; else A
  double values;
};

std::optional<Rounded> find_rounded(const Pair& pair) {
  // Float16 last: a number of bfloat16 in its range is one of float16, too.
  for (const Coarse& dtype : kCoarse) {
    if (pair.epsilon >= std::exp2(1 - dtype.bits)) continue;
    const Values a = values_of(pair, &Token::a, dtype), b = values_of(pair, &Token::b, dtype);
    if (is_rounded(a, b)) return Rounded{dtype, false, a.all};
    if (is_rounded(b, a)) return Rounded{dtype, true, b.all};
  }
  return std::nullopt;
}

std::string text_of(const Rounded& rounded) {
  return fmt::format("each of the {:.0f} values of {} that are not 0 is a number of {}",
                     rounded.values, rounded.b ? "B" : "A", rounded.dtype.name);
}

// The differences are those of a computation in the dtype that the values went through. That says
// less than any cause that names a place or the values, so it gains just what a claim needs.
std::optional<Claim> propose_computed(const Comparison& comparison, const Rounded& rounded) {
  const double noise = noise_of(std::exp2(1 - rounded.dtype.bits));
  if (!comparison.is_noise(comparison.differences, noise)) return std::nullopt;
  double sum = 0;
  for (size_t i = 0; i < comparison.differences.size(); ++i) {
    sum += comparison.size_of(comparison.differences[i], i);
  }
  const double mean = sum / static_cast<double>(comparison.differences.size());
  const double description = std::log(4);
  return Claim{.cause = "rounded",
               .text = fmt::format("{}, and the files differ by what a computation in it does: by "
                                   "{:.2g} of 1 + |logprob| in the mean, where its noise is at "
                                   "most {:.2g}",
                                   text_of(rounded), mean, kMeanNoise * noise),
               .likely = fmt::format("{} was computed in {}: compute its log_softmax in float32, "
                                     "or name the dtype of the computation in its metadata",
                                     rounded.b ? "B" : "A", rounded.dtype.name),
               .description = description,
               .gained = kChanceNats + description,
               .share = 1,
               .leaves_noise = true};
}

}  // namespace

std::string rounded_text(const Pair& pair) {
  const auto rounded = find_rounded(pair);
  return rounded ? text_of(*rounded) : "";
}

std::optional<Claim> propose_rounded(const Comparison& comparison) {
  const Pair& pair = comparison.pair;
  const auto rounded = find_rounded(pair);
  if (!rounded || comparison.is_noise(comparison.differences)) return std::nullopt;
  // What half a step of the rounding cannot explain.
  std::vector<double> remaining;
  double left = 0;
  for (size_t i = 0; i < pair.tokens.size(); ++i) {
    const Token& token = pair.tokens[i];
    const double half = step_at(rounded->b ? token.a : token.b, rounded->dtype) / 2;
    remaining.push_back(std::max(std::abs(comparison.differences[i]) - half, 0.0));
    left += remaining.back() * remaining.back();
  }
  if (!comparison.is_noise(remaining)) return propose_computed(comparison, *rounded);
  const char *coarse = rounded->b ? "B" : "A", *fine = rounded->b ? "A" : "B";
  return Claim{.cause = "rounded",
               .text = fmt::format("{}, and no value is further from that of {} than half a step "
                                   "of {}",
                                   text_of(*rounded), fine, rounded->dtype.name),
               .likely = fmt::format("the logprobs of {} were rounded to {} before they were saved "
                                     "in {}; keep them in float32 from log_softmax on",
                                     coarse, rounded->dtype.name, pair.dtype),
               .description = std::log(4),
               .gained = rounded->values * rounded->dtype.nats_per_value,
               .share = 1 - left / comparison.squared,
               .leaves_noise = true};
}

}  // namespace shardproof::sim::logprobs
