#include "model/expert_weights.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace shardproof {
namespace {

struct ExpertParts {
  const char *gate, *up, *down;
};

constexpr ExpertParts kQwenNames{"gate_proj", "up_proj", "down_proj"};
constexpr ExpertParts kMixtralNames{"w1", "w3", "w2"};

// Takes model.layers.<i>.block_sparse_moe.<rest> for model.layers.<i>.mlp.<rest>.
void rename_mixtral(WeightMap& weights) {
  const std::string theirs = ".block_sparse_moe.";
  WeightMap renamed;
  for (auto& [name, tensor] : weights) {
    const size_t at = name.find(theirs);
    renamed[at == std::string::npos
                ? name
                : name.substr(0, at) + ".mlp." + name.substr(at + theirs.size())] = tensor;
  }
  weights = renamed;
}

class StoredExperts {
 public:
  StoredExperts(WeightMap& weights, std::string prefix, const std::string& folder)
      : weights_(weights), prefix_(std::move(prefix)), folder_(folder) {}

  bool has(int64_t expert, const char* part) const {
    return weights_.count(name(expert, part)) != 0;
  }

  at::Tensor take(int64_t expert, const char* part, const std::vector<int64_t>& shape) {
    const auto found = weights_.find(name(expert, part));
    if (found == weights_.end()) {
      throw_bad_input(fmt::format("'{}' has no tensor '{}'", folder_, name(expert, part)),
                      "add it, or mend config.json (num_experts, num_local_experts)");
    }
    if (found->second.sizes() != at::IntArrayRef(shape)) {
      throw_bad_input(fmt::format("weight '{}' has shape [{}], the config says [{}]", found->first,
                                  fmt::join(found->second.sizes(), ", "), fmt::join(shape, ", ")),
                      "config.json and the weights must come from the same model");
    }
    const at::Tensor tensor = found->second;
    weights_.erase(found);
    return tensor;
  }

 private:
  std::string name(int64_t expert, const char* part) const {
    return fmt::format("{}{}.{}.weight", prefix_, expert, part);
  }

  WeightMap& weights_;
  std::string prefix_;
  const std::string& folder_;
};

}  // namespace

void stack_expert_weights(WeightMap& weights, const ModelConfig& config,
                          const std::string& folder) {
  if (!config.has_experts()) return;
  rename_mixtral(weights);
  const int64_t hidden = config.hidden_size, width = config.expert_width;
  for (int64_t layer = 0; layer < config.layers_with_heads(); ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.mlp.experts.", layer);
    StoredExperts tensors(weights, prefix, folder);
    const bool of_mixtral = tensors.has(0, kMixtralNames.gate);
    if (!config.has_experts(layer) || !(of_mixtral || tensors.has(0, kQwenNames.gate))) continue;
    const ExpertParts& names = of_mixtral ? kMixtralNames : kQwenNames;
    std::vector<at::Tensor> gate_up, down;
    for (int64_t j = 0; j < config.router.num_experts; ++j) {
      const at::Tensor gate = tensors.take(j, names.gate, {width, hidden});
      gate_up.push_back(at::cat({gate, tensors.take(j, names.up, {width, hidden})}));
      down.push_back(tensors.take(j, names.down, {hidden, width}));
    }
    weights[prefix + "gate_up_proj"] = at::stack(gate_up);
    weights[prefix + "down_proj"] = at::stack(down);
  }
}

}  // namespace shardproof
