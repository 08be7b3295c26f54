// Parameters and optimizer state move to the host and back, and the next step does not change.
#include "policy/offload.h"

#include <catch2/catch.hpp>

#include "tests/unit/train/small_run.h"

namespace shardproof::tests {
namespace {

TEST_CASE("offloaded and reloaded between steps, training is the same to the bit",
          "[policy][PW-7]") {
  for (const DataParallelKind kind : {DataParallelKind::kReplicate, DataParallelKind::kFsdp}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
      Trial trial{.mesh = Mesh::training({.dp = 2, .tp = 3}), .dtype = dtype, .steps = 0};
      trial.parallel.data.kind = kind;
      std::vector<std::string> problems(6);
      const auto run = [&](bool offloads) {
        return train_with(trial, [&](Trainer& trainer, MeshComm& comm) {
          std::string& problem = problems[static_cast<size_t>(comm.rank())];
          for (int64_t i = 0; i < 3; ++i) {
            if (offloads) {
              const HeldBytes before = trainer.held_bytes();
              {
                const Offloaded optimizer(trainer, Offloaded::What::kOptimizer);
                if (trainer.held_bytes().optimizer != 0) problem = "the optimizer is still there";
                if (trainer.held_bytes().parameters != before.parameters) problem = "too much went";
              }
              Offloaded all(trainer, Offloaded::What::kParametersAndOptimizer);
              if (trainer.held_bytes().parameters != 0) problem = "parameters are still there";
              all.reload();
              const HeldBytes after = trainer.held_bytes();
              if (after.parameters != before.parameters || after.optimizer != before.optimizer) {
                problem = "not all came back";
              }
            }
            trainer.step(small_batch());
          }
        });
      };
      CHECK(difference(run(false), run(true), 0) == "");
      CHECK(problems == std::vector<std::string>(6));
    }
  }
}

TEST_CASE("what throws while memory is away finds it back", "[policy][PW-7]") {
  Trial trial{.mesh = Mesh::training({}), .steps = 0};
  const Trained golden = train(trial);
  const Trained after = train_with(trial, [&](Trainer& trainer, MeshComm&) {
    try {
      const Offloaded all(trainer, Offloaded::What::kParametersAndOptimizer);
      throw std::runtime_error("the refit failed");
    } catch (const std::runtime_error&) {
    }
  });
  CHECK(difference(golden, after, 0) == "");
}

}  // namespace
}  // namespace shardproof::tests
