#include "comm/mesh_comm.h"

#include <algorithm>
#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.h"

namespace shardproof {

MeshComm::MeshComm(const Mesh& mesh, int64_t rank, BackendFactory factory, CallListener* listener)
    : mesh_(mesh), rank_(rank), factory_(std::move(factory)), listener_(listener) {
  SHARDPROOF_ASSERT(rank >= 0 && rank < mesh.world_size(), "a rank of this mesh");
}

Communicator& MeshComm::along(const std::string& axis) {
  if (Communicator* known = find(axis)) return *known;
  return group(axis, mesh_.peers_along(axis, rank_));
}

Communicator& MeshComm::along(const std::vector<std::string>& axes) {
  if (axes.size() == 1) return along(axes.front());
  std::string name;
  for (const std::string& axis : axes) name += (name.empty() ? "" : ",") + axis;
  if (Communicator* known = find(name)) return *known;
  return group(name, mesh_.peers_along(axes, rank_));
}

Communicator& MeshComm::world() {
  if (Communicator* known = find("world")) return *known;
  std::vector<int64_t> ranks(static_cast<size_t>(mesh_.world_size()));
  std::iota(ranks.begin(), ranks.end(), int64_t{0});
  return group("world", ranks);
}

Communicator& MeshComm::of_ranks(const std::string& name, const std::vector<int64_t>& ranks) {
  if (Communicator* known = find(name)) {
    SHARDPROOF_ASSERT(known->ranks() == global_ranks(ranks),
                      "a group of this name has these ranks");
    return *known;
  }
  return group(name, ranks);
}

std::vector<int64_t> MeshComm::global_ranks(const std::vector<int64_t>& ranks) const {
  std::vector<int64_t> in_world;
  for (const int64_t rank : ranks) in_world.push_back(first_rank_ + rank);
  return in_world;
}

MeshComm MeshComm::on_mesh(const std::string& name, const Mesh& mesh, int64_t first_rank) const {
  MeshComm other(mesh, rank_ - first_rank, factory_, listener_);
  other.prefix_ = prefix_ + name + ".";
  other.first_rank_ = first_rank_ + first_rank;
  return other;
}

Communicator* MeshComm::find(const std::string& name) const {
  const auto found = groups_.find(name);
  return found == groups_.end() ? nullptr : found->second.get();
}

Communicator& MeshComm::group(const std::string& name, const std::vector<int64_t>& ranks) {
  std::unique_ptr<Communicator>& slot = groups_[name];
  if (slot) return *slot;
  const auto found = std::find(ranks.begin(), ranks.end(), rank_);
  SHARDPROOF_ASSERT(found != ranks.end(), "a rank is a member of its own group");
  const std::vector<int64_t> in_world = global_ranks(ranks);
  const std::string full_name = prefix_ + name;
  c10::intrusive_ptr<c10d::Backend> backend;
  if (ranks.size() > 1) backend = factory_(full_name, in_world);
  slot = std::make_unique<Communicator>(full_name, in_world, found - ranks.begin(), backend,
                                        listener_);
  return *slot;
}

}  // namespace shardproof
