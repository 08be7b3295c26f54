// Sums over ranks that hold other parts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {
namespace {

Explained explained_by(const std::vector<Pieces>& groups, double factor) {
  Explained sums;
  for (const Pieces& group : groups) {
    const double allowance = group.front()->allowance * std::sqrt(group.size());
    for (size_t i = 0; i < group.front()->golden.size(); ++i) {
      double sum = 0;
      for (const Piece* piece : group) sum += piece->golden[i];
      for (const Piece* piece : group)
        sums.add(piece->actual[i], piece->golden[i], factor * sum, allowance);
    }
  }
  return sums;
}

}  // namespace

std::optional<Proposal> propose_sum_of_parts(const Difference& difference) {
  const Symptoms& symptoms = difference.symptoms;
  const auto sets = sets_of_axes(symptoms.mesh);
  for (const std::vector<std::string>& axes : sets) {
    const std::vector<Pieces> groups = parts_along(symptoms.mesh, axes, symptoms.pieces);
    if (groups.empty()) continue;
    const double description = std::log(2 * static_cast<double>(sets.size())) +
                               kAxisNamed * static_cast<double>(axes.size());
    const std::string over = fmt::format("{}", fmt::join(axes, " x "));
    for (const bool is_mean : {false, true}) {
      const double factor = is_mean ? 1 / static_cast<double>(groups.front().size()) : 1;
      const Explained sums = explained_by(groups, factor);
      if (!sums.convinces(difference.allowance, difference.golden_size, description)) continue;
      const char* what = is_mean ? "mean" : "sum";
      return Proposal{.pattern = fmt::format("each element is the {} of the golden's over {}, "
                                             "whose ranks hold other parts of the tensor",
                                             what, over),
                      .likely = fmt::format("the {} goes over {}, which cuts the tensor, in place "
                                            "of the ranks that hold the same part, or is written "
                                            "into an input that is used again",
                                            what, over),
                      .description = description}
          .explaining(sums, sums.wrong);
    }
  }
  return std::nullopt;
}

}  // namespace shardproof::sim::judge
