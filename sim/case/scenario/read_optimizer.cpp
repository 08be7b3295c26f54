#include "sim/case/scenario/read_optimizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "sim/case/scenario/read_scheduler.h"

namespace shardproof::sim {
namespace {

using nlohmann::json;

constexpr const char* kKwargs = "run.optimizer.kwargs.";

std::vector<std::string> constants_of_optimizer(const std::string& kind) {
  std::vector<std::string> names = {"lr",      "weight_decay", "maximize",
                                    "foreach", "fused",        "differentiable"};
  const std::vector<std::string> own =
      kind == "SGD" ? std::vector<std::string>{"momentum", "dampening", "nesterov"}
                    : std::vector<std::string>{"betas", "eps", "amsgrad", "capturable"};
  names.insert(names.end(), own.begin(), own.end());
  return names;
}

// PyTorch's optimizers take no others either.
void check_constants(const Settings& settings, const std::string& kind) {
  const std::vector<std::string> known = constants_of_optimizer(kind);
  std::vector<std::string> allowed;
  for (const std::string& name : known) allowed.push_back(kKwargs + name);
  const std::string other = settings.given_below(kKwargs, allowed);
  if (other.empty()) return;
  settings.fail(other, fmt::format("{} has no {}", kind, other.substr(other.rfind('.') + 1)),
                fmt::format("remove it; {} takes {}", kind, fmt::join(known, ", ")));
}

// null: PyTorch would choose, and never what excludes another choice.
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
  if (!optimizer.nesterov || (optimizer.momentum > 0 && optimizer.dampening == 0)) return;
  settings.fail(std::string(kKwargs) + "nesterov",
                fmt::format("nesterov is true with momentum {} and dampening {}",
                            optimizer.momentum, optimizer.dampening),
                "it needs a momentum above 0 and no dampening");
}

// "2", "1.5", "inf": as few characters as say it, since it is part of the golden's key.
std::string norm_type(const Settings& settings) {
  const std::string path = "run.grad_norm.type", text = settings.get<std::string>(path);
  if (text == "inf") return text;
  double type = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), type);
  if (error != std::errc{} || end != text.data() + text.size() || !(type > 0) || type > 1000) {
    settings.fail(path, fmt::format("{} is '{}'", path, text),
                  "write a number above 0 and at most 1000, or inf");
  }
  return fmt::format("{}", type);
}

}  // namespace

void read_optimizer(const Settings& settings, OptimizerSpec& optimizer) {
  const std::string kwargs = kKwargs;
  const json betas = settings.value(kwargs + "betas");
  const json max_norm = settings.value("run.max_grad_norm");
  optimizer.kind = settings.get<std::string>("run.optimizer.name");
  check_constants(settings, optimizer.kind);
  check_ways(settings);
  optimizer.lr = settings.get<double>(kwargs + "lr");
  optimizer.beta1 = betas[0].get<double>();
  optimizer.beta2 = betas[1].get<double>();
  optimizer.eps = settings.get<double>(kwargs + "eps");
  optimizer.weight_decay = settings.get<double>(kwargs + "weight_decay");
  optimizer.momentum = settings.get<double>(kwargs + "momentum");
  optimizer.dampening = settings.get<double>(kwargs + "dampening");
  optimizer.nesterov = settings.get<bool>(kwargs + "nesterov");
  check_momentum(settings, optimizer);
  optimizer.norm_type = norm_type(settings);
  optimizer.max_norm = max_norm.is_null() ? 0.0 : max_norm.get<double>();
  read_scheduler(settings, optimizer);
}

}  // namespace shardproof::sim
