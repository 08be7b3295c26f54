#include "sim/judge/probe/own_optimizer.h"

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "sim/judge/probe/rank_recorder.h"
#include "tests/unit/judge/judged_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

namespace {

constexpr double kRate = 0.01, kDecay = 0.1, kMaxNorm = 1.0;

CaseSpec spec_with(OptimizerKind kind, double momentum = 0) {
  CaseSpec spec = spec_of(1, 1, Precision::kBFloat16);
  spec.steps = 3;
  spec.optimizer.kind = kind;
  spec.optimizer.lr = kRate;
  spec.optimizer.weight_decay = kDecay;
  spec.optimizer.momentum = momentum;
  spec.optimizer.max_norm = kMaxNorm;
  return spec;
}

// `first`: it skips the steps before.
GoldenRecord golden_of_steps(int64_t first = 1) {
  std::vector<Observation> seen_by_golden;
  for (int64_t step = first; step <= 3; ++step) {
    seen_by_golden.push_back(seen("grad.w", numbered({6}), Phase::kStep, step));
  }
  return golden_from(seen_by_golden);
}

// Reports three steps of LibTorch's optimizer to an OwnOptimizer; `spoil` may change the reported
// tensors.
template <class Spoil>
std::vector<std::string> findings(const CaseSpec& spec, at::ScalarType dtype, const Spoil& spoil,
                                  int64_t first = 1, double third = 1e-9) {
  const GoldenRecord golden = golden_of_steps(first);
  OwnOptimizer own(spec, golden, Mesh(), 0);
  const at::Tensor w = at::linspace(-1, 1, 6, at::kDouble).to(dtype);
  own.begin("w", w);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  const OptimizerSpec& o = spec.optimizer;
  if (o.kind == OptimizerKind::kAdamW) {
    optimizer = std::make_unique<torch::optim::AdamW>(
        std::vector<at::Tensor>{w}, torch::optim::AdamWOptions(o.lr).weight_decay(o.weight_decay));
  } else {
    optimizer = std::make_unique<torch::optim::SGD>(
        std::vector<at::Tensor>{w},
        torch::optim::SGDOptions(o.lr).momentum(o.momentum).weight_decay(o.weight_decay));
  }
  std::vector<std::string> found;
  const auto tell = [&](const std::string& name, int64_t step, at::Tensor value) {
    spoil(name, step, value);
    const std::string finding = own.see(seen(name, value, Phase::kStep, step), value);
    if (!finding.empty())
      found.push_back(name + " of step " + std::to_string(step) + " " + finding);
  };
  for (int64_t step = 1; step <= 3; ++step) {
    const at::Tensor gradient =
        at::tensor({0.9, -0.4, third, 0.3, -2.0, 0.0}, at::kDouble).mul(step).to(dtype);
    if (first > 1) tell("metric.skipped", step, at::scalar_tensor(0, at::kDouble));
    const double norm = gradient.to(at::kDouble).norm().item<double>();
    tell("grad.w", step, gradient.clone());
    tell("grad_norm", step, at::scalar_tensor(norm, at::kDouble));
    const double clip = o.max_norm > 0 ? std::min(1.0, o.max_norm / (norm + 1e-6)) : 1.0;
    w.mutable_grad() = gradient * clip;
    optimizer->step();
    tell("param.w", step, w.clone());
    if (optimizer->state().empty()) continue;  // plain SGD has no state
    const auto& state = *optimizer->state().begin()->second;
    if (const auto* adam = dynamic_cast<const torch::optim::AdamWParamState*>(&state)) {
      tell("exp_avg.w", step, adam->exp_avg().clone());
      tell("exp_avg_sq.w", step, adam->exp_avg_sq().clone());
    } else if (o.momentum != 0) {
      const auto& sgd = dynamic_cast<const torch::optim::SGDParamState&>(state);
      tell("momentum_buffer.w", step, sgd.momentum_buffer().clone());
    }
  }
  const int64_t kinds = o.kind == OptimizerKind::kAdamW ? 3 : o.momentum != 0 ? 2 : 1;
  CHECK(own.judged() == kinds * 3 * 6);
  return found;
}

const auto kAsItIs = [](const std::string&, int64_t, at::Tensor&) {};

}  // namespace

TEST_CASE("LibTorch's optimizers follow from their own state, in both wide dtypes",
          "[own_optimizer]") {
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kDouble);
  CHECK(findings(spec_with(OptimizerKind::kAdamW), dtype, kAsItIs).empty());
  CHECK(findings(spec_with(OptimizerKind::kSgd), dtype, kAsItIs).empty());
  CHECK(findings(spec_with(OptimizerKind::kSgd, 0.9), dtype, kAsItIs).empty());
}

TEST_CASE("The rank's own steps count where the golden skipped one of them", "[own_optimizer]") {
  const CaseSpec spec = spec_with(OptimizerKind::kAdamW);
  CHECK(findings(spec, at::kFloat, kAsItIs, /*first=*/2).empty());
  const auto found = findings(
      spec, at::kFloat,
      [](const std::string& name, int64_t step, at::Tensor& value) {
        if (name == "metric.skipped" && step == 1) value = at::ones_like(value);
      },
      /*first=*/2);
  REQUIRE_FALSE(found.empty());
  CHECK_THAT(found[0], Catch::StartsWith("param.w of step 1 does not follow"));
}

TEST_CASE("NaN is right where the rank's own gradient or norm is NaN", "[own_optimizer]") {
  const OptimizerKind kind = GENERATE(OptimizerKind::kAdamW, OptimizerKind::kSgd);
  const bool of_norm = GENERATE(true, false);
  // From step 2 on, one element or, with the norm, all of them.
  const auto spoil = [&](const std::string& name, int64_t step, at::Tensor& value) {
    if (step < 2 || (name == "grad_norm" && !of_norm)) return;
    if (name == "grad.w" && step > 2) return;
    if (name == "grad.w" || !of_norm) {
      value[1].fill_(NAN);
    } else {
      value.fill_(NAN);
    }
  };
  CHECK(findings(spec_with(kind), at::kFloat, spoil).empty());
  // A number where NaN is due is wrong.
  const auto found = findings(spec_with(kind), at::kFloat,
                              [&](const std::string& name, int64_t step, at::Tensor& value) {
                                if (name.starts_with("grad")) spoil(name, step, value);
                              });
  REQUIRE_FALSE(found.empty());
  CHECK_THAT(found[0], Catch::StartsWith("param.w of step 2 does not follow"));
}

TEST_CASE("What float32 cannot hold is infinite, and the step follows from it", "[own_optimizer]") {
  const OptimizerKind kind = GENERATE(OptimizerKind::kAdamW, OptimizerKind::kSgd);
  CaseSpec spec = spec_with(kind, kind == OptimizerKind::kSgd ? 0.9 : 0);
  spec.optimizer.max_norm = 0;
  const double third = GENERATE(1e22, 3e38, HUGE_VAL);
  CHECK(findings(spec, at::kFloat, kAsItIs, 1, third).empty());
  // A finite number where infinity is due is wrong.
  const std::string state = kind == OptimizerKind::kAdamW ? "exp_avg_sq.w" : "momentum_buffer.w";
  if (kind == OptimizerKind::kSgd && third < 1e30) return;
  const auto found = findings(
      spec, at::kFloat,
      [&](const std::string& name, int64_t step, at::Tensor& value) {
        if (name == state && step == 3) value[2].fill_(0);
      },
      1, third);
  REQUIRE(found.size() == 1);
  CHECK_THAT(found[0], Catch::StartsWith(state + " of step 3"));
  // Momentum at an infinite weight is NaN.
  CHECK_THAT(found[0], Catch::Contains("should be inf") || Catch::Contains("nan"));
}

TEST_CASE("An update that is off by a thousandth is found at its step", "[own_optimizer]") {
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    const auto found = findings(spec_with(kind), at::kFloat,
                                [](const std::string& name, int64_t step, at::Tensor& value) {
                                  if (name == "param.w" && step == 2) value[0] += 1e-3 * kRate;
                                });
    REQUIRE_FALSE(found.empty());
    CHECK_THAT(found[0], Catch::StartsWith("param.w of step 2 does not follow") &&
                             Catch::Contains("1 of 6 elements") &&
                             Catch::Contains("local offset 0"));
  }
}

TEST_CASE("State or parameters rounded through bfloat16 do not follow", "[own_optimizer]") {
  const std::string rounded = GENERATE("param.w", "exp_avg.w", "exp_avg_sq.w");
  const auto found = findings(spec_with(OptimizerKind::kAdamW), at::kFloat,
                              [&](const std::string& name, int64_t, at::Tensor& value) {
                                if (name == rounded) value = value.to(at::kBFloat16).to(at::kFloat);
                              });
  REQUIRE_FALSE(found.empty());
  CHECK_THAT(found[0], Catch::StartsWith(rounded + " of step 1 "));
}

TEST_CASE("A state that is not kept from step to step does not follow", "[own_optimizer]") {
  const auto found = findings(spec_with(OptimizerKind::kSgd, 0.9), at::kFloat,
                              [](const std::string& name, int64_t step, at::Tensor& value) {
                                if (name == "momentum_buffer.w" && step == 2)
                                  value = at::zeros_like(value);
                              });
  REQUIRE(found.size() >= 2);
  CHECK_THAT(found[0], Catch::StartsWith("momentum_buffer.w of step 2 "));
  CHECK_THAT(found[1], Catch::StartsWith("param.w of step 3 "));  // follows from earlier reports
}

TEST_CASE("A step that an overflow skips moves nothing", "[own_optimizer]") {
  const CaseSpec spec = spec_with(OptimizerKind::kAdamW);
  const GoldenRecord golden = golden_of_steps();
  for (const double moved : {0.0, 1e-6}) {
    OwnOptimizer own(spec, golden, Mesh(), 0);
    const at::Tensor w = at::ones({4}, at::kFloat), after = w + moved;
    own.begin("w", w);
    const at::Tensor yes = at::scalar_tensor(1.0, at::kDouble);
    CHECK(own.see(seen("metric.skipped", yes, Phase::kStep, 1), yes).empty());
    CHECK(own.see(seen("param.w", after, Phase::kStep, 1), after).empty() == (moved == 0));
  }
}

TEST_CASE("The recorder makes a row wrong whose values do not follow", "[own_optimizer]") {
  CaseSpec spec = spec_with(OptimizerKind::kSgd);
  spec.optimizer.weight_decay = 0;
  const at::Tensor w = at::full({4}, 0.5, at::kDouble), gradient = at::full({4}, 0.25, at::kDouble);
  const at::Tensor norm = at::scalar_tensor(0.5, at::kDouble);
  const GoldenRecord golden =
      golden_from({seen("grad.w", gradient), seen("grad_norm", norm), seen("param.w", w)});
  for (const double lost : {0.0, 1e-6}) {  // small against the allowance in bfloat16
    const Mesh mesh = spec.parallel.mesh();
    RankRecorder recorder(spec, mesh, 0, &golden, {});
    recorder.observe(seen("initial.w", w + kRate * 0.25));
    recorder.observe(seen("grad.w", gradient));
    recorder.observe(seen("grad_norm", norm));
    recorder.observe(seen("param.w", w + lost));
    const RankReport report = recorder.finish();
    REQUIRE(report.rows.size() == 3);
    CHECK(report.rows[2].is_wrong() == (lost != 0));
  }
}

namespace {

constexpr const char* kMatrix = "model.layers.0.self_attn.q_proj.weight";

// Tells an OwnOptimizer two steps of Muon, written out here. `spoil` may change the tensors.
template <class Spoil>
std::vector<std::string> findings_of_muon(at::ScalarType dtype, const Spoil& spoil) {
  CaseSpec spec = spec_with(OptimizerKind::kMuon, 0.9);
  spec.optimizer.nesterov = true;
  const at::Tensor gradient = at::sin(at::arange(1, 13, at::kDouble)).view({4, 3}).mul(0.1);
  std::vector<Observation> of_golden;
  for (int64_t step = 1; step <= 2; ++step) {
    for (const char* kind : {"grad.", "whole."}) {
      of_golden.push_back(seen(kind + std::string(kMatrix), gradient, Phase::kStep, step));
    }
  }
  const GoldenRecord golden = golden_from(of_golden);
  OwnOptimizer own(spec, golden, Mesh(), 0);
  at::Tensor w = at::linspace(-1, 1, 12, at::kDouble).view({4, 3}).to(dtype);
  at::Tensor buffer = at::zeros({4, 3}, dtype);
  own.begin(kMatrix, w);
  std::vector<std::string> found;
  const auto tell = [&](const std::string& name, int64_t step, at::Tensor value) {
    spoil(name, step, value);
    const std::string finding = own.see(seen(name, value, Phase::kStep, step), value);
    if (!finding.empty()) found.push_back(name.substr(0, name.find('.')) + " " + finding);
    return value;
  };
  for (int64_t step = 1; step <= 2; ++step) {
    const at::Tensor g = gradient.mul(step).to(dtype);
    tell("grad." + std::string(kMatrix), step, g.clone());
    tell("grad_norm", step,
         at::scalar_tensor(g.to(at::kDouble).norm().item<double>(), at::kDouble));
    buffer = buffer * 0.9 + g * 0.1;
    const at::Tensor whole =
        tell("whole." + std::string(kMatrix), step, buffer * 0.9 + g * 0.1).to(dtype);
    // The iteration as PyTorch writes it, on the transposed matrix.
    at::Tensor x = whole.t() / whole.norm();
    for (int i = 0; i < 5; ++i) {
      const at::Tensor gram = x.mm(x.t());
      x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram.mm(gram)).mm(x);
    }
    w = w * (1 - kRate * kDecay) - x.t() * (kRate * std::sqrt(4.0 / 3.0));
    tell("param." + std::string(kMatrix), step, w.clone());
    tell("momentum_buffer." + std::string(kMatrix), step, buffer.clone());
  }
  return found;
}

}  // namespace

TEST_CASE("Muon's step follows from the matrix that the rank has collected", "[own_optimizer]") {
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kDouble);
  CHECK(findings_of_muon(dtype, kAsItIs).empty());
  const auto of = [&](const std::string& prefix, double factor) {
    return findings_of_muon(dtype, [=](const std::string& name, int64_t step, at::Tensor& value) {
      if (step == 2 && name.starts_with(prefix)) value[3][1] *= factor;
    });
  };
  for (const char* wrong : {"whole.", "param.", "momentum_buffer."}) {
    INFO(wrong);
    const auto found = of(wrong, 1.01);
    REQUIRE(found.size() == 1);
    CHECK_THAT(found[0],
               Catch::StartsWith(std::string(wrong).substr(0, std::string(wrong).size() - 1) +
                                 " does not follow"));
  }
}
