#include "mesh/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "mesh/cut.h"

namespace shardproof {
namespace {

// For each rank a number that is equal for ranks with equal copies.
std::vector<int64_t> piece_keys(const std::vector<Cut>& cuts, const Mesh& mesh) {
  std::vector<int64_t> keys(static_cast<size_t>(mesh.world_size()));
  for (const Cut& cut : cuts) {
    const int64_t size = mesh.size(cut.axis);
    const std::vector<int64_t> coordinates = mesh.coordinates(cut.axis);
    for (size_t rank = 0; rank < keys.size(); ++rank) {
      keys[rank] = keys[rank] * size + piece_of(cut, size, coordinates[rank]);
    }
  }
  return keys;
}

}  // namespace

bool Layout::cuts_dim(int64_t dim) const {
  return std::any_of(cuts_.begin(), cuts_.end(), [&](const Cut& cut) { return cut.dim == dim; });
}

Layout Layout::resolved(int64_t dim_count) const {
  Layout out = *this;
  for (Cut& cut : out.cuts_) {
    const int64_t dim = cut.dim < 0 ? cut.dim + dim_count : cut.dim;
    if (dim < 0 || dim >= dim_count) {
      throw_bad_input(fmt::format("the cut {} names dim {} of a tensor with {} dims",
                                  describe_cut(cut), cut.dim, dim_count),
                      "correct the layout");
    }
    cut.dim = dim;
  }
  return out;
}

std::vector<int64_t> Layout::indices(int64_t dim, int64_t global_size, const Mesh& mesh,
                                     int64_t rank) const {
  SHARDPROOF_ASSERT(global_size >= 0, fmt::format("a dim of size {}", global_size));
  std::vector<int64_t> kept(static_cast<size_t>(global_size));
  std::iota(kept.begin(), kept.end(), 0);
  for (const Cut& cut : cuts_) {
    if (cut.dim != dim) continue;
    kept = apply_cut(cut, kept, mesh.size(cut.axis), mesh.coordinate(cut.axis, rank));
  }
  return kept;
}

std::vector<int64_t> Layout::local_shape(const std::vector<int64_t>& global_shape, const Mesh& mesh,
                                         int64_t rank) const {
  const auto dim_count = static_cast<int64_t>(global_shape.size());
  const Layout layout = resolved(dim_count);
  std::vector<int64_t> shape = global_shape;
  for (int64_t dim = 0; dim < dim_count; ++dim) {
    if (!layout.cuts_dim(dim)) continue;
    shape[dim] = static_cast<int64_t>(layout.indices(dim, shape[dim], mesh, rank).size());
  }
  return shape;
}

std::vector<std::vector<int64_t>> Layout::replica_groups(const Mesh& mesh) const {
  std::vector<std::vector<int64_t>> groups;
  std::map<int64_t, size_t> group_of_key;
  for (int64_t rank = 0; const int64_t key : piece_keys(cuts_, mesh)) {
    const auto [it, is_new] = group_of_key.emplace(key, groups.size());
    if (is_new) groups.emplace_back();
    groups[it->second].push_back(rank++);
  }
  return groups;
}

std::vector<int64_t> Layout::replicas_of(const Mesh& mesh, int64_t rank) const {
  SHARDPROOF_ASSERT(rank >= 0 && rank < mesh.world_size(),
                    fmt::format("rank {} of {}", rank, mesh.describe()));
  const std::vector<int64_t> keys = piece_keys(cuts_, mesh);
  std::vector<int64_t> replicas;
  for (int64_t other = 0; other < mesh.world_size(); ++other) {
    if (keys[other] == keys[rank]) replicas.push_back(other);
  }
  return replicas;
}

std::string Layout::describe() const {
  if (cuts_.empty()) return "R";
  std::string text;
  for (const Cut& cut : cuts_) text += (text.empty() ? "" : " ") + describe_cut(cut);
  return text;
}

}  // namespace shardproof
