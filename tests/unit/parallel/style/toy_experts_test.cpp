// Experts on a part of the mesh, beside every other style.
#include "tests/unit/parallel/style/toy_experts.h"

#include <catch2/catch.hpp>

#include "parallel/ulysses/style.h"
#include "tests/unit/train/small_run.h"

namespace shardproof::tests {
namespace {

// Experts over `ep` neighbors among the ranks with other tokens.
Mesh expert_mesh(int64_t dp, int64_t cp, int64_t tp, int64_t ep) {
  return Mesh({{"dp", dp}, {"cp", cp}, {"tp", tp}},
              {{"ep", tp, ep}, {"edp", tp * ep, dp * cp / ep}});
}

Trial plain() {
  Trial trial{.mesh = Mesh(), .options = {.micro_batch_size = 1}};
  trial.config.intermediate_size = 24;
  return trial;
}

Trial with_experts(const Mesh& mesh, const ParallelOptions& options = {}) {
  Trial trial = plain();
  trial.mesh = mesh;
  trial.parallel = options;
  trial.styles = ParallelStyles(
      {std::make_shared<TensorParallel>(options.tensor), std::make_shared<ToyExperts>(),
       std::make_shared<ContextParallel>(options.context), std::make_shared<Ulysses>(),
       std::make_shared<DataParallel>(options.data)});
  return trial;
}

TEST_CASE("experts train beside tp, cp and sharded dense weights", "[parallel][style][experts]") {
  const Trained expected = train(plain());
  const ParallelOptions sp{.tensor = {.sequence_parallel = true}}, sharded{.data = fsdp()};
  for (const Mesh& mesh :
       {expert_mesh(2, 1, 1, 2), expert_mesh(4, 1, 1, 2), expert_mesh(2, 2, 1, 2),
        expert_mesh(2, 2, 1, 4), expert_mesh(2, 1, 3, 2)}) {
    INFO(mesh.describe());
    CHECK(difference(expected, train(with_experts(mesh)), 1e-10) == "");
    CHECK(difference(expected, train(with_experts(mesh, sharded)), 1e-10) == "");
  }
  CHECK(difference(expected, train(with_experts(expert_mesh(2, 1, 3, 2), sp)), 1e-10) == "");
}

TEST_CASE("an expert whose mean is that of dense weights is wrong", "[parallel][style][experts]") {
  const Trained expected = train(plain());
  for (const ParallelOptions& options : {ParallelOptions{}, ParallelOptions{.data = fsdp()}}) {
    Trial trial = with_experts(expert_mesh(4, 1, 1, 2), options);
    trial.prepare = [](Decoder& model, int64_t) {
      for (const ParameterPtr& parameter : model.parameters()) {
        if (parameter->rule.mean_over) parameter->rule.mean_over = std::vector<std::string>{};
      }
    };
    CHECK(difference(expected, train(trial), 1e-10) != "");
  }
}

}  // namespace
}  // namespace shardproof::tests
