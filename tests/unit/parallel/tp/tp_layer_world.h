// Tensors and worlds for the tests of tensor-parallel layers: full tensors from a seed, and every
// group size in the emulated world and over Gloo, from rank 0 or a later one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/slot.h"
#include "tests/support/rank_results.h"
#include "tests/support/run_gloo_ranks.h"

namespace shardproof::tests {

inline std::vector<NamedResults> on_every_gloo_rank(
    const Mesh& mesh, const std::function<NamedResults(MeshComm&, int64_t)>& work) {
  std::vector<NamedResults> results(static_cast<size_t>(mesh.world_size()));
  run_gloo_ranks(mesh, [&](MeshComm& comm, int64_t rank) {
    results[static_cast<size_t>(rank)] = work(comm, rank);
  });
  return results;
}

// `work` returns named tensors of one rank of the tp group; `check` gets those of each group in the
// order of ranks. The second group of each size begins at rank tp.
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

// The kind and text of an Error, "refused: .."; "" if nothing is thrown.
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

// This rank's part of dim, of which each block is cut evenly.
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

inline ParameterPtr leaf(const std::string& name, const at::Tensor& value) {
  return std::make_shared<Parameter>(Parameter{.name = name,
                                               .tensor = value.detach().clone().requires_grad_(),
                                               .global_shape = value.sizes().vec()});
}

// This rank's leaf of a parameter; with dim -1 the whole.
inline ParameterPtr cut_parameter(const at::Tensor& full, int64_t dim, const Communicator& tp,
                                  std::vector<int64_t> blocks = {}) {
  if (dim >= 0 && blocks.empty()) blocks = {full.size(dim)};
  const at::Tensor own = dim < 0 ? full
                                 : part_at(full, dim, static_cast<size_t>(tp.rank()),
                                           static_cast<size_t>(tp.size()), blocks);
  return leaf("part", own);
}

inline at::Tensor run_layer(Layer& layer, const at::Tensor& input) {
  NoProbe nobody;
  return layer.forward({input}, StepContext{.probe = nobody});
}

// Runs a layer that has its tokens in dim 1 on an input that has them in dim 0.
inline at::Tensor run_tokens_first(Layer& layer, const at::Tensor& input) {
  return run_layer(layer, input.transpose(0, 1)).transpose(0, 1);
}

}  // namespace shardproof::tests
