#include "sim/judge/diff/tolerance.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/unit/judge/judged_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

namespace {

GoldenTensor tensor_of(double scale, double phase_scale, double scatter = 0) {
  GoldenTensor tensor;
  tensor.value = view_of(at::zeros({1}, at::kDouble));
  tensor.scale = scale;
  tensor.phase_scale = phase_scale;
  tensor.scatter = scatter;
  return tensor;
}

}  // namespace

TEST_CASE("the float64 rule adds the tensor's scale and its neighbours' rounding", "[tolerance]") {
  const Tolerance tolerance(spec_of(2, 3));
  CHECK(tolerance.allowance(tensor_of(2, 0)) == Approx(2e-10).epsilon(1e-14));
  CHECK(tolerance.allowance(tensor_of(0, 8)) ==
        Approx(64 * 2.220446049250313e-16 * 8).epsilon(1e-14));
  CHECK(tolerance.allowance(tensor_of(2, 8)) ==
        Approx(2e-10 + 64 * 2.220446049250313e-16 * 8).epsilon(1e-14));
  CHECK(tolerance.fed_allowance(tensor_of(2, 8)) == Approx(2e-12).epsilon(1e-14));
}

TEST_CASE("float64 allows 6 scatters too where they were measured", "[tolerance]") {
  const Tolerance tolerance(spec_of(2, 3));
  CHECK(tolerance.allowance(tensor_of(2, 0, 1e-8)) == Approx(6e-8 + 2e-10).epsilon(1e-12));
  CHECK(tolerance.allowance(tensor_of(2, 0, 1e-15)) == Approx(2e-10).epsilon(1e-4));
  CHECK(tolerance.fed_allowance(tensor_of(2, 0, 1e-8)) == Approx(2e-12).epsilon(1e-14));
  CHECK(tolerance.resolves(tensor_of(2, 0, 0.4)));
  CHECK_FALSE(tolerance.resolves(tensor_of(2, 0, 0.6)));
}

TEST_CASE("an integer tensor has no allowance", "[tolerance]") {
  GoldenTensor tensor = tensor_of(2, 8);
  tensor.value = view_of(at::zeros({1}, at::kLong));
  CHECK(Tolerance(spec_of(1, 1)).allowance(tensor) == 0);
}

TEST_CASE("lower precisions allow 6 scatters of the ensemble, on every mesh", "[tolerance]") {
  for (const int64_t tp : {1, 4}) {
    const Tolerance tolerance(spec_of(3, tp, Precision::kFloat32));
    CHECK(tolerance.allowance(tensor_of(1, 0, 1e-3)) == Approx(6e-3 + 1e-10));
    CHECK(tolerance.fed_allowance(tensor_of(1, 0, 1e-3)) == Approx(6e-3 + 1e-12));
    CHECK(tolerance.resolves(tensor_of(1, 0, 1e-3)));
  }
}

TEST_CASE("fewer scatters are allowed where 6 would hide half of the tensor", "[tolerance]") {
  const Tolerance tolerance(spec_of(1, 2, Precision::kBFloat16));
  CHECK(tolerance.allowance(tensor_of(2, 0, 0.13)) == Approx(0.78));
  CHECK(tolerance.allowance(tensor_of(2, 0, 0.16)) == Approx(0.8));
  CHECK(tolerance.allowance(tensor_of(2, 0, 0.4)) == Approx(0.8));
  CHECK(tolerance.allowance(tensor_of(2, 0, 0.45)) == Approx(0.9));
  CHECK(tolerance.resolves(tensor_of(2, 0, 0.499)));
}

TEST_CASE("a tensor is not resolved where 2 scatters reach half of it", "[tolerance]") {
  const Tolerance tolerance(spec_of(1, 2, Precision::kBFloat16));
  CHECK_FALSE(tolerance.resolves(tensor_of(2, 0, 0.5)));
  CHECK(tolerance.allowance(tensor_of(2, 0, 0.6)) == Approx(3.6));  // nothing is claimed of it
  CHECK_FALSE(tolerance.resolves(tensor_of(2, 0, 0.6)));
  const double none = std::numeric_limits<double>::infinity();  // members skip other steps
  CHECK(tolerance.allowance(tensor_of(2, 0, none)) == none);
  CHECK_FALSE(tolerance.resolves(tensor_of(2, 0, none)));
  CHECK(Tolerance(spec_of(1, 2)).resolves(tensor_of(2, 0)));  // float64 needs no ensemble
  CHECK(tolerance.resolves(tensor_of(0, 0)));                 // 0 in each member
  GoldenTensor parameter = tensor_of(2, 0, 0.6);  // also compared with the rank's own state
  parameter.kind = ObservationKind::kParameter;
  CHECK(tolerance.resolves(parameter));
}

TEST_CASE("more members allow more, and resolve less", "[tolerance]") {
  for (const Precision precision :
       {Precision::kFloat32, Precision::kBFloat16, Precision::kFloat16}) {
    const Tolerance few(spec_of(1, 2, precision), Members::kFew), all(spec_of(1, 2, precision));
    for (double scatter = 1e-9; scatter < 10; scatter *= 1.3) {
      for (const double more : {1.0, 1.01, 2.0, 50.0}) {
        GoldenTensor tensor = tensor_of(1, 1, more * scatter);
        tensor.few_scatter = scatter;
        CHECK(few.allowance(tensor) <= all.allowance(tensor));
        CHECK(few.fed_allowance(tensor) <= all.fed_allowance(tensor));
        CHECK((few.resolves(tensor) || !all.resolves(tensor)));
      }
      GoldenTensor differing = tensor_of(1, 1, std::numeric_limits<double>::infinity());
      differing.few_scatter = scatter;
      CHECK(std::isfinite(few.allowance(differing)));
    }
  }
}

TEST_CASE("lower precisions allow 4 eps of the scale where nothing scatters", "[tolerance]") {
  CHECK(Tolerance(spec_of(1, 1, Precision::kFloat32)).allowance(tensor_of(2, 0)) ==
        Approx(4 * 2 * std::ldexp(1.0, -23) + 2e-10).epsilon(1e-12));
  CHECK(Tolerance(spec_of(1, 1, Precision::kBFloat16)).allowance(tensor_of(2, 0)) ==
        Approx(4 * 2 * std::ldexp(1.0, -7)).epsilon(1e-6));
}

TEST_CASE("what a bfloat16 run keeps in float32 is allowed roundings of float32", "[tolerance]") {
  GoldenTensor logprobs = tensor_of(2, 0);
  logprobs.kept_in_float32 = true;
  CHECK(Tolerance(spec_of(1, 1, Precision::kBFloat16)).allowance(logprobs) ==
        Approx(4 * 2 * std::ldexp(1.0, -23) + 2e-10).epsilon(1e-12));
  logprobs.scatter = 1e-2;
  CHECK(Tolerance(spec_of(1, 1, Precision::kBFloat16)).allowance(logprobs) == Approx(6e-2));
}

namespace {

// Two steps of a parameter with three elements; norms 1 and 4 with max_norm 2, so step 2 is
// clipped.
struct TwoSteps {
  TwoSteps() {
    spec.optimizer = {{.kind = OptimizerKind::kAdamW,
                       .lr = 0.1,
                       .beta1 = 0.9,
                       .beta2 = 0.5,
                       .eps = 1e-8,
                       .weight_decay = 0,
                       .momentum = 0.5},
                      /*max_norm=*/2};
    golden = golden_from({seen("grad.w", at::tensor({1.0, 0.0, 1e-9}, at::kDouble)),
                          seen("grad_norm", at::scalar_tensor(1.0, at::kDouble)),
                          seen("param.w", numbered({3})), seen("exp_avg.w", numbered({3})),
                          seen("exp_avg_sq.w", numbered({3})),
                          seen("grad.w", at::tensor({4.0, 0.0, 0.0}, at::kDouble), Phase::kStep, 2),
                          seen("grad_norm", at::scalar_tensor(4.0, at::kDouble), Phase::kStep, 2),
                          seen("param.w", numbered({3}), Phase::kStep, 2),
                          seen("momentum_buffer.w", numbered({3}), Phase::kStep, 2)});
  }
  double added(const std::string& name, int64_t step, int64_t offset) const {
    const auto allowance =
        FreeRunningAllowance::of(spec, golden, *golden.find(Phase::kStep, step, name));
    REQUIRE(allowance);
    return allowance->at(offset);
  }
  double grad_allowance(int64_t step) const {
    return Tolerance(spec).allowance(*golden.find(Phase::kStep, step, "grad.w"));
  }
  CaseSpec spec = spec_of(1, 1);
  GoldenRecord golden;
};

}  // namespace

TEST_CASE("a free-running AdamW step adds lr * min(2, d / (|g| + eps))", "[tolerance]") {
  const TwoSteps steps;
  const double d = steps.grad_allowance(1);
  CHECK(steps.added("param.w", 1, 0) == Approx(0.1 * d / (1 + 1e-8)).epsilon(1e-9));
  CHECK(steps.added("param.w", 1, 1) == Approx(0.1 * std::min(2.0, d / 1e-8)).epsilon(1e-9));
  CHECK(steps.added("param.w", 1, 2) == Approx(0.1 * d / (1e-9 + 1e-8)).epsilon(1e-9));
}

TEST_CASE("it is at most twice lr a step, however small the gradient", "[tolerance]") {
  TwoSteps steps;
  steps.spec.optimizer.eps = 0;
  CHECK(steps.added("param.w", 1, 1) == Approx(0.2));
  CHECK(steps.added("param.w", 2, 1) == Approx(0.4));
}

TEST_CASE("it adds up over steps, with the clipped gradient's bias-corrected size", "[tolerance]") {
  const TwoSteps steps;
  const double clip = 2.0 / (4.0 + 1e-6);
  const double second = 4.0 * clip;
  const double mean_square = 0.5 * (0.5 * 1.0) + 0.5 * second * second;
  const double size = std::sqrt(mean_square / (1 - 0.25));
  const double expected = 0.1 * steps.grad_allowance(1) / (1 + 1e-8) +
                          0.1 * clip * steps.grad_allowance(2) / (size + 1e-8);
  CHECK(steps.added("param.w", 2, 0) == Approx(expected).epsilon(1e-9));
}

TEST_CASE("what a load gave up adds nothing to a policy's steps after it", "[tolerance][PW-8]") {
  TwoSteps steps;
  steps.spec.data.batch_size = 1;
  const StageSpec train{.kind = StageKind::kTrain, .global_batch_size = 1},
      save{.kind = StageKind::kSave}, load{.kind = StageKind::kLoad};
  const double first = steps.grad_allowance(1), clip = 2.0 / (4.0 + 1e-6);
  const double second = clip * steps.grad_allowance(2);
  steps.spec.stages = {train, train};
  CHECK(steps.added("momentum_buffer.w", 2, 0) == Approx(2 * std::max(first, second)));
  const double both = steps.added("param.w", 2, 0);
  // In these stages, step 2 loads the state before or after step 1.
  steps.spec.stages = {save, train, load};
  CHECK(steps.added("param.w", 1, 0) == Approx(0.1 * first / (1 + 1e-8)));
  CHECK(steps.added("param.w", 2, 0) == 0);
  steps.spec.stages = {train, save, load};
  CHECK(steps.added("param.w", 2, 0) == Approx(0.1 * first / (1 + 1e-8)));
  CHECK(steps.added("param.w", 2, 0) < both);
}

TEST_CASE("moments and SGD have allowances of their own", "[tolerance]") {
  TwoSteps steps;
  const double d = steps.grad_allowance(1);
  CHECK(steps.added("exp_avg.w", 1, 0) == Approx(d));
  CHECK(steps.added("exp_avg_sq.w", 1, 0) == Approx((2 + d) * d));
  CHECK(steps.added("exp_avg_sq.w", 1, 1) == Approx(d * d));
  steps.spec.optimizer.kind = OptimizerKind::kSgd;
  const double clip = 2.0 / (4.0 + 1e-6);
  CHECK(steps.added("param.w", 1, 0) == Approx(0.1 * d * 2));  // momentum 0.5 doubles it
  CHECK(steps.added("param.w", 2, 0) == Approx(0.1 * (d + clip * steps.grad_allowance(2)) * 2));
  CHECK(steps.added("momentum_buffer.w", 2, 0) ==
        Approx(std::max(d, clip * steps.grad_allowance(2)) * 2));
}

TEST_CASE("gradients and unknown tensors get nothing added", "[tolerance]") {
  const TwoSteps steps;
  CHECK_FALSE(FreeRunningAllowance::of(steps.spec, steps.golden,
                                       *steps.golden.find(Phase::kStep, 1, "grad.w")));
  const auto lonely = golden_from({seen("param.w", numbered({3}))});
  CHECK_FALSE(FreeRunningAllowance::of(steps.spec, lonely, lonely.tensors()[0]));
}

TEST_CASE("a free-running step of Muon adds what the iteration can make of the gradient's error",
          "[tolerance][PW-13]") {
  const std::string w = "model.layers.0.mlp.experts.gate_up_proj";
  CaseSpec spec = spec_of(1, 1);
  spec.optimizer.kind = OptimizerKind::kMuon;
  spec.optimizer.lr = 0.1;
  spec.optimizer.momentum = 0.5;
  spec.optimizer.nesterov = true;
  spec.optimizer.max_norm = 0;
  // Two matrices of one row: the update of the first, which is small, is the less certain one.
  const at::Tensor grad = at::tensor({3e-6, 4e-6, 3.0, 4.0}, at::kDouble).view({1, 2, 2});
  const GoldenRecord golden =
      golden_from({seen("grad." + w, grad), seen("whole." + w, grad * 0.75),
                   seen("param." + w, grad), seen("momentum_buffer." + w, grad)});
  const auto added = [&](const std::string& name, int64_t offset) {
    const auto allowance =
        FreeRunningAllowance::of(spec, golden, *golden.find(Phase::kStep, 1, name + w));
    REQUIRE(allowance);
    return allowance->at(offset);
  };
  const double d = Tolerance(spec).allowance(*golden.find(Phase::kStep, 1, "grad." + w));
  CHECK(added("momentum_buffer.", 0) == Approx(0.5 * d));
  CHECK(added("whole.", 3) == Approx(0.75 * d));
  const double error = 2 * 485 * 0.75 * d * std::sqrt(2.0);
  CHECK(added("param.", 1) == Approx(0.1 * std::min(2.6, error / (0.75 * 5e-6))));
  CHECK(added("param.", 2) == Approx(0.1 * error / (0.75 * 5)));
}
