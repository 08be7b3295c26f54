// Muon's steps equal those of torch.optim.Muon in float64 (torch_muon/make.py).
#include "optim/muon.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

namespace shardproof {
namespace {

using Json = nlohmann::json;

Json stored_steps() {
  std::ifstream in("tests/unit/optim/torch_muon/steps.json");
  REQUIRE(in);
  return Json::parse(in);
}

at::Tensor matrix_of(const Json& rows) {
  std::vector<double> values;
  for (const Json& row : rows) {
    for (const Json& value : row) values.push_back(value);
  }
  return at::tensor(values, at::kDouble).view({std::ssize(rows), -1});
}

double distance(const at::Tensor& a, const Json& b) {
  return (a - matrix_of(b)).abs().max().item<double>();
}

OptimizerOptions options_of_muon(const Json& made) {
  return {.kind = OptimizerKind::kMuon,
          .lr = made["lr"],
          .weight_decay = made["weight_decay"],
          .momentum = made["momentum"],
          .nesterov = made["nesterov"]};
}

}  // namespace

TEST_CASE("Muon makes the steps of PyTorch, each joined matrix alone", "[optim][PW-13]") {
  const Json cases = stored_steps();
  REQUIRE(cases.size() >= 10);
  for (const auto& [name, made] : cases.items()) {
    INFO(name);
    const OptimizerOptions options = options_of_muon(made);
    const auto rows = made["rows"].get<std::vector<int64_t>>();
    const at::Tensor weight = matrix_of(made["weight"]);
    OptimizerState state;
    for (const Json& step : made["steps"]) {
      MuonStep next = muon_direction(matrix_of(step["grad"]), state, options);
      next.update = muon_update(next.update, rows);
      muon_step(weight, next, state, options);
      CHECK(distance(weight, step["weight"]) < 1e-12);
      CHECK(distance(state.momentum_buffer, step["buffer"]) < 1e-15);
    }
    CHECK(state.step == 3);
  }
}

TEST_CASE("A stack of matrices gets the update of each", "[optim][PW-13]") {
  const at::Tensor stack = at::rand({3, 10, 4}, at::kDouble) - 0.5;
  const at::Tensor together = muon_update(stack, {5, 5});
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 2; ++j) {
      const at::Tensor alone = muon_update(stack[i].narrow(0, 5 * j, 5), {5});
      CHECK(at::allclose(together[i].narrow(0, 5 * j, 5), alone, 1e-12, 1e-12));
    }
  }
}

}  // namespace shardproof
