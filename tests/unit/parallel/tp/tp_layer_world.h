// Tensors and worlds for the tests of whole tensor-parallel layers: full tensors from a seed, every
// group size on the emulated world and over Gloo, also where a group does not start at rank 0.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "parallel/tp/layer_parameter.h"
#include "tests/support/rank_results.h"
#include "tests/support/run_gloo_ranks.h"

namespace shardproof::tests {

// Copies `full` into what it is asked to fill: a weight that the test knows.
inline InitMethod filled_with(const at::Tensor& full) {
  return [full](const at::Tensor& values) { at::Tensor(values).copy_(full); };
}

inline std::vector<NamedResults> on_every_gloo_rank(
    const Mesh& mesh, const std::function<NamedResults(MeshComm&, int64_t)>& work) {
  std::vector<NamedResults> results(static_cast<size_t>(mesh.world_size()));
  run_gloo_ranks(mesh, [&](MeshComm& comm, int64_t rank) {
    results[static_cast<size_t>(rank)] = work(comm, rank);
  });
  return results;
}

// `work` gives "name" -> tensor of one rank of the tp group; `check` sees the ranks of each group
// in their order. Groups of 1, 2, 3 and 4, the second of them from rank tp on.
inline void on_every_group(
    const std::vector<int64_t>& sizes, const std::function<NamedResults(Communicator& tp)>& work,
    const std::function<void(const std::vector<NamedResults>& group)>& check) {
  for (const int64_t tp : sizes) {
    const Mesh mesh({{"dp", 2}, {"tp", tp}});
    const auto body = [&](MeshComm& comm, int64_t) { return work(comm.along("tp")); };
    for (const auto& results : {on_every_rank(mesh, body), on_every_gloo_rank(mesh, body)}) {
      for (const int64_t first : {int64_t{0}, tp}) {
        check({results.begin() + first, results.begin() + first + tp});
      }
    }
  }
}

// What an Error says and its kind: "refused: .."; "" where nothing is thrown.
template <class Call>
std::string said_by(const Call& call) {
  try {
    call();
    return "";
  } catch (const Error& error) {
    return (error.kind() == ErrorKind::kRefused ? "refused: " : "bad input: ") +
           std::string(error.what());
  }
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// This rank's part of dim, cut evenly in each block.
inline at::Tensor part_at(const at::Tensor& full, int64_t dim, size_t rank, size_t size,
                          const std::vector<int64_t>& blocks) {
  std::vector<at::Tensor> pieces;
  int64_t start = 0;
  for (const int64_t block : blocks) {
    const int64_t length = block / static_cast<int64_t>(size);
    pieces.push_back(full.narrow(dim, start + static_cast<int64_t>(rank) * length, length));
    start += block;
  }
  return at::cat(pieces, dim);
}

inline at::Tensor part_at(const at::Tensor& full, int64_t dim, size_t rank, size_t size) {
  return part_at(full, dim, rank, size, {full.size(dim)});
}

}  // namespace shardproof::tests
