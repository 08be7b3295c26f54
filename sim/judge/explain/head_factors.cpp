// Each token's heads of attention are the golden's, each times a factor of its own: they are sums
// of the right values, divided by another sum of weights.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {
namespace {

constexpr int64_t kFewestChannels = 4;  // of a head

struct HeadFactors {
  double least = std::numeric_limits<double>::infinity(), greatest = 0;
  int64_t wrong = 0;  // heads
  Explained sums;
};

// Unset where a wrong head is not a positive multiple of the golden's.
std::optional<HeadFactors> factors_of_heads(const Assembled& tensor, size_t channels) {
  HeadFactors out;
  for (size_t begin = 0; begin < tensor.actual.size(); begin += channels) {
    FactorSums sums;
    bool is_wrong = false;
    for (size_t e = begin; e < begin + channels; ++e) {
      if (!tensor.known[e]) continue;
      is_wrong = is_wrong || tensor.is_wrong(e);
      sums.add(tensor.actual[e], tensor.golden[e]);
    }
    if (!is_wrong) continue;
    const double factor = sums.factor();
    if (sums.count < kFewestChannels || !(factor > 0)) return std::nullopt;
    out.least = std::min(out.least, factor);
    out.greatest = std::max(out.greatest, factor);
    ++out.wrong;
    for (size_t e = begin; e < begin + channels; ++e) {
      if (!tensor.known[e]) continue;
      out.sums.add(tensor.actual[e], tensor.golden[e], factor * tensor.golden[e], tensor.allowance);
    }
    if (!out.sums.exact) return std::nullopt;
  }
  return out;
}

std::string likely_sum(const HeadFactors& factors) {
  if (factors.greatest < 1) {
    return "the weights are divided by too large a sum: a sink or a block of keys counts more than "
           "once in it, or another head's sink does";
  }
  if (factors.least > 1) {
    return "the weights are divided by too small a sum: a sink or a block of keys is not in it, or "
           "another head's sink is";
  }
  return "the weights are divided by another sum: a sink is that of another head, or a block of "
         "keys is weighted by a sum that is not its own";
}

}  // namespace

std::optional<Proposal> propose_head_factors(const Assembled& tensor, const Mesh& /*mesh*/) {
  if (!tensor.name.ends_with(".attention.output") || tensor.shape.size() != 3) return std::nullopt;
  const int64_t width = tensor.shape.back();
  std::optional<HeadFactors> factors;
  int64_t channels = width;  // the most with which it fits
  for (; channels >= kFewestChannels && !factors; --channels) {
    if (width % channels == 0) factors = factors_of_heads(tensor, static_cast<size_t>(channels));
  }
  if (!factors || factors->wrong < 2) return std::nullopt;
  if (factors->greatest - factors->least <= 1e-5 * factors->greatest) return std::nullopt;
  const double choices =
      kFreeNumber * static_cast<double>(factors->wrong) + std::log(static_cast<double>(width));
  if (!factors->sums.convinces(tensor.allowance, tensor.golden_size, choices)) return std::nullopt;
  return Proposal{.pattern = fmt::format("each token's head is a multiple of the golden's, of its "
                                         "own, from {:.4g} to {:.4g}: {} heads of tokens",
                                         factors->least, factors->greatest, factors->wrong),
                  .likely = likely_sum(*factors),
                  .description = choices,
                  .parameters = {factors->least, factors->greatest}}
      .explaining(factors->sums, tensor.wrong);
}

}  // namespace shardproof::sim::judge
