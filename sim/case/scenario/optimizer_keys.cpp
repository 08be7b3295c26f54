#include "sim/case/scenario/optimizer_keys.h"

#include "sim/case/names.h"

namespace shardproof::sim {
namespace {

using nlohmann::json;

constexpr double kMaxOptimizerConstant = 1e6;

// A switch of PyTorch's optimizers that changes how a step is made, or that no step here has.
// Without a default of its own it may be null: PyTorch chooses.
SchemaKey way(const std::string& name, const json& otherwise, const std::string& doc) {
  SchemaKey key{"run.optimizer.kwargs." + name, KeyType::kBool, otherwise, doc};
  key.nullable = otherwise.is_null();
  return key;
}

}  // namespace

std::vector<SchemaKey> optimizer_keys() {
  return {
      {"run.scheduler", KeyType::kRecords, json::array(),
       "Learning rates over steps: a scheduler, or a list of them that ends with {milestones: ..}"},
      {"run.scheduler[].name", KeyType::kName, "",
       "torch.optim.lr_scheduler.LinearLR is the same name", 0, 0, known_schedulers()},
      {"run.scheduler[].kwargs", KeyType::kMap, json::object(),
       "Its constants under PyTorch's names; lr_lambda is a factor, or a list of one per step"},
      {"run.scheduler[].milestones", KeyType::kIntegers, json::array(),
       "Steps after which the next scheduler takes over", 0, kManySteps},
      {"run.optimizer.name", KeyType::kName, "AdamW", "torch.optim.AdamW is the same name", 0, 0,
       known_optimizers(), false, "optimizer"},
      {"run.optimizer.kwargs.lr", KeyType::kNumber, 1e-3, "Learning rate", 0,
       kMaxOptimizerConstant},
      {"run.optimizer.kwargs.betas", KeyType::kNumberPair, json::array({0.9, 0.999}), "AdamW", 0,
       0.9999999999},
      {"run.optimizer.kwargs.eps", KeyType::kNumber, 1e-8, "AdamW", 0, kMaxOptimizerConstant},
      {"run.optimizer.kwargs.weight_decay", KeyType::kNumber, 0.01,
       "Of every parameter, with SGD too", 0, kMaxOptimizerConstant},
      {"run.optimizer.kwargs.momentum", KeyType::kNumber, 0.0, "SGD", 0, kMaxOptimizerConstant},
      {"run.optimizer.kwargs.dampening", KeyType::kNumber, 0.0, "SGD with momentum", 0, 1},
      {"run.optimizer.kwargs.nesterov", KeyType::kBool, false, "SGD with momentum"},
      way("foreach", nullptr, "How PyTorch loops over parameters; the values are the same"),
      way("fused", nullptr, "How PyTorch computes a step, which foreach excludes; the same values"),
      way("amsgrad", false, "AdamW: false is all there is"),
      way("maximize", false, "false is all there is"),
      way("capturable", false, "AdamW: false is all there is"),
      way("differentiable", false, "false is all there is"),
  };
}

}  // namespace shardproof::sim
