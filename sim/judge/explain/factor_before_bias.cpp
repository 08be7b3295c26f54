// A product or a sum that is off by the size of an axis, to which a right vector was added: a
// linear's output before its bias.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {
namespace {

constexpr int64_t kFewestRowsOfBias = 4;

// The mean of actual - factor * golden over the rows, for each column; empty with too few rows.
std::vector<double> vector_beside(const Assembled& tensor, double factor) {
  const auto columns = static_cast<size_t>(tensor.shape.back());
  std::vector<double> mean(columns, 0);
  std::vector<int64_t> rows(columns, 0);
  for (size_t e = 0; e < tensor.actual.size(); ++e) {
    if (!tensor.known[e]) continue;
    mean[e % columns] += tensor.actual[e] - factor * tensor.golden[e];
    ++rows[e % columns];
  }
  if (*std::min_element(rows.begin(), rows.end()) < kFewestRowsOfBias) return {};
  for (size_t c = 0; c < columns; ++c) mean[c] /= static_cast<double>(rows[c]);
  return mean;
}

Explained explained_by(const Assembled& tensor, double factor, const std::vector<double>& beside) {
  Explained sums;
  for (size_t e = 0; e < tensor.actual.size(); ++e) {
    if (!tensor.known[e]) continue;
    sums.add(tensor.actual[e], tensor.golden[e],
             factor * tensor.golden[e] + beside[e % beside.size()], tensor.allowance);
  }
  return sums;
}

}  // namespace

std::optional<Proposal> propose_factor_before_bias(const Assembled& tensor, const Mesh& mesh) {
  if (tensor.shape.size() < 2 || tensor.shape.back() < 2) return std::nullopt;
  const auto sets = sets_of_axes(mesh);
  for (const std::vector<std::string>& axes : sets) {
    int64_t size = 1;
    for (const std::string& axis : axes) size *= mesh.size(axis);
    for (const bool is_sum : {true, false}) {
      const double factor = is_sum ? static_cast<double>(size) : 1 / static_cast<double>(size);
      const std::vector<double> beside = vector_beside(tensor, factor);
      if (beside.empty()) return std::nullopt;
      const Explained sums = explained_by(tensor, factor, beside);
      const double description = kFreeNumber * static_cast<double>(beside.size()) +
                                 std::log(2 * static_cast<double>(sets.size())) +
                                 kAxisNamed * static_cast<double>(axes.size());
      if (!sums.convinces(tensor.allowance, tensor.golden_size, description)) continue;
      const std::string over = fmt::format("{}", fmt::join(axes, " x "));
      return Proposal{
          .pattern = fmt::format("{} x golden plus one vector of {}, the same on all rows; {} is "
                                 "the size of {}",
                                 is_sum ? fmt::format("{}", size) : fmt::format("1/{}", size),
                                 beside.size(), size, over),
          .likely =
              fmt::format("what stands before the bias is {} over {}",
                          is_sum ? "summed once too often" : "averaged, and not summed,", over),
          .description = description,
          .parameters = {factor}}
          .explaining(sums, tensor.wrong);
    }
  }
  return std::nullopt;
}

}  // namespace shardproof::sim::judge
