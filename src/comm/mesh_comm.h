// The communicators of one rank on a mesh: one per axis (or set of axes), made on first use.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "mesh/mesh.h"

namespace shardproof {

// Makes this rank's end of the group `name` with these global ranks; every member calls it.
using BackendFactory = std::function<c10::intrusive_ptr<c10d::Backend>(
    const std::string& name, const std::vector<int64_t>& ranks)>;

class MeshComm {
 public:
  MeshComm(const Mesh& mesh, int64_t rank, BackendFactory factory, CallListener* listener);

  const Mesh& mesh() const { return mesh_; }
  int64_t rank() const { return rank_; }
  Communicator& along(const std::string& axis);               // "tp", or as in mesh.h: "dp+cp%4"
  Communicator& along(const std::vector<std::string>& axes);  // {"dp", "cp"}; one as above
  Communicator& world();
  // Any ranks of the mesh, including this one, in this order.
  Communicator& of_ranks(const std::string& name, const std::vector<int64_t>& ranks);

  // This rank on another mesh in the same world, whose rank r is rank first_rank + r of this mesh.
  // Groups are named "<name>.tp", so that their calls are counted separately.
  MeshComm on_mesh(const std::string& name, const Mesh& mesh, int64_t first_rank = 0) const;

 private:
  Communicator* find(const std::string& name) const;  // null: not yet made
  Communicator& group(const std::string& name, const std::vector<int64_t>& ranks);
  std::vector<int64_t> global_ranks(const std::vector<int64_t>& ranks) const;

  Mesh mesh_;
  int64_t rank_;  // on this mesh
  BackendFactory factory_;
  CallListener* listener_;
  std::string prefix_ = {};  // of group names
  int64_t first_rank_ = 0;   // the world's rank that is rank 0 of the mesh
  std::map<std::string, std::unique_ptr<Communicator>> groups_;
};

}  // namespace shardproof
