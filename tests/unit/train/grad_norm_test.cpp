// The norm of gradients with all layouts together, against the norm of the full gradients.
#include "train/grad_norm.h"

#include <catch2/catch.hpp>
#include <limits>

#include "tensor/shard.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The layouts: sharded over tp, over dp and cp, over both on one or two dims, copied by tp, copied
// by all, parts that two tp ranks share, fewer rows than ranks.
struct Lay {
  const char* name;
  std::vector<int64_t> shape;
  std::vector<Cut> tp, data;
};

std::vector<Lay> lays(const std::string& shard_axis) {
  const Cut data = Cut::chunk(0, shard_axis);
  const auto cuts = [&](std::vector<Cut> of_tp) {
    return std::pair{of_tp, shard_axis.empty() ? std::vector<Cut>{} : std::vector<Cut>{data}};
  };
  std::vector<Lay> all;
  const auto add = [&](const char* name, std::vector<int64_t> shape, std::vector<Cut> of_tp) {
    const auto [tp, shards] = cuts(std::move(of_tp));
    all.push_back({name, std::move(shape), tp, shards});
  };
  add("column", {8, 3}, {Cut::even(0, "tp")});
  add("row", {5, 8}, {Cut::even(1, "tp")});
  add("norm", {7}, {});
  add("one", {1}, {});
  add("kv", {6, 2}, {Cut::repeated(0, "tp", 2)});
  return all;
}

at::Tensor full_gradient(size_t index, const Lay& lay) {
  at::Tensor grad = random_tensor(lay.shape, static_cast<int64_t>(index) + 40);
  // The element of largest magnitude is negative, in the last part of a copied gradient.
  if (std::string(lay.name) == "norm") grad[6] = -3.5;
  return grad;
}

double norm_of_full(const std::vector<Lay>& all, double type) {
  std::vector<at::Tensor> flat;
  for (size_t i = 0; i < all.size(); ++i) flat.push_back(full_gradient(i, all[i]).flatten());
  return at::linalg_vector_norm(at::cat(flat), type).item<double>();
}

std::vector<double> norm_on_ranks(const Mesh& mesh, const std::vector<Lay>& all,
                                  const GradNormOptions& options) {
  std::vector<double> norms(static_cast<size_t>(mesh.world_size()));
  run_emulated_ranks(mesh, [&](MeshComm& comm, int64_t rank) {
    std::vector<ParameterPtr> parameters;
    std::vector<at::Tensor> grads;
    for (size_t i = 0; i < all.size(); ++i) {
      std::vector<Cut> cuts = all[i].tp;
      cuts.insert(cuts.end(), all[i].data.begin(), all[i].data.end());
      parameters.push_back(std::make_shared<Parameter>(Parameter{.name = all[i].name,
                                                                 .tensor = {},
                                                                 .global_shape = all[i].shape,
                                                                 .layout = Layout(cuts)}));
      grads.push_back(cut(full_gradient(i, all[i]), Layout(cuts), mesh, rank));
    }
    norms[static_cast<size_t>(rank)] = grad_norm(parameters, grads, comm, options).item<double>();
  });
  return norms;
}

TEST_CASE("each element of the full gradients counts once, whatever the ranks hold of them",
          "[train][MP-6]") {
  struct World {
    Mesh mesh;
    std::string shard_axis;
  };
  for (const World& world :
       {World{Mesh::training({.tp = 4}), ""}, World{Mesh::training({.dp = 2, .tp = 4}), ""},
        World{Mesh::training({.dp = 3, .tp = 4}), "dp"},
        World{Mesh::training({.dp = 2, .cp = 2, .tp = 4}), "dp+cp"},
        World{Mesh::training({.dp = 2, .cp = 2, .tp = 4}), "dp+cp%2"},
        World{Mesh::training({.dp = 11}), "dp"}}) {
    INFO(world.mesh.describe() << ", sharded over " << world.shard_axis);
    std::vector<Lay> all = lays(world.shard_axis);
    if (world.mesh.size("tp") == 1) {
      for (Lay& lay : all) lay.tp.clear();
    }
    for (const double type : {1.0, 2.0, 3.0, 0.5, kInfinity}) {
      const double golden = norm_of_full(all, type);
      for (const double norm : norm_on_ranks(world.mesh, all, {.type = type})) {
        CHECK(std::abs(norm - golden) <= 1e-13 * golden);
      }
    }
  }
}

TEST_CASE("NeMo-RL's norm counts what tp copies once a rank; without copies it is right",
          "[train][MP-6]") {
  const Mesh mesh = Mesh::training({.dp = 2, .tp = 4});
  const std::vector<Lay> all = lays("dp");
  double squares = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const double copies = all[i].tp.empty() ? 4 : all[i].tp[0].kind == Cut::Kind::kRepeated ? 2 : 1;
    squares += copies * full_gradient(i, all[i]).square().sum().item<double>();
  }
  const GradNormOptions seed{.copies = NormCopies::kEachOfTp};
  for (const double norm : norm_on_ranks(mesh, all, seed)) {
    CHECK(std::abs(norm - std::sqrt(squares)) <= 1e-13 * norm);
    CHECK(norm > 1.05 * norm_of_full(all, 2));
  }
  const std::vector<Lay> sharded = {all[0], all[1]};
  for (const double norm : norm_on_ranks(mesh, sharded, seed)) {
    CHECK(std::abs(norm - norm_of_full(sharded, 2)) <= 1e-13 * norm);
  }
  const GradNormOptions largest{.type = kInfinity, .copies = NormCopies::kEachOfTp};
  for (const double norm : norm_on_ranks(mesh, all, largest)) CHECK(norm == 3.5);
}

TEST_CASE("a NaN on one rank is the norm on every rank", "[train][MP-6]") {
  const Mesh mesh = Mesh::training({.dp = 2, .tp = 2});
  for (const double type : {2.0, kInfinity}) {
    std::vector<double> norms(4);
    run_emulated_ranks(mesh, [&](MeshComm& comm, int64_t rank) {
      const Layout layout({Cut::even(0, "tp"), Cut::chunk(0, "dp")});
      const auto parameter = std::make_shared<Parameter>(
          Parameter{.name = "weight", .tensor = {}, .global_shape = {8}, .layout = layout});
      at::Tensor grad = at::ones({2}, at::kDouble);
      if (rank == 2) grad[1] = std::numeric_limits<double>::quiet_NaN();
      norms[static_cast<size_t>(rank)] =
          grad_norm({parameter}, {grad}, comm, {.type = type}).item<double>();
    });
    for (const double norm : norms) CHECK(std::isnan(norm));
  }
}

TEST_CASE("clipping scales down by max_norm / (norm + 1e-6), never up", "[train][MP-6]") {
  const at::Tensor golden = random_tensor({4, 3}, 1);
  const auto clipped = [&](double norm, double max_norm) {
    const at::Tensor grad = golden.clone();
    clip_grads({grad}, at::scalar_tensor(norm, at::kDouble), max_norm);
    return grad;
  };
  CHECK(difference(golden * (0.5 / (2.0 + 1e-6)), clipped(2.0, 0.5), 1e-15) == "");
  CHECK(clipped(0.25, 0.5).equal(golden));
  CHECK(clipped(2.0, 0).equal(golden));
}

}  // namespace
}  // namespace shardproof::tests
