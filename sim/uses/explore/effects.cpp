#include "sim/uses/explore/effects.h"

#include <algorithm>
#include <map>

#include "sim/case/names.h"
#include "sim/uses/explore/fitted_settings.h"

namespace shardproof::sim::explore {

using nlohmann::json;

namespace {

std::vector<Way> any_of_values(const std::string& path, const std::vector<std::string>& values) {
  std::vector<Way> ways;
  for (const std::string& value : values) ways.push_back({{path, value}});
  return ways;
}

// Numbers that draw a value other than 0 (catalog.cpp); scenarios use the one between.
std::vector<Way> any_above_0(const std::string& path) {
  return {{{path, 0.25}}, {{path, 0.5}}, {{path, 1.5}}};
}

// The ways of `ways`, each of a family with experts among `families`.
std::vector<Way> with_experts(const std::vector<Way>& ways,
                              const std::vector<std::string>& families) {
  std::vector<Way> all;
  for (const Way& way : ways) {
    for (const std::string& family : families) {
      all.push_back(way);
      all.back().push_back({"model.family", family});
    }
  }
  return all;
}

// By the beginning of the key; the longest one counts.
std::map<std::string, std::vector<Way>> all_ways() {
  const NeededSetting dp{"parallel.data_parallel_size", {}};
  const NeededSetting cp{"parallel.context_parallel_size", {}};
  const NeededSetting pp{"parallel.pipeline_parallel_size", {}};
  const NeededSetting tp{"parallel.tensor_parallel_size", {}};
  const NeededSetting train{"workload", "train"}, scores{"workload", "logprobs"};
  const NeededSetting policy{"workload", "policy"};
  const auto of_stage = [&](const char* kind) -> std::vector<Way> {
    return {{policy, {"run.stages[].do", kind}}};
  };
  const std::vector<Way> models = {{train}, {scores}, {policy}};
  const std::vector<Way> trains = {{train}, of_stage("train").front()};
  const NeededSetting exact{"precision", "float64"};
  const std::vector<Way> compared = {{train, exact}, {scores, exact}};
  const std::vector<Way> loads = of_stage("load");
  const std::vector<std::string> families(kExpertFamilies.begin(), kExpertFamilies.end());
  const std::vector<std::string> trained(families.begin(), families.end() - 1);
  std::vector<Way> losses = any_above_0("run.experts.balance.coefficient");
  const std::vector<Way> capacity = any_above_0("run.experts.capacity.factor"), forms = losses;
  losses.push_back({{"run.experts.z_coefficient", 0.25}});
  const std::vector<Way> nodes = {{{"world.nodes", {}}}, {{"world.ranks_per_node", {}}}};
  const std::vector<Way> packs = {{{"run.sequence_packing.enabled", true}}};
  const std::vector<Way> groups = {{{"run.dynamic_batching.enabled", true}}};
  std::vector<Way> sharded_over;
  for (const TrainingAxis& axis : kTrainingAxes) {
    if (axis.share != Share::kModel) sharded_over.push_back({{path_of_size(axis), {}}});
  }
  std::map<std::string, std::vector<Way>> ways = {
      {"model.", models},
      {"data.", models},
      {"run.", models},
      {"record_activations", models},
      {"sample_rows", models},
      {"data.uneven", {{dp}}},
      {"data.token_mask", trains},
      {"data.masked_not_finite", trains},
      {"data.huge_advantage", trains},
      {"data.huge_advantage.factor", {{{"data.huge_advantage.sample", 0}}}},
      {"model.query_pre_attn_scalar", {{{"model.family", "gemma3"}}}},
      {"model.rope_local_base_freq", {{{"model.family", "gemma3"}}}},
      {"model.num_nextn_predict_layers",
       {{{"model.family", "llama_mtp"}, train}, {{"model.family", "llama_mtp"}, policy}}},
      {"model.mtp_loss_scaling_factor",
       {{{"model.family", "llama_mtp"}, train}, {{"model.family", "llama_mtp"}, policy}}},
      {"model.sliding_window",
       {{{"model.family", "gemma3"}},
        {{"model.use_sliding_window", true}},
        {{"model.family", "gpt_oss"}}}},
      {"model.sliding_window_pattern", {{{"model.family", "gemma3"}}}},
      {"model.use_sliding_window", any_of_values("model.family", {"qwen2", "qwen3"})},
      {"model.max_window_layers", {{{"model.use_sliding_window", true}}}},
      {"model.config", any_of_values("model.family", families)},
      {"parallel.expert_", any_of_values("model.family", families)},
      {"parallel.experts.dispatch",
       {{{"parallel.expert_parallel_size", {}}}, {{"parallel.expert_tensor_parallel_size", {}}}}},
      {"run.experts.", with_experts(trains, trained)},
      {"run.experts.balance.form", forms},
      {"run.experts.groups", losses},
      {"run.experts.bias", with_experts({{train}}, {"qwen2_moe", "qwen3_moe"})},
      {"run.experts.bias.centered", any_above_0("run.experts.bias.rate")},
      {"run.experts.capacity.minimum", capacity},
      {"run.experts.capacity.policy", capacity},
      {"run.experts.capacity.scope", capacity},
      {"run.experts.replay", with_experts(of_stage("train"), trained)},
      {"parallel.custom_parallel_plan", {{tp, train}, {tp, scores}, {tp, policy}}},
      {"parallel.sequence_parallel", {{tp}}},
      {"parallel.tp.", {{tp}}},
      {"parallel.tp.gather_buffer", {{tp, {"parallel.sequence_parallel", true}}}},
      {"parallel.tp.deferred_wgrad", {{tp, train}, {tp, policy}}},
      {"parallel.tp.spread_checkpoints",
       {{tp, {"parallel.activation_checkpointing", "layer"}},
        {tp, {"parallel.activation_checkpointing", "mlp"}}}},
      {"parallel.tp.bias", {{tp, {"model.attention_bias", true}}, {tp, {"model.mlp_bias", true}}}},
      {"data.read_by", {{tp}}},
      {"run.gradients", trains},
      {"parallel.pp.", {{pp}}},
      {"parallel.context_layout", {{cp}}},
      {"parallel.context_rotation", {{cp}}},
      {"parallel.data_parallel", sharded_over},
      {"parallel.data_parallel_size", {}},
      {"parallel.replicate_size", {{{"parallel.data_parallel", "hybrid"}, dp}}},
      {"parallel.fsdp", any_of_values("parallel.data_parallel", {"fsdp", "hybrid"})},
      {"parallel.cpu_offload", any_of_values("parallel.data_parallel", {"fsdp", "hybrid"})},
      {"parallel.activation_checkpointing", trains},
      {"parallel.discarded_outputs", trains},
      {"model.init", {{tp, train}, {tp, scores}}},
      {"run.scoring.", {{scores}}},
      {"run.steps", {{train}}},
      {"run.noise_std", {{train}}},
      {"run.stages", {{policy}}},
      {"run.lives", {{policy}}},
      {"run.refit", {{policy}}},
      {"run.generation.colocated", of_stage("refit")},
      {"run.stages[].train_", of_stage("train")},
      {"run.stages[].eval_mode", of_stage("train")},
      {"run.stages[].interrupted_after", of_stage("train")},
      {"run.stages[].fails",
       {of_stage("train").front(), of_stage("score").front(), of_stage("reference").front(),
        of_stage("save").front(), of_stage("load").front()}},
      {"run.stages[].logprob_batch_size", of_stage("score")},
      {"run.stages[].max_file_bytes", of_stage("export")},
      {"run.stages[].data_parallel", loads},
      {"run.stages[].sequence_parallel", loads},
      {"run.train_", trains},
      {"run.logprob_batch_size", {{scores}, of_stage("score").front()}},
      {"run.sequence_packing.", packs},
      {"run.sequence_packing.enabled", models},
      {"run.dynamic_batching.", groups},
      {"run.dynamic_batching.enabled", models},
      {"run.loss", trains},
      {"run.loss_scale", {{train, {"precision", "float16"}}, {policy, {"precision", "float16"}}}},
      {"run.loss.eps", {{{"run.loss.kind", "clipped_pg"}}}},
      {"run.loss.beta", any_of_values("run.loss.kind", {"clipped_pg", "preference"})},
      {"run.max_grad_norm", trains},
      {"run.grad_norm", trains},
      {"run.scheduler", trains},
      {"run.optimizer", trains},
      {"run.optimizer.kwargs.betas", any_of_values("run.optimizer.name", {"AdamW", "Muon"})},
      {"run.optimizer.kwargs.eps", any_of_values("run.optimizer.name", {"AdamW", "Muon"})},
      {"run.optimizer.kwargs.momentum", any_of_values("run.optimizer.name", {"SGD", "Muon"})},
      {"run.optimizer.kwargs.dampening", {{{"run.optimizer.name", "SGD"}}}},
      {"run.optimizer.kwargs.nesterov",
       {{{"run.optimizer.name", "SGD"}, {"run.optimizer.kwargs.momentum", 0.5}},
        {{"run.optimizer.name", "Muon"}}}},
      {"reference.", compared},
      {"reference.sequence_parallel", {{{"reference.mesh.tp", {}}}}},
      {"reference.data_parallel", {{{"reference.mesh.dp", {}}}, {{"reference.mesh.cp", {}}}}},
      {"world.links.inter_node", nodes},
      {"world.compute_cost.factor", {{{"world.compute", "measured"}}}},
      {"world.compute_cost.op_us", {{{"world.compute", "fixed"}}}},
      {"world.compute_cost.gflop_per_s", {{{"world.compute", "fixed"}}}},
  };
  for (const TrainingAxis& axis : kTrainingAxes) {
    ways[std::string("run.stages[].") + axis.key] = loads;
  }
  for (const ExpertPart& part : kExpertParts) {
    ways[std::string("run.stages[].") + part.key] = with_experts(loads, families);
  }
  return ways;
}

json needed_value(const NeededSetting& needed, const CaseSettings& settings, const json& record) {
  const size_t brackets = needed.path.find("[].");
  if (brackets == std::string::npos) return setting_of(settings, needed.path);
  const std::string name = needed.path.substr(brackets + 3);
  if (!record.is_null()) return record.value(name, json());
  // Of a key outside of the records, any of them will do.
  for (const json& one : setting_of(settings, needed.path.substr(0, brackets))) {
    if (needed.holds(one.value(name, json()))) return one[name];
  }
  return nullptr;
}

}  // namespace

const std::vector<Way>& ways_of(const std::string& path) {
  static const std::vector<Way> always;
  static const std::map<std::string, std::vector<Way>> table = all_ways();
  const std::vector<Way>* found = &always;
  for (const auto& [prefix, ways] : table) {  // a longer prefix is behind a shorter one
    if (path.starts_with(prefix)) found = &ways;
  }
  return *found;
}

bool in_effect(const std::string& path, const CaseSettings& settings, const json& record) {
  const std::vector<Way>& ways = ways_of(path);
  return ways.empty() || std::any_of(ways.begin(), ways.end(), [&](const Way& way) {
           return std::all_of(way.begin(), way.end(), [&](const NeededSetting& needed) {
             return needed.holds(needed_value(needed, settings, record)) &&
                    in_effect(needed.path, settings);
           });
         });
}

namespace {

constexpr const char *kAttention = "attention", *kLogprobs = "logprobs", *kNorms = "norms",
                     *kRefit = "refit", *kExport = "export";

}  // namespace

const std::vector<Edge>& edges() {
  static constexpr const char *kTrainRows = "run.sequence_packing.train_mb_tokens",
                              *kScoredRows = "run.sequence_packing.logprob_mb_tokens";
  static const std::vector<Edge> all = {
      {"model.vocab_size", 32, kLogprobs,
       "rows are read 4 x 8 columns at a time (logprob/row_loops.h)"},
      {"model.vocab_size", 1024, kLogprobs,
       "row_sum adds float32 in stretches of 1024 (logprob/row_loops.h)"},
      {"model.hidden_size", 16, kNorms, "16 independent sums (parallel/tp/add_rms_norm.cpp)"},
      {"model.hidden_size", 1024, kNorms, "float32 stretches (parallel/tp/norm_row_loops.h)"},
      {"data.sequence_length", 32, kAttention, "at least 32 rows in a block (model/attention.cpp)"},
      {"data.sequence_length", 64, kLogprobs, "fused_logprob has at least 64 rows in a block"},
      {kTrainRows, 32, kAttention, "a row of several blocks (model/attention.cpp)"},
      {kScoredRows, 32, kAttention, "a row of several blocks (model/attention.cpp)"},
      {kTrainRows, 128, kAttention, "more than 256 KiB of scores (model/attention.cpp)"},
      {kScoredRows, 128, kAttention, "more than 256 KiB of scores (model/attention.cpp)"},
      {"run.refit.budget_bytes", 4096, kRefit,
       "a bucket holds several small tensors (policy/refit.cpp)"},
      {"run.stages[].max_file_bytes", 4096, kExport, "several files, each with several tensors"},
      {"options.vocab_parallel_logprob.rows", 16, "", "rows of one thread"},
      {"options.fused_logprob.rows", 64, "", "rows of a block (logprob/fused_logprob.cpp)"},
      {"options.fused_logprob.vocab_size", 1024, "", "float32 stretches (logprob/row_loops.h)"},
      {"options.vocab_parallel_logprob.vocab_size", 1024, "", "float32 stretches"},
  };
  return all;
}

bool is_read_by(const std::string& code, const std::string& path) {
  // By the beginning of the key.
  static const std::map<std::string, std::vector<std::string>> keys = {
      {kAttention,
       {"model.family", "model.use_sliding_window", "model.sliding_window",
        "model.max_window_layers", "model.layer_types", "model.query_pre_attn_scalar",
        "model.num_attention_heads", "model.num_key_value_heads", "model.head_dim", "data.lengths",
        "run.sequence_packing.algorithm", "parallel.context_", "parallel.ulysses_size",
        "parallel.tensor_parallel_size", "precision"}},
      {kLogprobs,
       {"workload", "model.tie_word_embeddings", "data.sequence_length", "data.lengths",
        "data.token_mask", "run.temperature", "run.loss.", "parallel.tensor_parallel_size",
        "parallel.context_parallel_size", "parallel.sequence_parallel", "precision"}},
      {kNorms,
       {"model.family", "model.rms_norm_eps", "run.scoring.fused_norm",
        "parallel.sequence_parallel", "parallel.tensor_parallel_size",
        "parallel.activation_checkpointing", "parallel.discarded_outputs", "precision"}},
      {kRefit,
       {"run.refit.", "run.generation.", "model.tie_word_embeddings", "parallel.data_parallel",
        "parallel.tensor_parallel_size", "precision"}},
      {kExport,
       {"run.stages[].do", "model.family", "model.tie_word_embeddings", "parallel.data_parallel",
        "parallel.tensor_parallel_size", "precision"}},
  };
  const auto found = keys.find(code);
  return found != keys.end() &&
         std::any_of(found->second.begin(), found->second.end(),
                     [&](const std::string& prefix) { return path.starts_with(prefix); });
}

}  // namespace shardproof::sim::explore
