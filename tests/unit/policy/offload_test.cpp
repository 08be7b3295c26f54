// Parameters and optimizer state move to the host and back, and the next step does not change.
#include "policy/offload.h"

#include <catch2/catch.hpp>

#include "tests/unit/policy/small_worker.h"

namespace shardproof::tests {
namespace {

void offload_and_reload(Trainer& trainer) {
  const HeldBytes before = trainer.held_bytes();
  {
    const Offloaded optimizer(trainer, Offloaded::What::kOptimizer);
    MUST(trainer.held_bytes().optimizer == 0);
    MUST(trainer.held_bytes().parameters == before.parameters);
  }
  Offloaded all(trainer, Offloaded::What::kParametersAndOptimizer);
  MUST(trainer.held_bytes().parameters == 0);
  all.reload();
  MUST(trainer.held_bytes().parameters == before.parameters);
  MUST(trainer.held_bytes().optimizer == before.optimizer);
}

TEST_CASE("offloaded and reloaded between steps, training is the same to the bit",
          "[policy][PW-7]") {
  for (const DataParallelKind kind : {DataParallelKind::kReplicate, DataParallelKind::kFsdp}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
      Trial trial{.mesh = Mesh::training({.dp = 2, .tp = 3}), .dtype = dtype};
      trial.parallel.data.kind = kind;
      const auto run = [&](bool offloads) {
        return train_with(trial, [&](Trainer& trainer, MeshComm&) {
          for (int64_t i = 0; i < 3; ++i) {
            if (offloads) offload_and_reload(trainer);
            trainer.step(small_batch());
          }
        });
      };
      CHECK(difference(run(false), run(true), 0) == "");
    }
  }
}

TEST_CASE("what throws while memory is away finds it back", "[policy][PW-7]") {
  const Trial trial{.mesh = Mesh::training({}), .steps = 0};
  const Trained after = train_with(trial, [&](Trainer& trainer, MeshComm&) {
    must_throw("the refit failed", [&] {
      const Offloaded all(trainer, Offloaded::What::kParametersAndOptimizer);
      throw std::runtime_error("the refit failed");
    });
  });
  CHECK(difference(train(trial), after, 0) == "");
}

}  // namespace
}  // namespace shardproof::tests
