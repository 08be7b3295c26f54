#include "sim/judge/explain/wording.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/count_of.h"

namespace shardproof::sim::judge {

std::string ranks_clause(const Mesh& mesh, const std::vector<int64_t>& ranks,
                         const std::vector<int64_t>& among) {
  if (mesh.world_size() == 1) return "on the one rank";
  if (ranks.size() == static_cast<size_t>(mesh.world_size())) return "on all ranks";
  const size_t shown = std::min<size_t>(ranks.size(), 8);
  std::string list = fmt::format("{}", fmt::join(ranks.begin(), ranks.begin() + shown, ", "));
  if (ranks.size() > 8) list += fmt::format(" and {} more", ranks.size() - 8);
  if (ranks.size() == 1 && among == ranks) return "on rank " + list + ", its only holder";
  std::string clause = ranks.size() == 1 ? "on rank " + list + " only" : "on ranks " + list;
  for (const std::string& axis : mesh.names()) {
    if (ranks.empty()) continue;
    const int64_t coordinate = mesh.coordinate(axis, ranks.front());
    std::vector<int64_t> there;
    for (const int64_t rank : among) {
      if (mesh.coordinate(axis, rank) == coordinate) there.push_back(rank);
    }
    if (there == ranks && there.size() < among.size()) {
      return clause + fmt::format(" ({} {})", axis, coordinate);
    }
  }
  return clause;
}

bool is_near_one(double factor) { return factor != 1 && std::fabs(factor - 1) < 1e-4; }

std::string times_nearly_one(double factor) {
  return fmt::format("(1 {} {:.2g})", factor < 1 ? '-' : '+', std::fabs(factor - 1));
}

std::string size_of_factor(const Mesh& mesh, double factor) {
  constexpr double kNear = 1e-3;
  const auto is = [&](double other) { return std::fabs(factor - other) < kNear * other; };
  std::string sizes, inverses;
  for (const MeshAxis& axis : mesh.axes()) {
    const auto size = static_cast<double>(axis.size);
    if (axis.size == 1 || (!is(size) && !is(1 / size))) continue;
    std::string& names = is(size) ? sizes : inverses;
    names += fmt::format("{} the size of {}", names.empty() ? "" : " and", axis.name);
  }
  return !sizes.empty() ? "," + sizes : inverses.empty() ? "" : ", 1 over" + inverses;
}

std::string factor_text(double factor) {
  const double inverse = 1 / factor;
  if (is_near_one(factor)) return times_nearly_one(factor);
  if (std::fabs(factor) < 1 &&
      std::fabs(inverse - std::round(inverse)) < 1e-4 * std::fabs(inverse)) {
    return fmt::format("{:.6g} (1/{:.0f})", factor, inverse);
  }
  const bool whole = std::fabs(factor - std::round(factor)) < 1e-6;
  return whole ? fmt::format("{:.2f}", factor) : fmt::format("{:.6g}", factor);
}

std::string rounding_note(Precision precision) {
  return fmt::format("if the same case matches in float64, this is rounding in {}", precision);
}

Explanation words_for_copies(size_t count, const std::string& which, bool are_right) {
  return {fmt::format("{} different copies where one belongs{}", count, which),
          are_right ? "each rank computed or reduced it on its own: the values are right, the bits "
                      "differ"
                    : "each rank computed or reduced it on its own, or a sum over these ranks is "
                      "missing: its values could not be judged in this precision"};
}

Explanation words_for_absence(const Mesh& mesh, const std::vector<int64_t>& ranks,
                              const std::vector<int64_t>& microbatches) {
  std::vector<int64_t> all(static_cast<size_t>(mesh.world_size()));
  std::iota(all.begin(), all.end(), 0);
  const bool outside = ranks.back() >= mesh.world_size();  // a policy's refit
  std::string where = outside ? "on " + ranks_text(ranks) : ranks_clause(mesh, ranks, all);
  if (!microbatches.empty()) {
    where += fmt::format(" in microbatch{} {}", microbatches.size() == 1 ? "" : "es",
                         fmt::join(microbatches, ", "));
  }
  return {fmt::format("it was not observed {}", where),
          "what makes it did not run there, or its probe is left out"};
}

Explanation words_for_lacking_addend(const std::string& lack, const std::string& axes) {
  return {fmt::format("an addend is missing: {}", lack),
          fmt::format("these ranks take no part in what is summed over {}, or declare it otherwise",
                      axes)};
}

std::string words_for_empty_addends(const std::vector<int64_t>& ranks) {
  const bool several = ranks.size() > 1;
  return fmt::format("; the addend{} of {} {} 0 everywhere", several ? "s" : "", ranks_text(ranks),
                     several ? "are" : "is");
}

}  // namespace shardproof::sim::judge
