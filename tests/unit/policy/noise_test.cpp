// Noise on the weights: where it falls, how large it is, and what it depends on.
#include "policy/noise.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "tests/unit/policy/small_worker.h"

namespace shardproof::tests {
namespace {

constexpr double kStd = 0.125;  // a power of two: a multiple of it loses no bits

struct Noise {
  double std = kStd;
  int64_t seed = 5;
};

Trained noised(const WorkerTrial& trial, const Noise& noise) {
  return with_workers(trial, [&](PolicyWorker& worker, MeshComm&, int64_t) {
    worker.add_noise(noise.std, noise.seed);
  });
}

// The noise of each weight: what it is without noise is taken away.
std::map<std::string, at::Tensor> noise_of(const WorkerTrial& trial, const Noise& noise) {
  const Trained before = noised(trial, {.std = 0}), after = noised(trial, noise);
  std::map<std::string, at::Tensor> found;
  for (const auto& [name, weight] : after.parameters) {
    found[name] = weight.to(at::kDouble) - before.parameters.at(name).to(at::kDouble);
  }
  return found;
}

double correlation(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.flatten(), y = b.flatten();
  return (x.dot(y) / (x.norm() * y.norm())).item<double>();
}

TEST_CASE("noise makes the same model on every mesh, to the bit", "[policy][PW-10]") {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    const Trained one = noised({.mesh = Mesh::training({}), .dtype = dtype}, {});
    for (const AxisSizes& sizes : {AxisSizes{.dp = 3}, {.tp = 3}, {.dp = 2, .tp = 3}}) {
      for (const DataParallelKind kind : {DataParallelKind::kReplicate, DataParallelKind::kFsdp}) {
        WorkerTrial trial{.mesh = Mesh::training(sizes), .dtype = dtype};
        trial.options.parallel.data.kind = kind;
        CHECK(difference(one, noised(trial, {}), 0) == "");
      }
    }
  }
}

TEST_CASE("all copies of a weight get equal noise", "[policy][PW-10]") {
  const Mesh mesh = Mesh::training({.dp = 2, .tp = 3});
  std::vector<std::vector<at::Tensor>> held(static_cast<size_t>(mesh.world_size()));
  with_workers({.mesh = mesh}, [&](PolicyWorker& worker, MeshComm&, int64_t rank) {
    worker.add_noise(kStd, 5);
    for (const at::Tensor& master : worker.trainer().masters()) {
      held[static_cast<size_t>(rank)].push_back(master.clone());
    }
  });
  for (const int64_t rank : {3, 4, 5}) {
    for (size_t i = 0; i < held[0].size(); ++i) {
      CHECK(at::equal(held[static_cast<size_t>(rank)][i], held[static_cast<size_t>(rank % 3)][i]));
    }
  }
}

TEST_CASE("noise is normal with its standard deviation, and independent between weights",
          "[policy][PW-10]") {
  const auto noise = noise_of({}, {});
  std::vector<at::Tensor> all;
  for (const auto& [name, one] : noise) all.push_back(one.flatten() / kStd);
  const at::Tensor draws = at::cat(all);
  const double count = static_cast<double>(draws.numel());
  REQUIRE(count > 1500);
  // Five standard errors of the mean, the second and the fourth moment of a normal distribution.
  CHECK(std::fabs(draws.mean().item<double>()) < 5 / std::sqrt(count));
  CHECK(std::fabs(draws.pow(2).mean().item<double>() - 1) < 5 * std::sqrt(2 / count));
  CHECK(std::fabs(draws.pow(4).mean().item<double>() - 3) < 5 * std::sqrt(96 / count));
  // Weights of one shape, and one weight under two seeds, of which one differs in high bits alone.
  const std::string up = "model.layers.0.mlp.up_proj.weight";
  const double least = 5 / std::sqrt(static_cast<double>(noise.at(up).numel()));
  for (const char* other :
       {"model.layers.1.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"}) {
    CHECK(std::fabs(correlation(noise.at(up), noise.at(other))) < least);
  }
  for (const int64_t seed : {int64_t{6}, 5 + (int64_t{1} << 32)}) {
    CHECK(std::fabs(correlation(noise.at(up), noise_of({}, {.seed = seed}).at(up))) < least);
  }
}

TEST_CASE("noise is proportional to its standard deviation", "[policy][PW-10]") {
  const auto once = noise_of({}, {}), four_times = noise_of({}, {.std = 4 * kStd});
  for (const auto& [name, noise] : once) {
    CHECK(difference(noise * 4, four_times.at(name), 1e-14) == "");
  }
}

TEST_CASE("a frozen weight gets no noise", "[policy][PW-10]") {
  WorkerTrial trial;
  trial.options.frozen = {"*.bias"};
  for (const auto& [name, noise] : noise_of(trial, {})) {
    INFO(name);
    CHECK(noise.any().item<bool>() != name.ends_with(".bias"));
  }
}

}  // namespace
}  // namespace shardproof::tests
