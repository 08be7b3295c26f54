#include "sim/uses/recorded/last_right.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "sim/judge/diff/result_row.h"

namespace shardproof::sim::recorded {
namespace {

using Name = std::tuple<int64_t, Phase, std::string>;  // with its step

Name name_of(const judge::ResultRow& row) { return {row.step, row.phase, row.name}; }

judge::GoldenPosition stage_of(const judge::ResultRow& row) {
  return judge::golden_position(row.step, row.phase,
                                place_in_phase(row.phase, row.kind, row.global_shape.empty()));
}

// When the rank computed the tensor; unset when not known.
std::map<Name, int64_t> orders_of(const RecordedRun& run, int64_t rank) {
  std::map<Name, int64_t> orders;
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.rank == rank && piece.order >= 0) {
      orders.emplace(Name{piece.step, piece.phase, piece.name}, piece.order);
    }
  }
  return orders;
}

}  // namespace

std::string last_right(const RecordedRun& run, const std::vector<judge::RankReport>& reports,
                       const judge::Divergence& found) {
  const judge::ResultRow& finding = found.worst;
  const auto rank = static_cast<size_t>(finding.rank);
  if (found.ranks.empty() || finding.order < 0 || rank >= reports.size()) return "";
  const std::map<Name, int64_t> orders = orders_of(run, finding.rank);
  const auto order_of = [&](const judge::ResultRow& row) {
    const auto known = orders.find(name_of(row));
    return known == orders.end() ? -1 : known->second;
  };
  std::set<Name> wrong;
  for (const judge::ResultRow& row : reports[rank].rows) {
    if (row.outcome != judge::Outcome::kMatch || row.partial) wrong.insert(name_of(row));
  }
  const auto here = std::pair(stage_of(finding), order_of(finding));
  std::optional<std::pair<judge::GoldenPosition, int64_t>> latest;
  const judge::ResultRow* last = nullptr;
  for (const judge::ResultRow& row : reports[rank].rows) {
    if (row.step == 0 || wrong.contains(name_of(row))) continue;
    const auto there = std::pair(stage_of(row), order_of(row));
    const bool same_stage = there.first == here.first;
    if (same_stage && (there.second < 0 || here.second < 0)) continue;
    if (!(there < here) || (latest && there < *latest)) continue;
    latest = there;
    last = &row;
  }
  if (!last) return "";
  return last->step == finding.step ? last->name
                                    : fmt::format("{} of step {}", last->name, last->step);
}

}  // namespace shardproof::sim::recorded
