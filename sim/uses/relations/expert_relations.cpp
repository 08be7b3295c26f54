// Relations of models with experts.
#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "sim/case/names.h"
#include "sim/uses/relations/relations.h"

namespace shardproof::sim::relations {

namespace {

std::string has_experts(const CaseSpec&, const ModelConfig& config) {
  return config.has_experts() ? "" : "no layer has experts";
}

std::string spreads_experts(const CaseSpec& spec, const ModelConfig& config) {
  if (!config.has_experts()) return "no layer has experts";
  return spec.parallel.ep * spec.parallel.etp > 1 ? "" : "every rank has all experts";
}

// --- experts_reversed
void reverse_experts(const Variant& second, WeightMaps& maps) {
  const ModelConfig& config = second.config;
  std::vector<int64_t> order(static_cast<size_t>(config.router.num_experts));
  std::iota(order.rbegin(), order.rend(), 0);
  for (const auto& [name, weight] : second.weights) {
    for (int64_t layer = 0; layer < config.layers_with_heads(); ++layer) {
      const bool of_layer = name.starts_with(layer_part(layer, "mlp.experts.")) ||
                            name.starts_with(config.router_of(layer) + ".");
      if (config.has_experts(layer) && of_layer) maps.add(name, permuted(0, order));
    }
  }
}

// --- experts_as_mlp: equal experts whose weights sum to 1 are one MLP.
constexpr const char* kKeysOfExperts[] = {
    "architectures",         "num_experts",    "num_local_experts",   "num_experts_per_tok",
    "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers",
    "router_aux_loss_coef",  "sliding_window", "output_router_logits"};

bool trains_routers(const CaseSpec& spec) {
  return side_losses_of(spec).any() || spec.capacity.factor != 0;
}

std::string is_sum_of_experts(const CaseSpec& spec, const ModelConfig& config) {
  if (!config.has_experts()) return "no layer has experts";
  const bool sums_to_1 =
      config.router.scores == RouterScores::kSoftmaxOfChosen || config.router.normalized;
  if (config.traits().with_equal_experts == nullptr || !sums_to_1)
    return "the weights of a token's experts do not sum to 1, or others are added";
  const bool all = std::ranges::all_of(config.expert_layers, [](bool has) { return has; });
  if (!all && config.expert_width != config.intermediate_size) {
    return "layers without experts have an MLP of another width";
  }
  if (trains_routers(spec)) return "routers have losses of their own, or limits";
  return spec.frozen.empty() ? "" : "some parameters are not trained";
}

void equal_experts_as_mlp(Variant& first, Variant& second) {
  const ModelConfig config = first.config;
  second.spec.parallel.ep = second.spec.parallel.etp = 1;
  second.spec.selection_bias = {};
  nlohmann::json& model = second.spec.model;
  for (const char* key : kKeysOfExperts) model.erase(key);
  model["model_type"] = config.traits().with_equal_experts;
  model["intermediate_size"] = config.expert_width;
  model["num_key_value_heads"] = config.num_key_value_heads;
  model["head_dim"] = config.head_dim;
  set_model_key(second, "rms_norm_eps", config.rms_norm_eps);
  set_rope(second, config);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.has_experts(layer)) continue;
    second.weights.erase(config.router_of(layer) + ".weight");
    for (const char* part : {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}) {
      at::Tensor& all = first.weights.at(layer_part(layer, part));
      const at::Tensor one = all[0];
      all = one.expand_as(all).contiguous();
      second.weights.erase(layer_part(layer, part));
      const auto put = [&](const char* name, const at::Tensor& weight) {
        second.weights[layer_part(layer, name) + ".weight"] = weight.contiguous();
      };
      if (part == std::string("mlp.experts.down_proj")) {
        put("mlp.down_proj", one);
      } else {
        put("mlp.gate_proj", one.narrow(0, 0, config.expert_width));
        put("mlp.up_proj", one.narrow(0, config.expert_width, config.expert_width));
      }
    }
  }
}

void sum_experts(const Variant& first, const Variant&, Values& a, Values&) {
  const ModelConfig& config = first.config;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = "grad." + layer_part(layer, "mlp.");
    const auto gate_up = a.find(prefix + "experts.gate_up_proj");
    if (!config.has_experts(layer) || gate_up == a.end()) continue;
    const at::Tensor sum = gate_up->second.sum(0);
    a[prefix + "gate_proj.weight"] = sum.narrow(0, 0, config.expert_width);
    a[prefix + "up_proj.weight"] = sum.narrow(0, config.expert_width, config.expert_width);
    a[prefix + "down_proj.weight"] = a.at(prefix + "experts.down_proj").sum(0);
    a.erase(gate_up);
    a.erase(prefix + "experts.down_proj");
    a.erase("grad." + config.router_of(layer) + ".weight");
  }
}

// --- experts_joined, dispatched_otherwise
void join_experts(Variant&, Variant& second) {
  second.spec.parallel.ep = second.spec.parallel.etp = 1;
}

void dispatch_otherwise(Variant&, Variant& second) {
  ExpertDispatch& dispatch = second.spec.parallel.expert_dispatch;
  const bool sends = dispatch == ExpertDispatch::kAllToAll;
  dispatch = sends ? ExpertDispatch::kAllGather : ExpertDispatch::kAllToAll;
}

// --- experts_recomputed
std::string can_recompute(const CaseSpec& spec, const ModelConfig& config) {
  if (!config.has_experts()) return "no layer has experts";
  if (!spec.is(ModelWorkload::kTrain)) return "nothing is recomputed without a backward";
  if (config.repeats_extra_layer && config.extra_heads > 1) {
    return "a recomputed layer adds the gradient of each extra head in another order";
  }
  const bool discards = spec.parallel.discarded_outputs != DiscardedOutputs::kNone;
  return discards ? "outputs are discarded, which a recomputed layer does not" : "";
}

void recompute_experts(Variant&, Variant& second) {
  CheckpointedRegions& regions = second.spec.parallel.activation_checkpointing;
  const bool recomputes = regions != CheckpointedRegions::kNone;
  regions = recomputes ? CheckpointedRegions::kNone : CheckpointedRegions::kMlp;
}

}  // namespace

std::vector<Relation> expert_relations() {
  return {
      {.name = "experts_reversed",
       .changed = "the experts in reverse order, with the rows of their routers",
       .why_not = has_experts,
       .change_weights = reverse_experts,
       .of_experts = true},
      {.name = "experts_as_mlp",
       .changed = "one MLP with the weights of experts that are all equal",
       .why_not = is_sum_of_experts,
       .change = equal_experts_as_mlp,
       .back = sum_experts,
       .same_norm = false,
       .changes_first = true},
      {.name = "experts_joined",
       .changed = "all experts on every rank",
       .why_not = spreads_experts,
       .change = join_experts,
       .of_experts = true},
      {.name = "dispatched_otherwise",
       .changed = "the other dispatch to the ranks of experts",
       .why_not = spreads_experts,
       .change = dispatch_otherwise,
       .of_experts = true},
      {.name = "experts_recomputed",
       .changed = "MLPs that the backward recomputes, or does not",
       .why_not = can_recompute,
       .change = recompute_experts,
       .exact = true,
       .of_experts = true},
  };
}

// Of other relations those that change neither weights of an MLP nor the family hold, where no loss
// and no limit of a router depends on which tokens are together.
std::string why_not_beside_experts(const Relation& relation, const CaseSpec& spec,
                                   const ModelConfig& config) {
  if (!config.has_experts() || relation.of_experts) return "";
  if (!relation.beside_experts) return "the layers have experts";
  return trains_routers(spec) ? "routers have losses of their own, or limits" : "";
}

}  // namespace shardproof::sim::relations
