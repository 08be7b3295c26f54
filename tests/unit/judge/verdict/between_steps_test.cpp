// Values of the step before and loss scales of steps are not taken for factors of an axis.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "tests/unit/judge/planted_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

TEST_CASE("a gradient that the step before is added to was not reset", "[explanations]") {
  const at::Tensor first = numbered({6, 5}, 3);
  const auto second_holds = [&](const at::Tensor& second, double share) {
    const JudgedWorld judged(spec_of(2, 2), {seen("grad.w", first, Phase::kStep, 1),
                                             seen("grad.w", second, Phase::kStep, 2)});
    return found(judged, [&](int64_t, Observation& observation) {
      if (observation.step == 2) observation.tensor = observation.tensor + share * first;
    });
  };
  const Divergence other = second_holds(numbered({6, 5}, 4), 1);
  CHECK(other.step == 2);
  CHECK_THAT(other.pattern, Catch::StartsWith("is the golden of steps 1 and 2 added up: it was not "
                                              "reset between them on all ranks"));
  // The steps hardly differ, so their sum is nearly twice each, but has no relation to dp or tp.
  const Divergence alike = second_holds(first + 1e-2 * numbered({6, 5}, 4), 1);
  CHECK_THAT(alike.pattern, Catch::StartsWith("is the golden of steps 1 and 2 added up"));
  CHECK(alike.likely.empty());
  CHECK_THAT(second_holds(numbered({6, 5}, 4), 0.99).pattern, !Catch::Contains("added up"));
}

TEST_CASE("a weight that moves by a share of its update is told from rounding", "[explanations]") {
  const at::Tensor first = numbered({6, 5}, 3), update = 1e-3 * numbered({6, 5}, 4);
  const auto moves_by = [&](const at::Tensor& moved) {
    const JudgedWorld judged(spec_of(1, 2), {seen("param.w", first, Phase::kStep, 1),
                                             seen("param.w", first + update, Phase::kStep, 2)});
    return found(judged, [&](int64_t, Observation& observation) {
      if (observation.step == 2) observation.tensor = first + moved;
    });
  };
  CHECK_THAT(moves_by(0.64 * update).pattern, Catch::StartsWith("moved by 0.64 x the golden's"));
  CHECK_THAT(moves_by(0.64 * update + 1e-5 * numbered({6, 5}, 8)).pattern,
             Catch::StartsWith("moved by 0.6"));
  CHECK_THAT(moves_by(0.64 * update + 2e-4 * numbered({6, 5}, 8)).pattern,
             !Catch::Contains("moved by"));
  CHECK_THAT(moves_by(1e-3 * numbered({6, 5}, 8)).pattern, !Catch::Contains("moved by"));
}

TEST_CASE("gradients that are off by what the loss scale is off by are no matter of an axis",
          "[explanations]") {
  const JudgedWorld judged(
      spec_of(1, 2),
      {seen("grad.w", numbered({6, 5}, 3), Phase::kStep, 1),
       seen("metric.loss_scale", at::scalar_tensor(256, at::kDouble), Phase::kStep, 1)});
  const auto halved = [&](bool scale_too) {
    return found(judged, [=](int64_t, Observation& observation) {
      if (observation.name == "grad.w" || scale_too) observation.tensor = observation.tensor / 2;
    });
  };
  const Divergence with_scale = halved(true);
  CHECK(with_scale.tensor == "grad.w");
  CHECK_THAT(with_scale.pattern, Catch::Contains("so is the loss scale of this step") &&
                                     !Catch::Contains("size of tp"));
  CHECK_THAT(with_scale.likely, Catch::Contains("grew or fell at another step"));
  CHECK_THAT(halved(false).pattern, Catch::Contains("2 is the size of tp"));
}
