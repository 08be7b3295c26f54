#include "sim/judge/explain/shared_findings.h"

#include <algorithm>
#include <set>

#include "sim/judge/diff/wording.h"

namespace shardproof::sim {
namespace {

// Rows of one kind of finding, and on which ranks that is.
struct Shared {
  Rows rows;
  std::string clause;  // "on ranks 1, 3 (tp 1)"
  bool is_all = true;  // of the wrong ranks
};

Shared shared_by(const Symptoms& symptoms, const Rows& wrong, const Rows& rows) {
  Shared out{rows, clause_of(symptoms, rows), ranks_of(rows) == ranks_of(wrong)};
  if (!out.is_all) out.clause += "; the other wrong ranks are wrong in another way";
  return out;
}

// The most rows that agree with each other in what `found` gives for them, null for nothing.
template <class Found>
Rows largest_agreement(const Rows& wrong, const Found& found) {
  Rows largest;
  for (const ResultRow* first : wrong) {
    const auto* of_first = found(*first);
    if (of_first == nullptr) continue;
    Rows alike;
    for (const ResultRow* row : wrong) {
      const auto* of_row = found(*row);
      if (of_row != nullptr && *of_row == *of_first) alike.push_back(row);
    }
    if (alike.size() > largest.size()) largest = alike;
  }
  return largest;
}

// A rank counts as holding something only when every wrong row of it does.
Rows of_whole_ranks(const Rows& wrong, const Rows& rows) {
  std::set<int64_t> partly;
  for (const ResultRow* row : wrong) {
    if (std::find(rows.begin(), rows.end(), row) == rows.end()) partly.insert(row->rank);
  }
  Rows out;
  for (const ResultRow* row : rows) {
    if (!partly.contains(row->rank)) out.push_back(row);
  }
  return out;
}

// What every wrong rank found out, all of them the same.
template <class Kind>
Shared holders_of(const Symptoms& symptoms, const Rows& wrong) {
  const Rows rows = largest_agreement(wrong, [](const ResultRow& row) -> const Kind* {
    for (const Evidence& evidence : row.evidence) {
      if (const Kind* found = std::get_if<Kind>(&evidence)) return found;
    }
    return nullptr;
  });
  return shared_by(symptoms, wrong, of_whole_ranks(wrong, rows));
}

template <class Kind>
std::optional<Explanation> explanation_of(const Shared& shared) {
  for (const Evidence& evidence : shared.rows.front()->evidence) {
    if (!std::holds_alternative<Kind>(evidence)) continue;
    return Explanation{text_of(evidence) + " " + shared.clause, ""};
  }
  return std::nullopt;
}

template <class Kind>
std::optional<Explanation> explain_by_evidence(const Symptoms& symptoms, const Rows& wrong) {
  const Shared shared = holders_of<Kind>(symptoms, wrong);
  if (shared.rows.empty() || !shared.is_all) return std::nullopt;
  return explanation_of<Kind>(shared);
}

template <class... Kinds>
std::optional<Explanation> explain_by_first_evidence(const Symptoms& symptoms, const Rows& wrong) {
  std::optional<Explanation> found;
  ((found = found ? found : explain_by_evidence<Kinds>(symptoms, wrong)), ...);
  return found;
}

// What some of the wrong ranks found out.
template <class... Kinds>
std::optional<Explanation> explain_of_some(const Symptoms& symptoms, const Rows& wrong) {
  std::optional<Explanation> found;
  const auto look = [&]<class Kind>(Kind*) {
    const Shared shared = holders_of<Kind>(symptoms, wrong);
    if (!found && !shared.rows.empty()) found = explanation_of<Kind>(shared);
  };
  (look(static_cast<Kinds*>(nullptr)), ...);
  return found;
}

}  // namespace

std::vector<int64_t> ranks_of(const Rows& rows) {
  std::set<int64_t> ranks;
  for (const ResultRow* row : rows) ranks.insert(row->rank);
  return {ranks.begin(), ranks.end()};
}

std::string clause_of(const Symptoms& symptoms, const Rows& rows) {
  return ranks_clause(symptoms.mesh, ranks_of(rows), ranks_of(symptoms.rows));
}

std::optional<Explanation> explain_problem(const Symptoms& symptoms, const Rows& wrong) {
  const Rows rows = largest_agreement(
      wrong, [](const ResultRow& row) { return row.problem.empty() ? nullptr : &row.problem; });
  if (rows.empty()) return std::nullopt;
  return Explanation{rows.front()->problem + " " + shared_by(symptoms, wrong, rows).clause, ""};
}

std::optional<Explanation> explain_another_step(const Symptoms& symptoms, const Rows& wrong) {
  return explain_by_first_evidence<EqualsStep, PartEqualsStep, SumOfSteps>(symptoms, wrong);
}

std::optional<Explanation> explain_another_tensor(const Symptoms& symptoms, const Rows& wrong) {
  return explain_by_first_evidence<EqualsTensor>(symptoms, wrong);
}

std::optional<Explanation> explain_narrow_dtype(const Symptoms& symptoms, const Rows& wrong) {
  return explain_by_first_evidence<ValuesOf, AddendsThrough>(symptoms, wrong);
}

std::optional<Explanation> explain_share_of_update(const Symptoms& symptoms, const Rows& wrong) {
  return explain_by_first_evidence<ShareOfUpdate>(symptoms, wrong);
}

std::optional<Explanation> explain_some_ranks(const Symptoms& symptoms, const Rows& wrong) {
  return explain_of_some<EqualsStep, PartEqualsStep, SumOfSteps, EqualsTensor, ValuesOf,
                         AddendsThrough, ShareOfUpdate>(symptoms, wrong);
}

}  // namespace shardproof::sim
