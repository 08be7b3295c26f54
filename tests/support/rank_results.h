// Runs a computation on every rank of an emulated world and compares its tensors with a golden.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/support/run_ranks.h"

namespace shardproof::tests {

using NamedResults = std::map<std::string, at::Tensor>;

// The results of `work`, by rank, in the world of `run`. Throws the exception of a rank.
std::vector<NamedResults> on_every_rank(const Mesh& mesh,
                                        const std::function<NamedResults(MeshComm&, int64_t)>& work,
                                        decltype(run_emulated_ranks)* run = run_emulated_ranks);

// Uniform in [-1, 1), float64, every element different; the same on every rank for the same `seed`.
at::Tensor random_tensor(at::IntArrayRef shape, int64_t seed);

// "" when `actual` equals the golden within `tolerance` of its largest magnitude (or of `scale`, if
// that is larger), else the difference.
std::string difference(const at::Tensor& golden, const at::Tensor& actual, double tolerance = 1e-12,
                       double scale = 0);

// The error of the backward through `forward`'s result on each rank, after the communicators of
// `forward` have ended; "" without an error.
std::vector<std::string> backward_after_the_end(
    const Mesh& mesh, const std::function<at::Tensor(MeshComm&, int64_t)>& forward);

// Records the calls of one rank: "all_reduce <label>".
class CallLog final : public CallListener {
 public:
  void before_call(const Call& call) override {
    calls.push_back(name_of(call.op) + " " + call.label);
  }
  std::vector<std::string> calls;
};

// The calls of each rank, in order. Throws the exception of a rank.
std::vector<std::vector<std::string>> calls_of_ranks(const Mesh& mesh, const RankFunction& work);

}  // namespace shardproof::tests
