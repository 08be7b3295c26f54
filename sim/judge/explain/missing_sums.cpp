#include "sim/judge/explain/missing_sums.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "sim/judge/diff/addends.h"
#include "sim/judge/evidence/explained.h"

namespace shardproof::sim {
namespace {

using Pieces = std::vector<const Piece*>;
using Groups = std::vector<Pieces>;

constexpr int64_t kFewestForSum = 8;  // for a sum that is only nearly the golden

bool same_part(const Piece& a, const Piece& b) {
  return a.dims == b.dims && a.actual.size() == b.actual.size();
}

// Over the wrong elements of all groups: what combinations of the peers' values leave. Elements
// that are right as they are refute a combination that does not give them.
struct Tally {
  double own = 0, sum = 0, mean = 0;  // sums of squares
  bool sum_exact = true, mean_exact = true;
  bool disjoint = true;  // at most one peer holds another value than 0
  bool far_off = false;  // what is nearly right explains nothing
  int64_t elements = 0;
  int64_t sum_refuted = 0, mean_refuted = 0;  // right elements that it does not give

  void add(const Pieces& group, double golden, size_t local) {
    const auto size = static_cast<double>(group.size());
    const double slack = 2 * size * group.front()->allowance;
    double total = 0, square = 0;
    int not_zero = 0;
    bool wrong = false;
    for (const Piece* piece : group) {
      const double error = piece->actual[local] - golden;
      total += piece->actual[local];
      square += error * error / size;
      not_zero += piece->actual[local] != 0;
      wrong = wrong || !(std::fabs(error) <= piece->allowance);
      far_off = far_off || std::fabs(error) > 8 * slack;
    }
    const bool is_sum = std::fabs(total - golden) <= slack;
    const bool is_mean = std::fabs(total / size - golden) <= slack;
    if (!wrong) {
      sum_refuted += !is_sum;
      mean_refuted += !is_mean;
      return;
    }
    ++elements;
    own += square;
    sum += (total - golden) * (total - golden);
    mean += (total / size - golden) * (total / size - golden);
    disjoint = disjoint && not_zero <= 1;
    sum_exact = sum_exact && is_sum;
    mean_exact = mean_exact && is_mean;
  }

  double share_of_sum() const { return share(sum, sum_exact, sum_refuted); }
  double share_of_mean() const { return share(mean, mean_exact, mean_refuted); }

 private:
  double share(double left, bool exact, int64_t refuted) const {
    const double most_refuted = (1 - kLeastExplained) * static_cast<double>(elements);
    if (!far_off || !(own > 0) || static_cast<double>(refuted) > most_refuted) return -1;
    const double share = 1 - left / own;
    if (exact && share >= kLeastExplained) return 1;
    return elements < kFewestForSum ? -1 : share;
  }
};

Tally tally_of(const Groups& groups) {
  Tally tally;
  for (const Pieces& group : groups) {
    for_each_element(*group.front(), [&](int64_t, size_t local) {
      tally.add(group, group.front()->golden[local], local);
    });
  }
  return tally;
}

// Peers along `axes` that hold the same part, per microbatch; empty when some are not there.
Groups groups_along(const Symptoms& symptoms, const std::vector<std::string>& axes) {
  std::map<std::pair<int64_t, int64_t>, Pieces> by_leader;
  for (const Piece* piece : symptoms.pieces) {
    const int64_t leader = symptoms.mesh.peers_along(axes, piece->rank).front();
    by_leader[{leader, piece->microbatch}].push_back(piece);
  }
  size_t size = 1;
  for (const std::string& axis : axes) size *= static_cast<size_t>(symptoms.mesh.size(axis));
  Groups groups;
  for (auto& [key, group] : by_leader) {
    if (group.size() != size) return {};
    for (const Piece* piece : group) {
      if (!same_part(*piece, *group.front())) return {};
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

// Ranks that hold the same part of the tensor, whatever axes they lie on.
Groups groups_of_sharers(const Symptoms& symptoms) {
  std::map<std::pair<int64_t, std::vector<std::vector<int64_t>>>, Pieces> by_part;
  for (const Piece* piece : symptoms.pieces) {
    by_part[{piece->microbatch, piece->dims}].push_back(piece);
  }
  Groups groups;
  for (auto& [key, group] : by_part) {
    if (group.size() < 2) return {};
    groups.push_back(std::move(group));
  }
  return groups;
}

// How many ranks hold the pieces of the group.
size_t rank_count(const Pieces& group) {
  std::set<int64_t> ranks;
  for (const Piece* piece : group) ranks.insert(piece->rank);
  return ranks.size();
}

std::string ranks_text(const Pieces& group) {
  std::vector<int64_t> ranks;
  for (const Piece* piece : group) ranks.push_back(piece->rank);
  return fmt::format("{}", fmt::join(ranks, ", "));
}

// Whether the layout says that the ranks of each group hold equal copies.
bool declared_copies(const Symptoms& symptoms, const Groups& groups) {
  return std::all_of(groups.begin(), groups.end(), [&](const Pieces& group) {
    const auto row = std::find_if(
        symptoms.rows.begin(), symptoms.rows.end(),
        [&](const ResultRow* candidate) { return candidate->rank == group.front()->rank; });
    if (row == symptoms.rows.end() || (*row)->partial) return false;
    const std::vector<int64_t>& copies = (*row)->replicas;
    return std::all_of(group.begin(), group.end(), [&](const Piece* piece) {
      return std::find(copies.begin(), copies.end(), piece->rank) != copies.end();
    });
  });
}

std::optional<Explanation> explain_groups(const Symptoms& symptoms, const Groups& groups,
                                          const std::string& over,
                                          const std::string& on_which_ranks) {
  if (groups.empty()) return std::nullopt;
  const Tally tally = tally_of(groups);
  const double as_sum = tally.share_of_sum();
  const double as_mean = tally.share_of_mean();
  if (std::max(as_sum, as_mean) < kLeastExplained) return std::nullopt;
  const bool sum = as_sum >= as_mean;
  std::string declared;
  if (declared_copies(symptoms, groups)) {
    const bool parts = sum && tally.disjoint;
    declared = fmt::format("declared replicated over {}, but {}: ", over,
                           parts ? "each rank holds a part of it and zeros (sharded)"
                                 : "the ranks hold addends (partial)");
  }
  const char* what = sum ? "sum" : "mean";
  return Explanation{fmt::format("{}the {} of the ranks' values over {} is the golden, {}",
                                 declared, what, over, on_which_ranks),
                     fmt::format("the {} over {} is missing", what, over), sum ? as_sum : as_mean};
}

// Several tensors of one name on each rank, whose sum is the golden.
std::optional<Explanation> explain_two_of_a_name(const Groups& groups,
                                                 const std::string& on_which_ranks) {
  const Tally tally = tally_of(groups);
  const double share = tally.share_of_sum();
  if (share < kLeastExplained) return std::nullopt;
  return Explanation{fmt::format("the sum of the {} tensors that a rank has under this name is the "
                                 "golden, {}",
                                 groups.front().size(), on_which_ranks),
                     "a tied parameter became several, whose gradients are not summed", share};
}

// All sets of axes that are longer than 1, single ones first.
std::vector<std::vector<std::string>> sets_of_axes(const Mesh& mesh) {
  std::vector<std::vector<std::string>> sets = {{}};
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size == 1) continue;
    for (size_t i = sets.size(); i-- > 0;) {
      sets.push_back(sets[i]);
      sets.back().push_back(axis.name);
    }
  }
  std::stable_sort(sets.begin(), sets.end(),
                   [](const auto& a, const auto& b) { return a.size() < b.size(); });
  sets.erase(sets.begin());
  return sets;
}

bool is_whole(const Piece& piece) {
  bool any = false;
  for (size_t i = 0; i < piece.actual.size(); ++i) {
    if (!(std::fabs(piece.actual[i] - piece.golden[i]) <= piece.allowance)) return false;
    any = any || std::fabs(piece.golden[i]) > piece.allowance;
  }
  return any;
}

// The one addend of a group that, left out or counted twice, makes the sum right: whose it is, and
// whether it counts too often; none when nothing fits.
struct OddAddend {
  int64_t rank = -1;
  bool too_often = false;
};

std::optional<OddAddend> odd_addend(const Pieces& group) {
  for (const double sign : {-1.0, 1.0}) {
    for (const Piece* odd : group) {
      bool fits = true, matters = false;
      for (size_t i = 0; fits && i < odd->actual.size(); ++i) {
        double sum = sign * odd->actual[i];
        for (const Piece* piece : group) sum += piece->actual[i];
        const double slack = 2 * static_cast<double>(group.size()) * odd->allowance;
        fits = std::fabs(sum - odd->golden[i]) <= slack;
        matters = matters || std::fabs(odd->actual[i]) > 8 * slack;
      }
      if (fits && matters) return OddAddend{odd->rank, sign < 0};
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Explanation> explain_missing_sum(const Symptoms& symptoms,
                                               const std::string& on_which_ranks) {
  if (symptoms.pieces.empty()) return std::nullopt;
  for (const std::vector<std::string>& axes : sets_of_axes(symptoms.mesh)) {
    const std::string over = fmt::format("{}", fmt::join(axes, " x "));
    auto found = explain_groups(symptoms, groups_along(symptoms, axes), over, on_which_ranks);
    if (found) return found;
  }
  const Groups sharers = groups_of_sharers(symptoms);
  if (sharers.empty()) return std::nullopt;
  const auto all = [&](const auto& applies) {
    return std::all_of(sharers.begin(), sharers.end(), applies);
  };
  if (all([](const Pieces& group) { return rank_count(group) == 1; })) {
    return explain_two_of_a_name(sharers, on_which_ranks);
  }
  if (!all([](const Pieces& group) { return rank_count(group) == group.size(); })) {
    return std::nullopt;
  }
  const std::string over =
      fmt::format("the ranks that share a part ({})", ranks_text(sharers.front()));
  return explain_groups(symptoms, sharers, over, on_which_ranks);
}

std::optional<Explanation> explain_addends(const Mesh& mesh, const std::string& axes,
                                           const Pieces& pieces) {
  std::map<std::pair<int64_t, int64_t>, Pieces> groups;
  for (const Piece* piece : pieces) {
    const int64_t leader = mesh.peers_along(piece->partial_axes, piece->rank).front();
    groups[{leader, piece->microbatch}].push_back(piece);
  }
  if (std::all_of(pieces.begin(), pieces.end(),
                  [](const Piece* piece) { return is_whole(*piece); })) {
    return Explanation{fmt::format("declared partial over {}, but each rank holds the whole value "
                                   "(replicated)",
                                   axes),
                       fmt::format("what is summed over {} was whole already", axes)};
  }
  for (const auto& [key, group] : groups) {
    if (group.size() < 2) return std::nullopt;
    for (const Piece* piece : group) {
      if (!same_part(*piece, *group.front())) return std::nullopt;
    }
    const std::optional<OddAddend> odd = odd_addend(group);
    if (!odd) continue;
    return Explanation{
        fmt::format("the sum over {} is the golden {} the addend of rank {}", axes,
                    odd->too_often ? "without" : "with twice", odd->rank),
        fmt::format("the part of rank {} counts {}", odd->rank,
                    odd->too_often ? "though another rank's stands for it" : "once too little")};
  }
  return std::nullopt;
}

}  // namespace shardproof::sim
