// An evaluation reports what a step would report, and changes nothing.
#include <catch2/catch.hpp>

#include "tests/unit/train/small_run.h"

namespace shardproof::tests {
namespace {

TEST_CASE("evaluating says what the step would report and changes no bit of the training",
          "[train][PW-2]") {
  for (const DataParallelKind kind : {DataParallelKind::kReplicate, DataParallelKind::kFsdp}) {
    Trial trial{.mesh = Mesh::training({.dp = 2, .cp = 2}), .steps = 0};
    trial.parallel.data.kind = kind;
    trial.options.micro_batch_size = 1;
    trial.options.loss.kind = LossKind::kClippedPolicyGradient;
    std::vector<StepMetrics> evaluated, reported;
    std::vector<std::string> problems(4);
    const auto run = [&](bool evaluates) {
      return train_with(trial, [&](Trainer& trainer, MeshComm& comm) {
        for (int step = 0; step < 2; ++step) {
          const int64_t before = trainer.step_count();
          if (evaluates) {
            const StepMetrics now = trainer.evaluate(small_batch());
            if (comm.rank() == 0) evaluated.push_back(now);
            std::string& problem = problems[static_cast<size_t>(comm.rank())];
            if (trainer.step_count() != before) problem = "it counted as a step";
            for (const ParameterPtr& parameter : trainer.parameters()) {
              if (parameter->tensor.grad().defined()) problem = "it left gradients";
            }
          }
          const StepMetrics now = trainer.step(small_batch());
          if (evaluates && comm.rank() == 0) reported.push_back(now);
        }
      });
    };
    CHECK(difference(run(false), run(true), 0) == "");
    CHECK(problems == std::vector<std::string>(4));
    REQUIRE(evaluated.size() == 2);
    for (size_t step = 0; step < 2; ++step) {
      CHECK(evaluated[step].loss == Approx(reported[step].loss).epsilon(1e-13));
      CHECK(evaluated[step].tokens == reported[step].tokens);
      CHECK(evaluated[step].of_loss.at("kl") ==
            Approx(reported[step].of_loss.at("kl")).epsilon(1e-10));
      CHECK(evaluated[step].grad_norm == 0);
    }
  }
}

}  // namespace
}  // namespace shardproof::tests
