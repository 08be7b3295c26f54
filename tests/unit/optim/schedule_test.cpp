// Learning rates equal those of PyTorch's schedulers (torch_schedules/make.py) to the bit.
#include "optim/schedule.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace shardproof {
namespace {

using Json = nlohmann::json;

ScheduleStage stage_of(const Json& item) {
  const std::string name = item["name"];
  const Json& kwargs = item["kwargs"];
  ScheduleStage stage;
  stage.kind = name == "ConstantLR" ? ScheduleKind::kConstant
               : name == "LinearLR" ? ScheduleKind::kLinear
               : name == "LambdaLR" ? ScheduleKind::kLambda
                                    : ScheduleKind::kCosine;
  stage.start_factor = kwargs.value(name == "ConstantLR" ? "factor" : "start_factor", 1.0 / 3);
  stage.end_factor = kwargs.value("end_factor", 1.0);
  stage.total_iters = kwargs.value("total_iters", 5);
  stage.t_max = kwargs.value("T_max", 1);
  stage.eta_min = kwargs.value("eta_min", 0.0);
  stage.lambdas = kwargs.value("lr_lambda", std::vector<double>{1.0});
  return stage;
}

ScheduleOptions options_of(const Json& scheduler) {
  ScheduleOptions options;
  for (const Json& item : scheduler) {
    if (item.contains("name")) options.stages.push_back(stage_of(item));
    if (item.contains("milestones"))
      options.milestones = item["milestones"].get<std::vector<int64_t>>();
  }
  return options;
}

double from_hex(const std::string& text) { return std::strtod(text.c_str(), nullptr); }

Json stored() {
  std::ifstream in("tests/unit/optim/torch_schedules/rates.json");
  REQUIRE(in);
  return Json::parse(in);
}

}  // namespace

TEST_CASE("Every rate is PyTorch's, to the bit", "[optim][PW-9]") {
  const Json cases = stored();
  REQUIRE(cases.size() >= 16);
  for (const auto& [name, made] : cases.items()) {
    INFO(name);
    LrSchedule schedule(options_of(made["scheduler"]), made["lr"]);
    for (size_t step = 0; step < made["rates"].size(); ++step) {
      INFO("after " << step << " steps");
      CHECK(schedule.after(static_cast<int64_t>(step)) == from_hex(made["rates"][step]));
    }
  }
}

TEST_CASE("A rate can be asked for again, and for steps that went by", "[optim][PW-9]") {
  const Json made = stored()["three"];
  LrSchedule schedule(options_of(made["scheduler"]), made["lr"]);
  for (const size_t step : {12, 12, 3, 0, 29, 7}) {
    CHECK(schedule.after(static_cast<int64_t>(step)) == from_hex(made["rates"][step]));
  }
}

TEST_CASE("Schedulers without the milestones between them are asserted", "[optim][PW-9]") {
  CHECK_THROWS_AS(LrSchedule({.stages = {{}, {}}}, 1.0), InternalError);
  CHECK_THROWS_AS(LrSchedule({.stages = {{.lambdas = {}}}}, 1.0), InternalError);
}

}  // namespace shardproof
