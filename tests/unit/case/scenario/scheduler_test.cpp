// Learning-rate schedulers and model families in scenarios.
#include <catch2/catch.hpp>

#include "tests/unit/case/scenario/scenario_text.h"

using namespace shardproof;
using namespace shardproof::sim;

namespace {

OptimizerSpec scheduled(const std::string& scheduler) {
  return only_case("run: {scheduler: " + scheduler + "}").optimizer;
}

}  // namespace

TEST_CASE("One scheduler, a list of one, and several with milestones", "[scenario][PW-12]") {
  CHECK(scheduled("[]").schedulers.empty());
  for (const std::string text :
       {"{name: torch.optim.lr_scheduler.LinearLR, kwargs: {start_factor: 0.25, total_iters: 7}}",
        "[{name: LinearLR, kwargs: {start_factor: 0.25, total_iters: 7}}]"}) {
    const OptimizerSpec optimizer = scheduled(text);
    REQUIRE(optimizer.schedulers.size() == 1);
    CHECK(optimizer.schedulers[0].kind == ScheduleKind::kLinear);
    CHECK(optimizer.schedulers[0].start_factor == 0.25);
    CHECK(optimizer.schedulers[0].end_factor == 1.0);
    CHECK(optimizer.schedulers[0].total_iters == 7);
  }
  const OptimizerSpec several = scheduled(
      "[{name: ConstantLR}, {name: LambdaLR, kwargs: {lr_lambda: 0.5}}, {name: CosineAnnealingLR, "
      "kwargs: {T_max: 9, eta_min: 1e-4}}, {milestones: [3, 5]}]");
  REQUIRE(several.schedulers.size() == 3);
  CHECK(several.schedulers[0].factor == 1.0 / 3);
  CHECK(several.schedulers[1].lr_lambda == std::vector<double>{0.5});
  CHECK(several.schedulers[2].t_max == 9);
  CHECK(several.schedulers[2].eta_min == 1e-4);
  CHECK(several.milestones == std::vector<int64_t>{3, 5});
  const OptimizerSpec endless = scheduled(
      "[{name: LinearLR}, {name: ConstantLR, kwargs: {factor: 1.0, total_iters: 10000000000, "
      "last_epoch: -1}}, {milestones: [10000000000]}]");
  CHECK(endless.schedulers[1].total_iters == 10000000000);
  CHECK(endless.milestones == std::vector<int64_t>{10000000000});
  const CaseSpec there_and_back = case_spec_from_json(
      to_json(only_case("run: {scheduler: {name: LambdaLR, kwargs: {lr_lambda: [1, 0.5]}}}")));
  CHECK(there_and_back.optimizer.schedulers[0].lr_lambda == std::vector<double>{1, 0.5});
}

TEST_CASE("What is wrong with a scheduler is said where it stands", "[scenario][PW-12]") {
  const auto says = [](const std::string& scheduler, const std::string& text) {
    check_refused({{"run: {scheduler: " + scheduler + "}\n", text}});
  };
  says("{name: LinaerLR}", "did you mean LinearLR?");
  says("{name: torch.optim.lr_scheduler.StepLR}", "known are ConstantLR, LinearLR");
  says("{name: LinearLR, kwargs: {start_facter: 0.1}}", "did you mean start_factor?");
  says("{name: ConstantLR, kwargs: {T_max: 3}}", "ConstantLR has no constant 'T_max'");
  says("{name: LinearLR, kwargs: {start_factor: 0}}", "it must be above 0 and at most 1");
  says("{name: LinearLR, kwargs: {end_factor: 1.5}}", "at most 1");
  says("{name: LinearLR, kwargs: {total_iters: 0}}", "1 or more");
  says("{name: LinearLR, kwargs: {total_iters: 1e16}}", "1 or more");
  says("{name: LinearLR, kwargs: {last_epoch: 3}}", "last_epoch of LinearLR is 3; write -1");
  says("{name: CosineAnnealingLR}", "CosineAnnealingLR has no T_max");
  says("{name: LambdaLR, kwargs: {lr_lambda: []}}", "a factor, or a list");
  says("{name: LambdaLR, kwargs: {lr_lambda: \"lambda epoch: 1\"}}", "a factor, or a list");
  says("[{name: LinearLR}, {name: ConstantLR}]", "2 schedulers have 0 milestones between them");
  says("[{name: LinearLR}, {milestones: [3]}]", "1 schedulers have 1 milestones");
  says("[{milestones: [3]}, {name: LinearLR}]", "milestones: [..]} last");
  says("[{name: LinearLR}, {name: ConstantLR}, {milestones: [3], kwargs: {T_max: 7}}]",
       "the milestones of run.scheduler take no kwargs");
  says("[{name: LinearLR}, {name: ConstantLR}, {milestones: [0]}]", "do not grow from 1");
  says("[{}]", "neither a scheduler nor");
  says("3", "a list of maps");
}

TEST_CASE("A family of models is named, and its sizes follow from those that are given",
          "[scenario][MP-1]") {
  const CaseSpec gemma = only_case(
      "model: {family: gemma3, hidden_size: 24, num_attention_heads: 6, hidden_act: silu, "
      "sliding_window: 5}");
  CHECK(gemma.model["model_type"] == "gemma3_text");
  CHECK(gemma.model["head_dim"] == 4);
  CHECK(gemma.model["query_pre_attn_scalar"] == 4);
  CHECK(gemma.model["num_key_value_heads"] == 6);
  CHECK(gemma.model["hidden_activation"] == "silu");
  CHECK_FALSE(gemma.model.contains("tie_word_embeddings"));  // the family ties them
  const CaseSpec qwen =
      only_case("model: {family: qwen3, layer_types: [full_attention, sliding_attention]}");
  CHECK(qwen.model["layer_types"].size() == 2);
  CHECK(qwen.model["head_dim"] == 12);
}
