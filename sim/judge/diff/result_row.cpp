#include "sim/judge/diff/result_row.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "sim/judge/diff/evidence.h"

namespace shardproof::sim::judge {
namespace {

nlohmann::json json_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

nlohmann::json texts_of(const std::vector<Evidence>& evidence) {
  nlohmann::json texts = nlohmann::json::array();
  for (const Evidence& one : evidence) texts.push_back(text_of(one));
  return texts;
}

// How far from a match, whatever the ratio.
std::pair<int, bool> severity(const ResultRow& row) {
  const int outcome = row.is_wrong()                        ? 3
                      : row.outcome == Outcome::kMatch      ? 0
                      : row.outcome == Outcome::kUnresolved ? 1
                                                            : 2;
  return {outcome, !row.problem.empty()};
}

double sortable_ratio(const ResultRow& row) {
  return std::isnan(row.worst_ratio) ? std::numeric_limits<double>::infinity() : row.worst_ratio;
}

}  // namespace

const ResultRow& worst_row(const std::vector<const ResultRow*>& rows) {
  const auto size = [](const ResultRow* row) {
    return std::pair(severity(*row), sortable_ratio(*row));
  };
  const auto largest = size(*std::ranges::max_element(
      rows, [&](const ResultRow* a, const ResultRow* b) { return size(a) < size(b); }));
  return **std::ranges::find_if(rows, [&](const ResultRow* row) {
    const auto [kind, ratio] = size(row);
    return kind == largest.first && ratio * kEqualRatios >= largest.second;
  });
}

nlohmann::json to_json(const ResultRow& row) {
  return {{"name", row.name},
          {"phase", phase_name(row.phase)},
          {"step", row.step},
          {"microbatch", row.microbatch},
          {"rank", row.rank},
          {"order", row.order},
          {"outcome", name_of(row.outcome)},
          {"reason", row.reason},
          {"rounding_only", row.rounding_only},
          {"count", row.count},
          {"judged", row.judged},
          {"padding", row.padding},
          {"undrawn", row.undrawn},
          {"bad_count", row.bad_count},
          {"worst_ratio", json_number(row.worst_ratio)},
          {"worst_error", json_number(row.worst_error)},
          {"golden_value", json_number(row.golden_value)},
          {"actual_value", json_number(row.actual_value)},
          {"allowance", json_number(row.allowance)},
          {"golden_scale", json_number(row.golden_scale)},
          {"worst_global_index", row.worst_global_index},
          {"worst_local_index", row.worst_local_index},
          {"global_shape", row.global_shape},
          {"local_shape", row.local_shape},
          {"factor", json_number(row.factor)},
          {"factor_residual", json_number(row.factor_residual)},
          {"dtype", row.dtype},
          {"layout", row.layout},
          {"site", row.site},
          {"replicas", row.replicas.ranks()},
          {"digest", row.digest},
          {"problem", row.problem},
          {"calls_before", row.calls_before},
          {"partial", row.partial},
          {"partial_axes", row.partial_axes},
          {"tokens", row.tokens},
          {"compares_replicas", row.compares_replicas},
          {"covered", row.covered},
          {"coverage_of_all", row.coverage_of_all},
          {"evidence", texts_of(row.evidence)}};
}

}  // namespace shardproof::sim::judge
