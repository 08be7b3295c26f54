// The optimizer of a scenario under PyTorch's names, and the norm to which gradients are clipped.
//
// `foreach` and `fused` choose PyTorch's implementation of a step: they are checked as PyTorch
// checks them, and the step is the same. `amsgrad`, `maximize`, `capturable` and `differentiable`
// are known, but no step here supports them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <map>

#include "sim/case/scenario/blocks.h"

namespace shardproof::sim {
namespace {

using nlohmann::json;

constexpr const char* kKwargs = "run.optimizer.kwargs.";

std::vector<std::string> constants_of_optimizer(OptimizerKind kind) {
  std::vector<std::string> names = {"lr",      "weight_decay", "maximize",
                                    "foreach", "fused",        "differentiable"};
  const std::map<OptimizerKind, std::vector<std::string>> own = {
      {OptimizerKind::kAdamW, {"betas", "eps", "amsgrad", "capturable"}},
      {OptimizerKind::kSgd, {"momentum", "dampening", "nesterov"}},
      {OptimizerKind::kMuon, {"momentum", "nesterov", "betas", "eps", "amsgrad", "capturable"}}};
  names.insert(names.end(), own.at(kind).begin(), own.at(kind).end());
  return names;
}

// PyTorch's optimizers take the same constants; Muon has those of AdamW for the parameters that are
// not matrices of hidden layers.
void check_constants(const Settings& settings, OptimizerKind kind) {
  const std::vector<std::string> known = constants_of_optimizer(kind);
  std::vector<std::string> allowed;
  for (const std::string& name : known) allowed.push_back(kKwargs + name);
  const std::string other = settings.given_below(kKwargs, allowed);
  if (other.empty()) return;
  settings.fail(other, fmt::format("{} has no {}", kind, other.substr(other.rfind('.') + 1)),
                fmt::format("remove it; {} takes {}", kind, fmt::join(known, ", ")));
}

// false for null, for which PyTorch would never choose an option that excludes another.
bool is_true(const Settings& settings, const std::string& name) {
  const json value = settings.value(kKwargs + name);
  return value.is_boolean() && value.get<bool>();
}

void check_ways(const Settings& settings) {
  for (const char* name : {"amsgrad", "maximize", "capturable", "differentiable"}) {
    if (!is_true(settings, name)) continue;
    settings.fail(std::string(kKwargs) + name, fmt::format("{} is true; no step here has it", name),
                  "write false, or remove it");
  }
  if (is_true(settings, "foreach") && is_true(settings, "fused")) {
    settings.fail(std::string(kKwargs) + "fused", "foreach and fused are both true",
                  "a step is computed in one of the two ways; set one to false");
  }
}

void check_momentum(const Settings& settings, const OptimizerSpec& optimizer) {
  if (optimizer.kind == OptimizerKind::kMuon) return;  // no momentum: it is the same step
  if (!optimizer.nesterov || (optimizer.momentum > 0 && optimizer.dampening == 0)) return;
  settings.fail(std::string(kKwargs) + "nesterov",
                fmt::format("nesterov is true with momentum {} and dampening {}",
                            optimizer.momentum, optimizer.dampening),
                "it needs a momentum above 0 and no dampening");
}

// float32 holds norms, and powers, between these: of 1e9 elements the norm of type 0.25 is at most
// 1e36 times the largest, and 0.01^16 is 1e-32.
constexpr double kLeastNormType = 0.25, kMostNormType = 16;

}  // namespace

// "2", "1.5", "inf": the shortest form, since it is part of the golden's key.
void set_norm_type(const Settings& settings, OptimizerSpec& optimizer) {
  const std::string path = "run.grad_norm.type", text = optimizer.norm_type;
  if (text == "inf") return;
  double type = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), type);
  if (error != std::errc{} || end != text.data() + text.size() || !(type >= kLeastNormType) ||
      !(type <= kMostNormType)) {
    settings.fail(path, fmt::format("{} is '{}'", path, text),
                  fmt::format("write a number from {} to {} in quotes, or inf", kLeastNormType,
                              kMostNormType));
  }
  optimizer.norm_type = fmt::format("{}", type);
}

void set_muon_defaults(OptimizerSpec& optimizer) {
  optimizer.momentum = 0.95;
  optimizer.nesterov = true;
  optimizer.weight_decay = 0.1;
}

void set_optimizer(const Settings& settings, OptimizerSpec& optimizer) {
  check_constants(settings, optimizer.kind);
  check_ways(settings);
  const json betas = settings.value(std::string(kKwargs) + "betas");
  optimizer.beta1 = betas[0].get<double>();
  optimizer.beta2 = betas[1].get<double>();
  if (settings.value("run.max_grad_norm").is_null()) optimizer.max_norm = 0;
  if (optimizer.kind == OptimizerKind::kMuon) {
    const auto given = [&](const char* name) {
      return settings.given(std::string(kKwargs) + name);
    };
    OptimizerSpec muon;
    set_muon_defaults(muon);
    if (!given("momentum")) optimizer.momentum = muon.momentum;
    if (!given("nesterov")) optimizer.nesterov = muon.nesterov;
    if (!given("weight_decay")) optimizer.weight_decay = muon.weight_decay;
  }
  check_momentum(settings, optimizer);
  set_schedulers(settings, optimizer);
}

}  // namespace shardproof::sim
