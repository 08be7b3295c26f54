// Which ranks belong together.
#include <algorithm>
#include <map>
#include <set>

#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {
namespace {

template <class Held>
std::vector<int64_t> ranks_in(const std::vector<const Held*>& all) {
  std::set<int64_t> ranks;
  for (const Held* one : all) ranks.insert(one->rank);
  return {ranks.begin(), ranks.end()};
}

}  // namespace

std::vector<int64_t> ranks_of(const Rows& rows) { return ranks_in(rows); }

std::vector<int64_t> ranks_of(const Pieces& pieces) { return ranks_in(pieces); }

std::vector<int64_t> ranks_that_hold(const Symptoms& symptoms) {
  Rows rows = symptoms.rows;
  std::erase_if(rows, [](const ResultRow* row) {
    return std::find(row->local_shape.begin(), row->local_shape.end(), 0) != row->local_shape.end();
  });
  return ranks_of(rows);
}

std::set<int64_t> holders_on_pp(const Symptoms& symptoms) {
  std::set<int64_t> holders;
  const bool is_gradient =
      std::any_of(symptoms.rows.begin(), symptoms.rows.end(),
                  [](const ResultRow* row) { return row->kind == ObservationKind::kGradient; });
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
  std::stable_sort(sets.begin(), sets.end(),
                   [](const auto& a, const auto& b) { return a.size() < b.size(); });
  sets.erase(sets.begin());
  return sets;
}

std::vector<Pieces> peers_along(const Mesh& mesh, const std::vector<std::string>& axes,
                                const Pieces& pieces) {
  std::map<std::pair<int64_t, int64_t>, Pieces> by_leader;
  for (const Piece* piece : pieces) {
    by_leader[{mesh.peers_along(axes, piece->rank).front(), piece->microbatch}].push_back(piece);
  }
  int64_t size = 1;
  for (const std::string& axis : axes) size *= mesh.size(axis);
  std::vector<Pieces> groups;
  for (auto& [key, group] : by_leader) {
    const Piece& first = *group.front();
    const bool same_part = std::all_of(group.begin(), group.end(), [&](const Piece* piece) {
      return piece->dims == first.dims && piece->actual.size() == first.actual.size();
    });
    if (static_cast<int64_t>(group.size()) != size || !same_part) return {};
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace shardproof::sim::judge
