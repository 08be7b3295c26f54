// A product or a sum that is off by the size of an axis, to which a right vector was added: a
// linear's output before its bias.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {

std::optional<Proposal> propose_factor_before_bias(const Assembled& tensor, const Mesh& mesh) {
  if (tensor.shape.size() < 2 || tensor.shape.back() < 2) return std::nullopt;
  const auto sets = sets_of_axes(mesh);
  for (const std::vector<std::string>& axes : sets) {
    int64_t size = 1;
    for (const std::string& axis : axes) size *= mesh.size(axis);
    for (const bool is_sum : {true, false}) {
      const double factor = is_sum ? static_cast<double>(size) : 1 / static_cast<double>(size);
      const std::vector<double> beside = vector_beside(tensor, factor).mean;
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
