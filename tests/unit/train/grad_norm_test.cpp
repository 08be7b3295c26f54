// The norm that counts copies, and a NaN. In scenarios/fsdp/norms, of any order, each element
// counts once.
#include "train/grad_norm.h"

#include <catch2/catch.hpp>
#include <limits>

#include "tensor/shard.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Gradient {
  at::Tensor full;
  std::vector<Cut> tp;
  double copies;  // over tp
};

// Sharded over tp on both dims, copied by tp, and parts that two tp ranks share.
std::vector<Gradient> gradients() {
  at::Tensor copied = random_tensor({7}, 42);
  copied[6] = -3.5;  // the largest magnitude of all, in the last part of dp
  return {{random_tensor({8, 3}, 40), {Cut::even(0, "tp")}, 1},
          {random_tensor({5, 8}, 41), {Cut::even(1, "tp")}, 1},
          {copied, {}, 4},
          {random_tensor({6, 2}, 43), {Cut::repeated(0, "tp", 2)}, 2}};
}

// The norm on each rank of dp=2 tp=4, with the gradients sharded over dp too.
std::vector<double> norm_on_ranks(const std::vector<Gradient>& all,
                                  const GradNormOptions& options) {
  const Mesh mesh = Mesh::training({.dp = 2, .tp = 4});
  std::vector<double> norms(static_cast<size_t>(mesh.world_size()));
  run_emulated_ranks(mesh, [&](MeshComm& comm, int64_t rank) {
    std::vector<ParameterPtr> parameters;
    std::vector<at::Tensor> grads;
    for (const Gradient& one : all) {
      std::vector<Cut> cuts = one.tp;
      cuts.push_back(Cut::chunk(0, "dp"));
      parameters.push_back(
          std::make_shared<Parameter>(Parameter{.name = "w",
                                                .tensor = {},
                                                .global_shape = one.full.sizes().vec(),
                                                .layout = Layout(cuts)}));
      grads.push_back(cut(one.full, Layout(cuts), mesh, rank));
    }
    norms[static_cast<size_t>(rank)] = grad_norm(parameters, grads, comm, options).item<double>();
  });
  return norms;
}

double norm_with_copies(const std::vector<Gradient>& all) {
  double squares = 0;
  for (const Gradient& one : all) squares += one.copies * one.full.square().sum().item<double>();
  return std::sqrt(squares);
}

TEST_CASE("NeMo-RL's norm counts what tp copies once a rank; without copies it is right",
          "[train][MP-6]") {
  const std::vector<Gradient> all = gradients();
  const GradNormOptions seed{.copies = NormCopies::kEachOfTp};
  for (const auto& some : {all, {all[0], all[1]}}) {
    for (const double norm : norm_on_ranks(some, seed)) {
      CHECK(norm == Approx(norm_with_copies(some)).epsilon(1e-13));
    }
  }
  const GradNormOptions largest{.type = kInfinity, .copies = NormCopies::kEachOfTp};
  for (const double norm : norm_on_ranks(all, largest)) CHECK(norm == 3.5);
}

TEST_CASE("a NaN on one rank is the norm on every rank", "[train][MP-6]") {
  std::vector<Gradient> all = gradients();
  all[0].full[7][1] = std::numeric_limits<double>::quiet_NaN();
  for (const double type : {2.0, kInfinity}) {
    for (const double norm : norm_on_ranks(all, {.type = type})) CHECK(std::isnan(norm));
  }
}

}  // namespace
}  // namespace shardproof::tests
