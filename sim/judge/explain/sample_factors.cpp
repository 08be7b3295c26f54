// A separate factor for each sample, or for each expert.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {
namespace {

// The factor of each row of the first dim, NaN where none fits, and 1 where the row is right.
struct RowFactors {
  std::vector<double> factors;
  Explained sums;
};

std::optional<RowFactors> factors_of_rows(const Assembled& tensor) {
  RowFactors out;
  const Walk walk = walk_along(tensor.shape, 0);
  for (int64_t row = 0; row < walk.size; ++row) {
    FactorSums sums;
    bool wrong = false;
    const auto begin = static_cast<size_t>(row * walk.inner);
    const auto end = begin + static_cast<size_t>(walk.inner);
    for (size_t e = begin; e < end; ++e) {
      if (!tensor.known[e]) continue;
      wrong = wrong || tensor.is_wrong(e);
      sums.add(tensor.actual[e], tensor.golden[e]);
    }
    out.factors.push_back(1);
    if (!wrong) continue;
    if (sums.count < 4 || !sums.fits(0.1)) return std::nullopt;
    const double factor = sums.factor();
    out.factors.back() = factor;
    for (size_t e = begin; e < end; ++e) {
      if (!tensor.known[e]) continue;
      out.sums.add(tensor.actual[e], tensor.golden[e], factor * tensor.golden[e], tensor.allowance);
    }
  }
  return out;
}

}  // namespace

std::optional<Proposal> propose_sample_factors(const Assembled& tensor, const Mesh& /*mesh*/) {
  const bool experts = tensor.has_experts();
  if (!tensor.token_dims && !experts) return std::nullopt;
  if (tensor.shape.size() < 2 || tensor.shape[0] < 2) return std::nullopt;
  const std::optional<RowFactors> rows = factors_of_rows(tensor);
  if (!rows) return std::nullopt;
  const std::vector<double>& factors = rows->factors;
  const bool is_common = std::all_of(factors.begin(), factors.end(), [&](double factor) {
    return std::fabs(factor - factors.front()) <= 1e-5 * std::fabs(factor);
  });
  if (is_common) return std::nullopt;  // a common factor is another hypothesis
  const size_t shown = std::min<size_t>(factors.size(), 8);
  const double choices = kFreeNumber * static_cast<double>(factors.size());
  if (experts && !rows->sums.exact) return std::nullopt;
  if (!rows->sums.convinces(tensor.allowance, tensor.golden_size, choices)) return std::nullopt;
  return Proposal{
      .pattern = fmt::format("each {} is a multiple of the golden's, of its own: {:.4g}{}",
                             experts ? "expert" : "sample",
                             fmt::join(factors.begin(), factors.begin() + shown, ", "),
                             shown < factors.size() ? " .." : ""),
      .likely = experts
                    ? "an expert is scaled by something of its own, such as the number of ranks "
                      "whose tokens chose it, where one number for all experts is due"
                    : "samples are weighted by something of their own sample, microbatch or rank "
                      "where the global batch's belongs, or count more than once",
      .description = choices,
      .parameters = factors}
      .explaining(rows->sums, tensor.wrong);
}

}  // namespace shardproof::sim::judge
