// The golden's Muon, which knows no iteration but singular values, makes the steps of
// torch.optim.Muon in float64 (tests/unit/optim/torch_muon/make.py).
#include "golden/muon.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "golden/witness_optimizer.h"

namespace shardproof::golden {
namespace {

using Json = nlohmann::json;

at::Tensor matrix_of(const Json& rows) {
  std::vector<double> values;
  for (const Json& row : rows) {
    for (const Json& value : row) values.push_back(value);
  }
  return at::tensor(values, at::kDouble).view({std::ssize(rows), -1});
}

}  // namespace

TEST_CASE("The golden's Muon makes the steps of PyTorch", "[golden][PW-13]") {
  std::ifstream in("tests/unit/optim/torch_muon/steps.json");
  REQUIRE(in);
  const Json cases = Json::parse(in);
  int judged = 0;
  for (const auto& [name, made] : cases.items()) {
    if (name == "query_key_value") continue;  // no model here joins them
    INFO(name);
    sim::OptimizerSpec spec;
    spec.kind = OptimizerKind::kMuon;
    spec.lr = made["lr"];
    spec.momentum = made["momentum"];
    spec.nesterov = made["nesterov"];
    spec.weight_decay = made["weight_decay"];
    spec.max_norm = 0;
    const bool joined = made["rows"].size() == 2;
    const auto in_layer = [&](const Json& rows) {
      return joined ? matrix_of(rows).unsqueeze(0) : matrix_of(rows);
    };
    const at::Tensor weight = in_layer(made["weight"]);
    const at::Tensor head = at::ones({2, 2}, at::kDouble);
    WitnessOptimizer optimizer(spec, {weight, head},
                               {joined ? "model.layers.0.mlp.experts.gate_up_proj"
                                       : "model.layers.0.self_attn.q_proj.weight",
                                "lm_head.weight"});
    for (const Json& step : made["steps"]) {
      optimizer.step({in_layer(step["grad"]), at::zeros({2, 2}, at::kDouble)}, spec.lr);
      CHECK((weight - in_layer(step["weight"])).abs().max().item<double>() < 1e-12);
      const auto state = optimizer.state_of(0);
      REQUIRE(state.size() == 1);
      CHECK(state[0].first == ObservationKind::kMomentumBuffer);
      CHECK((state[0].second - in_layer(step["buffer"])).abs().max().item<double>() < 1e-15);
    }
    CHECK(optimizer.state_of(1).size() == 2);  // the moments of AdamW
    ++judged;
  }
  CHECK(judged >= 9);
}

TEST_CASE("A matrix that is not finite has an update that is not a number", "[golden][PW-13]") {
  at::Tensor matrix = at::ones({3, 2}, at::kDouble);
  matrix[1][1] = INFINITY;
  CHECK(muon_update("model.layers.0.mlp.up_proj.weight", matrix).isnan().all().item<bool>());
}

}  // namespace shardproof::golden
