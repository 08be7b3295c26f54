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

// What `work` gave on each rank, by rank. Throws what a rank threw.
inline std::vector<NamedResults> on_every_rank(
    const Mesh& mesh, const std::function<NamedResults(MeshComm&, int64_t)>& work) {
  std::vector<NamedResults> results(static_cast<size_t>(mesh.world_size()));
  run_emulated_ranks(mesh, [&](MeshComm& comm, int64_t rank) {
    results[static_cast<size_t>(rank)] = work(comm, rank);
  });
  return results;
}

// Uniform in [-1, 1), float64, every element different; the same on every rank that asks for
// `seed`.
inline at::Tensor random_tensor(at::IntArrayRef shape, int64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return at::rand(shape, generator, at::TensorOptions().dtype(at::kDouble)) * 2 - 1;
}

// "" when `actual` is the golden to within `tolerance` of its largest magnitude (or of `scale`,
// where that is larger), else what differs.
inline std::string difference(const at::Tensor& golden, const at::Tensor& actual,
                              double tolerance = 1e-12, double scale = 0) {
  if (!actual.defined()) return "no tensor";
  if (golden.sizes() != actual.sizes()) return "another shape";
  if (golden.scalar_type() != actual.scalar_type()) return "another dtype";
  if (golden.numel() == 0) return "";
  const double largest = std::max(golden.abs().max().item<double>(), scale);
  const double error = (golden - actual).abs().max().item<double>();
  if (error <= tolerance * largest) return "";
  return "differs by " + std::to_string(error) + " of " + std::to_string(largest);
}

// Records the calls of one rank: "all_reduce <label>".
class CallLog final : public CallListener {
 public:
  void before_call(const CollectiveCall& call) override {
    calls.push_back(call.op + " " + call.label);
  }
  void after_call(const CollectiveCall&) override {}
  void never_waited(const CollectiveCall&) override {}
  std::vector<std::string> calls;
};

}  // namespace shardproof::tests
