// Which ranks belong together.
#include <algorithm>
#include <map>
#include <set>
#include <type_traits>
#include <utility>

#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {
namespace {

template <class Held>
std::vector<int64_t> ranks_in(const std::vector<const Held*>& all) {
  std::set<int64_t> ranks;
  for (const Held* one : all) ranks.insert(one->rank);
  return {ranks.begin(), ranks.end()};
}

// The pieces of all peers along `axes` that have one key; empty when some are absent, or when two
// of a group have other sizes or do not fit.
template <class KeyOf, class Fits>
std::vector<Pieces> groups_along(const Mesh& mesh, const std::vector<std::string>& axes,
                                 const Pieces& pieces, const KeyOf& key_of, const Fits& fits) {
  std::map<std::pair<int64_t, std::invoke_result_t<KeyOf, const Piece&>>, Pieces> by_leader;
  for (const Piece* piece : pieces) {
    by_leader[{mesh.peers_along(axes, piece->rank).front(), key_of(*piece)}].push_back(piece);
  }
  int64_t size = 1;
  for (const std::string& axis : axes) size *= mesh.size(axis);
  std::vector<Pieces> groups;
  for (auto& [key, group] : by_leader) {
    if (std::ssize(group) != size) return {};
    for (size_t i = 0; i < group.size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        if (group[i]->actual.size() != group[k]->actual.size() || !fits(*group[i], *group[k]))
          return {};
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace

std::vector<int64_t> ranks_of(const Rows& rows) { return ranks_in(rows); }

std::vector<int64_t> ranks_of(const Pieces& pieces) { return ranks_in(pieces); }

std::vector<int64_t> ranks_that_hold(const Symptoms& symptoms) {
  Rows rows = symptoms.rows;
  std::erase_if(rows, [](const ResultRow* row) {
    return std::ranges::find(row->local_shape, 0) != row->local_shape.end();
  });
  return ranks_of(rows);
}

std::set<int64_t> holders_on_pp(const Symptoms& symptoms) {
  std::set<int64_t> holders;
  const bool is_gradient = std::ranges::any_of(
      symptoms.rows, [](const ResultRow* row) { return row->kind == ObservationKind::kGradient; });
  if (!is_gradient) return holders;  // an activation is on the ranks that make it
  for (const int64_t rank : ranks_that_hold(symptoms)) {
    if (rank < symptoms.mesh.world_size()) holders.insert(symptoms.mesh.coordinate("pp", rank));
  }
  return holders;
}

std::vector<int64_t> spoken_of(const Symptoms& symptoms, const std::vector<int64_t>& ranks) {
  if (symptoms.summed_axes.empty()) return ranks;
  std::set<int64_t> all;
  for (const int64_t rank : ranks) {
    for (const int64_t peer : symptoms.mesh.peers_along(symptoms.summed_axes, rank)) {
      all.insert(peer);
    }
  }
  return {all.begin(), all.end()};
}

std::vector<std::vector<std::string>> sets_of_axes(const Mesh& mesh) {
  std::vector<std::vector<std::string>> sets = {{}};
  for (const std::string& axis : mesh.names()) {
    for (size_t i = sets.size(); i-- > 0;) {
      sets.push_back(sets[i]);
      sets.back().push_back(axis);
    }
  }
  std::ranges::stable_sort(sets, [](const auto& a, const auto& b) { return a.size() < b.size(); });
  sets.erase(sets.begin());
  return sets;
}

std::vector<Pieces> peers_along(const Mesh& mesh, const std::vector<std::string>& axes,
                                const Pieces& pieces) {
  return groups_along(
      mesh, axes, pieces, [](const Piece& piece) { return piece.microbatch; },
      [](const Piece& piece, const Piece& first) { return piece.dims == first.dims; });
}

std::vector<Pieces> parts_along(const Mesh& mesh, const std::vector<std::string>& axes,
                                const Pieces& pieces) {
  std::map<std::pair<int64_t, int64_t>, int64_t> numbers;  // of rank and microbatch
  return groups_along(
      mesh, axes, pieces,
      [&](const Piece& piece) {
        return std::pair(piece.microbatch, numbers[{piece.rank, piece.microbatch}]++);
      },
      [](const Piece& piece, const Piece& other) { return piece.dims != other.dims; });
}

}  // namespace shardproof::sim::judge
