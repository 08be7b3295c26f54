// The evidence that wrong ranks found with the whole golden (sim/judge/evidence/look.h).
#include <algorithm>
#include <cmath>
#include <set>

#include "sim/judge/diff/wording.h"
#include "sim/judge/explain/hypotheses.h"
#include "sim/judge/explain/wording.h"

namespace shardproof::sim::judge {
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
    if (std::find(found.begin(), found.end(), evidence) == found.end()) others.insert(row->rank);
  }
  Rows rows = wrong;
  std::erase_if(rows, [&](const ResultRow* row) { return others.contains(row->rank); });
  return rows;
}

Proposal proposal_of(const Evidence& evidence, const Rows& rows, const Difference& difference) {
  Proposal out{.pattern = text_of(evidence),
               .description = description_of(evidence),
               .ranks = ranks_of(rows)};
  if (out.ranks != difference.ranks) out.detail = kOthersDiffer;
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
