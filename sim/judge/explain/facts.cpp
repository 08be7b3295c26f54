// Certain errors: those that the rank itself reported, and non-finite values.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/count_of.h"
#include "sim/judge/diff/evidence.h"
#include "sim/judge/explain/hypotheses.h"
#include "sim/judge/explain/wording.h"

namespace shardproof::sim::judge {

std::optional<Proposal> propose_problem(const Difference& difference) {
  std::map<std::string, Rows> by_problem;
  for (const ResultRow* row : difference.wrong) {
    if (!row->problem.empty()) by_problem[row->problem].push_back(row);
  }
  if (by_problem.empty()) return std::nullopt;
  const auto most = std::ranges::max_element(
      by_problem, [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  Proposal out{.pattern = most->first, .ranks = ranks_of(most->second)};
  if (out.ranks != difference.ranks) out.detail = kOthersDiffer;
  return out;
}

std::optional<Proposal> propose_non_finite(const Difference& difference) {
  Rows rows;
  for (const ResultRow* row : difference.wrong) {
    if (!std::isfinite(row->actual_value)) rows.push_back(row);
  }
  if (rows.empty()) return std::nullopt;
  const std::vector<int64_t> ranks = ranks_of(rows);
  size_t nan = 0, infinite = 0, count = 0;
  for (const Piece* piece : difference.symptoms.pieces) {
    if (!std::binary_search(ranks.begin(), ranks.end(), piece->rank)) continue;
    count += piece->actual.size();
    for (const double value : piece->actual) {
      nan += std::isnan(value);
      infinite += std::isinf(value);
    }
  }
  return Proposal{.pattern = count == 0
                                 ? fmt::format("{}", rows.front()->actual_value)
                                 : fmt::format("{} NaN and {} infinite of {}", nan, infinite,
                                               count_of(static_cast<int64_t>(count), "element")),
                  .likely = "an overflow, a division by zero, or memory that was never filled",
                  .ranks = ranks};
}

namespace {

// The approximate number of other tensors that a rank compares with its own.
constexpr double kTensorsTried = 256, kOthersTried = 8;

double description_of(const Evidence& evidence) {
  if (std::holds_alternative<ShareOfUpdate>(evidence)) return kFreeNumber;
  return std::log(std::holds_alternative<EqualsTensor>(evidence) ? kTensorsTried : kOthersTried);
}

// The rows that found the same evidence, of ranks whose wrong rows all found it.
Rows holders_of(const Evidence& evidence, const Rows& wrong) {
  std::set<int64_t> others;
  for (const ResultRow* row : wrong) {
    const auto& found = row->evidence;
    if (std::ranges::find(found, evidence) == found.end()) others.insert(row->rank);
  }
  Rows rows = wrong;
  std::erase_if(rows, [&](const ResultRow* row) { return others.contains(row->rank); });
  return rows;
}

Proposal proposal_of(const Evidence& evidence, const Rows& rows, const Difference& difference) {
  Proposal out{.pattern = text_of(evidence),
               .description = description_of(evidence),
               .ranks = ranks_of(rows)};
  if (const auto* update = std::get_if<ShareOfUpdate>(&evidence)) {
    const std::string size = size_of_factor(difference.symptoms.mesh, update->share);
    if (!size.empty()) out.detail = fmt::format("; {:.3g} is{}", update->share, size.substr(1));
  }
  if (out.ranks != difference.ranks) out.detail += kOthersDiffer;
  double count = 0;
  for (const ResultRow* row : rows) {
    count += static_cast<double>(std::max<int64_t>(row->bad_count, 1));
  }
  out.covered = count / difference.wrong_count;
  return out;
}

}  // namespace

std::optional<Proposal> propose_found_out(const Difference& difference) {
  std::optional<Proposal> best;
  for (const ResultRow* row : difference.wrong) {
    for (const Evidence& evidence : row->evidence) {
      if (text_of(evidence).empty()) continue;
      const Rows rows = holders_of(evidence, difference.wrong);
      if (rows.empty()) continue;
      Proposal found = proposal_of(evidence, rows, difference);
      const bool better = !best || found.covered > best->covered ||
                          (found.covered == best->covered && found.description < best->description);
      if (better) best = std::move(found);
    }
  }
  return best;
}

}  // namespace shardproof::sim::judge
