#include "sim/uses/explore/effects.h"

#include <algorithm>
#include <map>

#include "sim/case/names.h"

namespace shardproof::sim::explore {

using nlohmann::json;

namespace {

json needed_value(const Needed& needed, const CaseSettings& settings, const json& record) {
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
  static const std::vector<Way> always, models = [] {
    std::vector<Way> ways;
    for (const std::string& name : known_workloads()) ways.push_back({{"workload", name}});
    return ways;
  }();
  static const std::map<std::string, const Option*> rows = [] {
    std::map<std::string, const Option*> made;
    for (const CaseOption& option : case_options()) made.emplace(option.path, &option);
    return made;
  }();
  const auto row = rows.find(path);
  if (row == rows.end()) return always;
  if (!row->second->needs.empty()) return row->second->needs;
  const std::string block = path.substr(0, path.find('.'));
  const bool of_models = block == "model" || block == "data" || block == "run" ||
                         block == "record_activations" || block == "sample_rows";
  return of_models ? models : always;
}

bool in_effect(const std::string& path, const CaseSettings& settings, const json& record) {
  const std::vector<Way>& ways = ways_of(path);
  return ways.empty() || std::any_of(ways.begin(), ways.end(), [&](const Way& way) {
           return std::all_of(way.begin(), way.end(), [&](const Needed& needed) {
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

bool affects_code(const std::string& path, const std::string& code) {
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
