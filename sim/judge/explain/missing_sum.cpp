// Missing sums: the sum of the peers' values is the golden.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "sim/judge/diff/addends.h"
#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {
namespace {

using Groups = std::vector<Pieces>;

// Nats. Addends of a sum are seldom equal to the bit on all peers: the values are more likely too
// small by the number of peers, which propose_factor says.
constexpr double kEqualAddends = 2;

// The error that the sum, or the mean, of the peers' values leaves in all elements of all groups.
struct Combined {
  Explained sums;
  bool disjoint = true;  // at most one peer has a nonzero value where one is wrong
  bool equal = true;     // all peers have one value of each element
  double size = 1;       // of a group
  double allowance = 0;  // of the sum; within four of these a value is the golden

  bool convinces(double golden_size, double description) const {
    // The mean of values with errors of their own is nearer anyway, by the number of peers.
    constexpr double kNearer = 8;
    return sums.left * kNearer * size < sums.difference &&
           sums.convinces(allowance, golden_size, description);
  }
};

Combined combine(const Groups& groups, bool as_mean) {
  Combined out{.sums = {}, .size = static_cast<double>(groups.front().size())};
  out.allowance = groups.front().front()->allowance * std::sqrt(out.size);
  for (const Pieces& group : groups) {
    for_each_element(*group.front(), [&](int64_t, size_t local) {
      const double golden = group.front()->golden[local];
      double total = 0, square = 0;
      int not_zero = 0;
      const double first = group.front()->actual[local];
      for (const Piece* piece : group) {
        const double error = piece->actual[local] - golden;
        total += piece->actual[local];
        square += error * error / out.size;
        not_zero += piece->actual[local] != 0;
        out.equal = out.equal && piece->actual[local] == first;
      }
      const double held = golden + std::sqrt(square);  // as wrong as the peers are on average
      const double beside = (as_mean ? total / out.size : total) - golden;
      out.sums.add(held, golden, held - beside, out.allowance);
      out.disjoint = out.disjoint && (not_zero <= 1 || std::sqrt(square) <= out.allowance);
    });
  }
  return out;
}

// The groups of ranks that hold the same part of the tensor, whatever their axes.
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

// "dp", or "dp or ep (the same ranks)" where as many other axes or parts have the same peers.
std::string named(const Mesh& mesh, const std::vector<std::string>& axes) {
  std::string text = fmt::format("{}", fmt::join(axes, " x "));
  bool several = false;
  for (const std::vector<std::string>& others : sets_of_axes(mesh)) {
    bool same = others != axes && others.size() == axes.size();
    for (int64_t rank = 0; same && rank < mesh.world_size(); ++rank) {
      same = mesh.peers_along(others, rank) == mesh.peers_along(axes, rank);
    }
    if (same) text += fmt::format(" or {}", fmt::join(others, " x "));
    several = several || same;
  }
  return several ? text + " (the same ranks)" : text;
}

// The axes along which the ranks of each group are peers, else the ranks of the first group.
std::string axes_of_sharers(const Mesh& mesh, const Groups& sharers) {
  for (const std::vector<std::string>& axes : sets_of_axes(mesh)) {
    const bool are_peers = std::ranges::all_of(sharers, [&](const Pieces& group) {
      return ranks_of(group) == mesh.peers_along(axes, group.front()->rank);
    });
    if (are_peers) return named(mesh, axes);
  }
  for (const std::string& axis : mesh.names()) {
    std::set<int64_t> holders;  // the coordinates of the ranks of the first group
    const bool are_along = std::ranges::all_of(sharers, [&](const Pieces& group) {
      const std::vector<int64_t> ranks = ranks_of(group);
      const std::vector<int64_t> peers =
          mesh.peers_along(std::vector<std::string>{axis}, ranks.front());
      return std::includes(peers.begin(), peers.end(), ranks.begin(), ranks.end());
    });
    if (!are_along) continue;
    for (const Piece* piece : sharers.front()) holders.insert(mesh.coordinate(axis, piece->rank));
    return fmt::format("the ranks of {} that hold it ({} {})", axis, axis,
                       fmt::join(holders, ", "));
  }
  return fmt::format("the ranks that share a part ({})",
                     fmt::join(ranks_of(sharers.front()), ", "));
}

// Whether the layout declares the ranks of each group as equal copies.
bool declared_copies(const Symptoms& symptoms, const Groups& groups) {
  return std::ranges::all_of(groups, [&](const Pieces& group) {
    const auto row = std::ranges::find_if(symptoms.rows, [&](const ResultRow* candidate) {
      return candidate->rank == group.front()->rank;
    });
    if (row == symptoms.rows.end() || (*row)->partial) return false;
    return std::ranges::all_of(
        group, [&](const Piece* piece) { return (*row)->replicas.contains(piece->rank); });
  });
}

std::optional<Proposal> propose_groups(const Difference& difference, const Groups& groups,
                                       const std::string& over, double description) {
  if (groups.empty()) return std::nullopt;
  const Combined sum = combine(groups, false), mean = combine(groups, true);
  const bool is_sum = sum.sums.share() >= mean.sums.share();
  const Combined& best = is_sum ? sum : mean;
  description += std::log(best.size);  // each peer's values are a choice
  if (best.equal) description += kEqualAddends;
  if (!best.convinces(difference.golden_size, description)) return std::nullopt;
  const char* what = is_sum ? "sum" : "mean";
  std::string declared;
  if (declared_copies(difference.symptoms, groups)) {
    declared =
        fmt::format("must be equal over {}, but {}: ", over,
                    is_sum && best.disjoint ? "each rank holds a part of it and zeros (sharded)"
                                            : "the ranks hold addends (partial)");
  }
  return Proposal{.pattern = fmt::format("{}the {} of the ranks' values over {} is the golden",
                                         declared, what, over),
                  .likely = fmt::format("the {} over {} is missing", what, over),
                  .description = description}
      .explaining(best.sums, best.sums.wrong);
}

// Each rank has several tensors of one name, whose sum is the golden.
std::optional<Proposal> propose_two_of_a_name(const Difference& difference, const Groups& groups) {
  const Combined sum = combine(groups, false);
  if (!sum.convinces(difference.golden_size, 0)) return std::nullopt;
  return Proposal{.pattern = fmt::format("the sum of the {} tensors that a rank has under this "
                                         "name is the golden",
                                         groups.front().size()),
                  .likely = "a tied parameter became several, whose gradients are not summed"}
      .explaining(sum.sums, sum.sums.wrong);
}

}  // namespace

std::optional<Proposal> propose_missing_sum(const Difference& difference) {
  const Symptoms& symptoms = difference.symptoms;
  if (symptoms.pieces.empty()) return std::nullopt;
  const auto counts = [](const ResultRow* row) { return row->kind == ObservationKind::kStepCount; };
  if (std::ranges::any_of(symptoms.rows, counts)) return std::nullopt;
  const auto sets = sets_of_axes(symptoms.mesh);
  const double choice = std::log(2 * static_cast<double>(sets.size() + 1));  // a sum or a mean
  for (const std::vector<std::string>& axes : sets) {
    auto found = propose_groups(difference, peers_along(symptoms.mesh, axes, symptoms.pieces),
                                named(symptoms.mesh, axes),
                                choice + kAxisNamed * static_cast<double>(axes.size()));
    if (found) return found;
  }
  const Groups sharers = groups_of_sharers(symptoms);
  if (sharers.empty()) return std::nullopt;
  const auto all = [&](const auto& applies) { return std::ranges::all_of(sharers, applies); };
  if (all([](const Pieces& group) { return ranks_of(group).size() == 1; })) {
    return propose_two_of_a_name(difference, sharers);
  }
  if (!all([](const Pieces& group) { return ranks_of(group).size() == group.size(); })) {
    return std::nullopt;
  }
  return propose_groups(difference, sharers, axes_of_sharers(symptoms.mesh, sharers), choice);
}

}  // namespace shardproof::sim::judge
