// The choice among the proposals of all hypotheses.
#include "sim/judge/explain/diagnose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "sim/judge/evidence/explained.h"
#include "sim/judge/explain/hypotheses.h"
#include "sim/judge/explain/wording.h"

namespace shardproof::sim::judge {
namespace {

constexpr double kMostLeft = 32;  // allowances that a cause leaves in float64

bool leaves_an_error(const Difference& difference, const Proposal& proposal) {
  return difference.symptoms.precision == Precision::kFloat64 && proposal.share >= 0 &&
         proposal.share < 1 && difference.allowance > 0 &&
         !(proposal.left <= kMostLeft * difference.allowance);
}

double score_of(const Difference& difference, const Proposal& proposal) {
  const double each = nats_of_element(proposal.left, difference.allowance, difference.golden_size);
  return each * proposal.covered * difference.wrong_count - proposal.description;
}

Explanation in_words(const Difference& difference, const Proposal& proposal) {
  const std::vector<int64_t>& ranks =
      proposal.ranks.empty() ? difference.with_values : proposal.ranks;
  const Symptoms& symptoms = difference.symptoms;
  std::string pattern = proposal.pattern;
  if (!proposal.names_ranks) {
    pattern += " " + ranks_clause(symptoms.mesh, spoken_of(symptoms, ranks),
                                  spoken_of(symptoms, ranks_that_hold(symptoms)));
  }
  pattern += proposal.detail;
  const std::string share = explained_text(proposal.share);
  if (!share.empty()) pattern += "; " + share;
  if (!leaves_an_error(difference, proposal)) return {pattern, proposal.likely};
  pattern +=
      fmt::format(", and the rest is {:.1g} times what rounding may leave: not the cause alone",
                  proposal.left / difference.allowance);
  return {pattern, ""};
}

std::optional<Explanation> best_claim(const Difference& difference,
                                      std::span<const Propose> hypotheses) {
  std::vector<std::pair<double, Proposal>> claims;
  for (const Propose propose : hypotheses) {
    auto found = propose(difference);
    if (found) claims.emplace_back(score_of(difference, *found), std::move(*found));
  }
  if (claims.empty()) return std::nullopt;
  std::ranges::stable_sort(claims, [](const auto& a, const auto& b) { return a.first > b.first; });
  Explanation best = in_words(difference, claims.front().second);
  if (leaves_an_error(difference, claims.front().second)) return best;
  std::string& end = best.likely.empty() ? best.pattern : best.likely;
  for (size_t i = 1; i < claims.size(); ++i) {
    const auto& [score, other] = claims[i];
    if (score < claims.front().first - kAsGood) break;
    if (leaves_an_error(difference, other)) continue;
    end += "; or " + (other.likely.empty() ? other.pattern : other.likely);
  }
  return best;
}

Explanation words_for_place(const Difference& difference) {
  const auto where = on_each_copy<propose_where>(difference);
  return where ? in_words(difference, *where) : words_by_size(difference);
}

}  // namespace

Difference::Difference(const Symptoms& s) : symptoms(s), first_copies(assemble(s.pieces)) {
  std::set<int64_t> senders;
  for (const Piece* piece : symptoms.pieces) senders.insert(piece->rank);
  for (const ResultRow* row : symptoms.rows) {
    if (!row->is_wrong()) continue;
    wrong.push_back(row);
    wrong_count += static_cast<double>(std::max<int64_t>(row->bad_count, 1));
    allowance = std::max(allowance, row->allowance);
    golden_size = std::max(golden_size, row->golden_scale);
  }
  ranks = ranks_of(wrong);
  std::set_intersection(ranks.begin(), ranks.end(), senders.begin(), senders.end(),
                        std::back_inserter(with_values));
  if (!first_copies) return;
  golden_size = first_copies->golden_size;
  if (first_copies->copies_differ) {
    last_copies = assemble({symptoms.pieces.rbegin(), symptoms.pieces.rend()});
  }
}

Proposal&& Proposal::explaining(const Explained& sums, int64_t wrong) && {
  const auto spoken_of = static_cast<double>(std::max<int64_t>(sums.wrong, 1));
  share = sums.share();
  covered = spoken_of / static_cast<double>(std::max<int64_t>(wrong, 1));
  left = std::sqrt(sums.left / spoken_of);
  return std::move(*this);
}

Explanation explain_values(const Symptoms& symptoms) {
  const Difference difference(symptoms);
  if (difference.wrong.empty()) return {};
  for (const Propose propose : kFacts) {
    if (const auto fact = propose(difference)) return in_words(difference, *fact);
  }
  const auto routes = propose_routes(difference);
  if (auto claim = best_claim(difference, kHypotheses)) {
    if (routes) claim->pattern += "; " + routes->pattern;
    return *claim;
  }
  if (routes) return in_words(difference, *routes);
  return words_for_place(difference);
}

Explanation explain_received(const Symptoms& symptoms, int64_t first) {
  std::vector<ResultRow> rows;
  std::vector<Piece> pieces;
  for (const ResultRow* row : symptoms.rows) rows.emplace_back(*row).rank -= first;
  for (const Piece* piece : symptoms.pieces) pieces.emplace_back(*piece).rank -= first;
  Symptoms own{symptoms.mesh, symptoms.precision, {}, {}};
  for (const ResultRow& row : rows) own.rows.push_back(&row);
  for (const Piece& piece : pieces) own.pieces.push_back(&piece);
  const Difference difference(own);
  if (difference.wrong.empty()) return {};
  const auto claim = best_claim(difference, kOfReceived);
  Explanation why = claim ? *claim : words_for_place(difference);
  if (own.mesh.world_size() > 1) {
    why.pattern += fmt::format(" (rank 0 of those that a refit reaches is rank {})", first);
  }
  return why;
}

constexpr double kRoundingsApart = 4;  // that one value computed in two ways may differ by

Explanation explain_replicas(const Symptoms& symptoms) {
  std::map<uint64_t, std::vector<int64_t>> by_digest;
  for (const ResultRow* row : symptoms.rows) {
    std::vector<int64_t>& ranks = by_digest[row->digest];
    if (ranks.empty() || ranks.back() != row->rank) ranks.push_back(row->rank);
  }
  std::vector<std::vector<int64_t>> camps;
  for (const auto& [digest, ranks] : by_digest) camps.push_back(ranks);
  std::ranges::sort(camps, [](const auto& a, const auto& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  const std::vector<int64_t> all = ranks_of(symptoms.rows);
  const auto clause = [&](const std::vector<int64_t>& ranks) {
    return ranks_clause(symptoms.mesh, ranks, all);
  };
  std::string which;
  if (camps.size() > 1 && camps[0].size() < camps[1].size()) {
    which = (camps[0].size() > 1 ? "; the odd ones " : "; the odd one ") + clause(camps[0]);
  } else {  // nothing tells which of them is right
    constexpr size_t kNamed = 3;
    for (size_t i = 0; i < std::min(camps.size(), kNamed); ++i) {
      which += (i == 0 ? ": one " : ", one ") + clause(camps[i]);
    }
    if (camps.size() > kNamed) which += fmt::format(" and {} more", camps.size() - kNamed);
  }
  const bool are_right = std::ranges::all_of(
      symptoms.rows, [](const ResultRow* row) { return row->outcome == Outcome::kMatch; });
  Explanation out = words_for_copies(camps.size(), which, are_right);
  // Copies that lie elsewhere beside the golden than others are not roundings of one value.
  const auto [nearest, farthest] =
      std::ranges::minmax(symptoms.rows, {}, [](const ResultRow* row) { return row->worst_error; });
  const double apart = farthest->worst_error - nearest->worst_error;
  const double scale = farthest->golden_scale;
  if (are_right && symptoms.precision != Precision::kFloat64 && scale > 0 &&
      apart > kRoundingsApart * eps_of_precision(symptoms.precision) * scale) {
    out.likely = fmt::format(
        "a rank computed another value, or a sum over these ranks is missing: their errors beside "
        "the golden differ by {:.2g} of the tensor's scale, each within its allowance",
        apart / scale);
  }
  return out;
}

}  // namespace shardproof::sim::judge
