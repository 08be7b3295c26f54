// Declared addends whose sum is wrong: each is a copy of the whole, or one is too many.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {
namespace {

double slack_of(const Pieces& group) {
  return 2 * static_cast<double>(group.size()) * group.front()->allowance;
}

double sum_at(const Pieces& group, size_t element) {
  double sum = 0;
  for (const Piece* piece : group) sum += piece->actual[element];
  return sum;
}

bool is_whole(const Piece& piece) {
  bool any = false;
  for (size_t i = 0; i < piece.actual.size(); ++i) {
    if (!(std::fabs(piece.actual[i] - piece.golden[i]) <= piece.allowance)) return false;
    any = any || std::fabs(piece.golden[i]) > piece.allowance;
  }
  return any;
}

// Whether the sum becomes the golden when the addend `odd` is added `more` times.
bool is_golden_with(const Pieces& group, const Piece& odd, double more) {
  for (size_t i = 0; i < odd.actual.size(); ++i) {
    const double sum = sum_at(group, i) + more * odd.actual[i];
    if (!(std::fabs(sum - odd.golden[i]) <= slack_of(group))) return false;
  }
  return true;
}

// The rank whose addend is not negligible and makes the sum right when it is added `more` times; -1
// when there is none.
int64_t odd_rank(const Pieces& group, double more) {
  for (const Piece* odd : group) {
    const bool matters = std::ranges::any_of(
        odd->actual, [&](double value) { return std::fabs(value) > 8 * slack_of(group); });
    if (matters && is_golden_with(group, *odd, more)) return odd->rank;
  }
  return -1;
}

std::optional<Proposal> propose_odd_addend(const std::vector<Pieces>& groups,
                                           const std::string& axes, double more) {
  std::vector<int64_t> odd;
  Pieces all;
  for (const Pieces& group : groups) {
    odd.push_back(odd_rank(group, more));
    if (odd.back() < 0) return std::nullopt;
    all.insert(all.end(), group.begin(), group.end());
  }
  const std::string whose =
      fmt::format("{} {}", odd.size() > 1 ? "ranks" : "rank", fmt::join(odd, ", "));
  return Proposal{
      .pattern = fmt::format("the sum over {} is the golden {} the addend of {}", axes,
                             more < 0 ? "without" : "with twice", whose),
      .likely = fmt::format("the part of {} counts {}", whose,
                            more < 0 ? "though another rank's stands for it" : "once too little"),
      .description = std::log(2.0 * static_cast<double>(groups.front().size())),
      .ranks = ranks_of(all)};
}

}  // namespace

std::optional<Proposal> propose_addends(const Difference& difference) {
  const Pieces& addends = difference.symptoms.addends;
  if (addends.empty()) return std::nullopt;
  const std::string axes = fmt::format("{}", fmt::join(addends.front()->partial_axes, ", "));
  if (std::ranges::all_of(addends, [](const auto* piece) { return is_whole(*piece); })) {
    return Proposal{.pattern = fmt::format("declared partial over {}, but each rank holds the "
                                           "whole value (replicated)",
                                           axes),
                    .likely = fmt::format("what is summed over {} was whole already", axes),
                    .ranks = ranks_of(addends)};
  }
  std::vector<Pieces> groups =
      peers_along(difference.symptoms.mesh, addends.front()->partial_axes, addends);
  std::erase_if(groups, [](const Pieces& g) { return is_golden_with(g, *g.front(), 0); });
  if (groups.empty()) return std::nullopt;
  auto found = propose_odd_addend(groups, axes, -1);
  return found ? found : propose_odd_addend(groups, axes, 1);
}

}  // namespace shardproof::sim::judge
