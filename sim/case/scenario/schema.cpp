// The keys of a scenario file: the table, and what it takes to look a key up.
#include "sim/case/scenario/schema.h"

#include <algorithm>

#include "mesh/mesh.h"
#include "sim/case/names.h"
#include "sim/case/scenario/optimizer_keys.h"
#include "sim/case/scenario/parallel_keys.h"
#include "sim/case/scenario/world_keys.h"

namespace shardproof::sim {

using nlohmann::json;

namespace {

constexpr double kMaxSize = 1e7;  // of one dimension of a model or batch
constexpr double kMaxSeconds = 1e6;
constexpr double kMaxConstant = 1e6;  // of a loss
constexpr double kMaxSeed = 9e15;     // exact in a double, so in every reader of JSON
const double kMaxRanks = static_cast<double>(Mesh::kMaxWorldSize);

std::vector<SchemaKey> general_keys() {
  return {
      {"name", KeyType::kText, nullptr, "Name of the scenario; without it the file's name"},
      {"workload", KeyType::kText, "train",
       "What a rank runs: train, logprobs, policy, or the name of a registered workload"},
      {"options", KeyType::kMap, json::object(),
       "Options of a registered workload; `describe` shows them"},
      {"precision", KeyType::kName, "float64", "Type of weights and activations", 0, 0,
       known_precisions()},
      {"seed", KeyType::kInteger, 0, "Draws weights, batch and everything else", 0, kMaxSeed},
      {"judged", KeyType::kBool, true, "false: run only, compare nothing"},
      {"record_activations", KeyType::kBool, true,
       "false: compare gradients, parameters, losses and logprobs only"},
      {"tags", KeyType::kTexts, json::array(),
       "For --filter; cases tagged slow or manual run only when asked for"},
  };
}

std::vector<SchemaKey> model_keys() {
  return {
      {"model.folder", KeyType::kText, nullptr,
       "Hugging Face folder with config.json and weights, beside the scenario; instead of sizes"},
      {"model.family",
       KeyType::kText,
       "llama",
       "Architecture: llama, qwen2, qwen3, gemma3",
       0,
       0,
       {},
       false,
       "family"},
      {"model.vocab_size", KeyType::kInteger, 96, "V", 1, kMaxSize},
      {"model.hidden_size", KeyType::kInteger, 48, "E", 1, kMaxSize},
      {"model.intermediate_size", KeyType::kInteger, 96, "Width of the MLP", 1, kMaxSize},
      {"model.num_hidden_layers", KeyType::kInteger, 2, "Layers", 1, 10000},
      {"model.num_attention_heads", KeyType::kInteger, 4, "Query heads", 1, kMaxSize},
      {"model.num_key_value_heads",
       KeyType::kInteger,
       nullptr,
       "Key and value heads; without it as many as query heads",
       1,
       kMaxSize,
       {},
       false,
       "kv_heads"},
      {"model.head_dim", KeyType::kInteger, nullptr, "Without it hidden_size / num_attention_heads",
       1, kMaxSize},
      {"model.max_position_embeddings", KeyType::kInteger, nullptr, "As in config.json", 1, 1e9},
      {"model.rms_norm_eps", KeyType::kNumber, 1e-6, "Added to the mean square", 0, 1},
      {"model.rope_theta", KeyType::kNumber, nullptr,
       "Base of the rotary frequencies (gemma3 1e6, others 10000)", 1e-6, 1e12},
      {"model.rope_scaling",
       KeyType::kMap,
       nullptr,
       "Rotary scaling in the spelling of transformers 4: rope_type linear or llama3, factor, ..",
       0,
       0,
       {},
       true},
      {"model.rope_parameters",
       KeyType::kMap,
       nullptr,
       "Rotary base and scaling in the spelling of transformers 5",
       0,
       0,
       {},
       true},
      {"model.tie_word_embeddings",
       KeyType::kBool,
       nullptr,
       "lm_head uses the embedding's weight (gemma3 true, others false)",
       0,
       0,
       {},
       false,
       "tied"},
      {"model.attention_bias", KeyType::kBool, false, "Biases of q, k, v and o"},
      {"model.mlp_bias", KeyType::kBool, false, "Biases of gate, up and down"},
      {"model.hidden_act", KeyType::kText, nullptr,
       "Activation of the MLP: silu, gelu_pytorch_tanh (gemma3's)"},
      {"model.pad_token_id",
       KeyType::kInteger,
       nullptr,
       "This row of the embedding gets no gradient (gemma3 0, others none)",
       0,
       kMaxSize,
       {},
       true},
      {"model.query_pre_attn_scalar", KeyType::kNumber, nullptr,
       "gemma3: scores times its root's inverse; without it head_dim", 1e-6, kMaxSize},
      {"model.use_sliding_window", KeyType::kBool, nullptr,
       "qwen2, qwen3: the layers from max_window_layers on have a window (false)"},
      {"model.sliding_window",
       KeyType::kInteger,
       nullptr,
       "Tokens that a query of a sliding layer sees, itself among them (4096)",
       1,
       kMaxSize,
       {},
       true,
       "window"},
      {"model.sliding_window_pattern", KeyType::kInteger, nullptr,
       "gemma3: all but every so many-th layer have a window (6)", 1, 10000},
      {"model.max_window_layers", KeyType::kInteger, nullptr,
       "qwen2, qwen3: layers without a window (28)", 0, 10000},
      {"model.layer_types", KeyType::kTexts, nullptr,
       "full_attention or sliding_attention of each layer, instead of the family's rule"},
      {"model.rope_local_base_freq", KeyType::kNumber, nullptr,
       "gemma3: base of the rotary frequencies of sliding layers (10000)", 1e-6, 1e12},
  };
}

std::vector<SchemaKey> data_keys() {
  return {
      {"data.case", KeyType::kText, nullptr,
       "Case folder, beside the scenario: its model, weights, batch, loss and optimizer"},
      {"data.batch_size", KeyType::kInteger, nullptr,
       "B, samples of the global batch; without it the number of lengths, or 4", 1, 1e6},
      {"data.sequence_length",
       KeyType::kInteger,
       nullptr,
       "S of the padded batch; without it the longest length, or 16",
       1,
       kMaxSize,
       {},
       false,
       "seq"},
      {"data.lengths", KeyType::kIntegers, nullptr, "Tokens of each sample; without it all S", 1,
       kMaxSize},
      {"data.token_mask_probability", KeyType::kNumber, 0.8, "Share of tokens that the loss counts",
       0, 1},
      {"data.token_mask_weights", KeyType::kBool, false,
       "Counted tokens weigh 0.25 to 2 in token_mask, instead of 1"},
      {"data.masked_not_finite", KeyType::kBool, false,
       "Advantages, previous and reference logprobs are NaN or infinite where nothing counts"},
      {"data.dropped_samples", KeyType::kIntegers, json::array(), "Samples whose sample_mask is 0",
       0, 1e6},
      {"data.uneven", KeyType::kBool, false, "Allow a global batch that dp does not divide"},
      {"data.huge_advantage.sample", KeyType::kInteger, -1,
       "Advantages of this sample are multiplied, as one that overflows float16; -1: of none", -1,
       1e6},
      {"data.huge_advantage.factor", KeyType::kNumber, 1.0, "By this", -1e30, 1e30},
  };
}

std::vector<SchemaKey> run_keys() {
  return {
      {"run.steps", KeyType::kInteger, 1, "Optimizer steps, each on the same batch", 1, 100000},
      {"run.stages", KeyType::kRecords, json::array(),
       "policy: what it is asked to do, in order: [{do: train}, {do: score}, ..]"},
      {"run.stages[].do", KeyType::kName, nullptr, "What", 0, 0, known_stages()},
      {"run.stages[].train_global_batch_size", KeyType::kInteger, 0,
       "train: samples of an optimizer step; without it as run says", 0, 1e6},
      {"run.stages[].train_micro_batch_size", KeyType::kInteger, 0, "train: without it as run says",
       0, 1e6},
      {"run.stages[].logprob_batch_size", KeyType::kInteger, 0,
       "score, reference: without it as run says", 0, 1e6},
      {"run.stages[].eval_mode", KeyType::kBool, false,
       "train: the same metrics, but no gradients and no optimizer step"},
      {"run.stages[].fails", KeyType::kBool, false,
       "train: every rank throws in its first backward; nothing of the stage may stay"},
      {"run.stages[].max_file_bytes", KeyType::kInteger, 0,
       "export: of one file's tensors; 0: all are in one file", 0, 1e15},
      {"run.stages[].data_parallel_size", KeyType::kInteger, 0,
       "load: onto this mesh; without any size onto the one before", 0, kMaxRanks},
      {"run.stages[].context_parallel_size", KeyType::kInteger, 0, "load", 0, kMaxRanks},
      {"run.stages[].ulysses_size", KeyType::kInteger, 0, "load", 0, kMaxRanks},
      {"run.stages[].tensor_parallel_size", KeyType::kInteger, 0, "load", 0, kMaxRanks},
      {"run.stages[].sequence_parallel", KeyType::kBool, false, "load"},
      {"run.stages[].data_parallel", KeyType::kName, "", "load: without it as before", 0, 0,
       known_data_parallel()},
      {"run.refit.tensor_parallel_size", KeyType::kInteger, nullptr,
       "policy: inference ranks outside of the mesh, which a refit sends the weights to", 1, 1024},
      {"run.refit.budget_bytes", KeyType::kInteger, int64_t{1} << 30,
       "Full tensors that are under way at a time", 1, 1e15},
      {"run.lives", KeyType::kInteger, 1,
       "policy: all stages so often in one process, each time from the start", 1, 100},
      {"run.train_global_batch_size", KeyType::kInteger, nullptr,
       "As data.batch_size; policy: samples of an optimizer step, which divide it", 1, 1e6},
      {"run.train_micro_batch_size",
       KeyType::kInteger,
       nullptr,
       "Samples of a dp rank's microbatch; without it its whole share at once",
       1,
       1e6,
       {},
       false,
       "mbs"},
      {"run.logprob_batch_size", KeyType::kInteger, nullptr, "The same for scoring", 1, 1e6},
      {"run.sequence_packing.enabled",
       KeyType::kBool,
       false,
       "Sequences one behind the other in rows, each attending to itself alone",
       0,
       0,
       {},
       false,
       "packing"},
      {"run.sequence_packing.train_mb_tokens",
       KeyType::kInteger,
       nullptr,
       "Positions of a row; without it a dp rank's whole share in one",
       1,
       1e9,
       {},
       false,
       "mb_tokens"},
      {"run.sequence_packing.logprob_mb_tokens", KeyType::kInteger, nullptr, "The same for scoring",
       1, 1e9},
      {"run.sequence_packing.algorithm", KeyType::kName, "first_fit_decreasing",
       "Each dp rank packs its own share, or rows of like size over the whole batch", 0, 0,
       known_pack_algorithms(), false, "bins"},
      {"run.dynamic_batching.enabled",
       KeyType::kBool,
       false,
       "Rows of like length, as many as fit the tokens of a microbatch",
       0,
       0,
       {},
       false,
       "dynamic"},
      {"run.dynamic_batching.train_mb_tokens", KeyType::kInteger, nullptr,
       "Rows times their length; without it a dp rank's whole share at once", 1, 1e9},
      {"run.dynamic_batching.logprob_mb_tokens", KeyType::kInteger, nullptr, "The same for scoring",
       1, 1e9},
      {"run.dynamic_batching.sequence_length_round", KeyType::kInteger, 1,
       "Rows are as long as their longest sample, rounded up to a multiple of this", 1, 1e6},
      {"run.max_grad_norm",
       KeyType::kNumber,
       1.0,
       "Gradients are clipped to it; null: never",
       0,
       1e300,
       {},
       true},
      {"run.grad_norm.type",
       KeyType::kText,
       "2",
       "p of the gradient norm, above 0, or inf",
       0,
       0,
       {},
       false,
       "norm"},
      {"run.grad_norm.counts", KeyType::kName, "once",
       "each_of_tp: a parameter that tp copies counts once a rank, which is too much", 0, 0,
       known_norm_counts(), false, "counts"},
      {"run.loss_scale.init_scale", KeyType::kNumber, 65536.0,
       "float16: the loss is multiplied by it; torch.amp.GradScaler's constants", 1e-6, 1e30},
      {"run.loss_scale.growth_factor", KeyType::kNumber, 2.0,
       "What it grows by after growth_interval steps without an overflow", 1, kMaxConstant},
      {"run.loss_scale.backoff_factor", KeyType::kNumber, 0.5,
       "What it shrinks by at an overflow, whose step all ranks skip", 1e-6, 1},
      {"run.loss_scale.growth_interval", KeyType::kInteger, 2000, "Steps", 1, 1e9},
      {"run.noise_std", KeyType::kNumber, 0.0,
       "train: normal noise on every weight before the first step, of this size, from the seed", 0,
       kMaxConstant},
      {"run.temperature", KeyType::kNumber, 1.0, "Logits are divided by it", 1e-6, kMaxConstant},
      {"run.generation.temperature", KeyType::kNumber, nullptr, "The same", 1e-6, kMaxConstant},
      {"run.generation.colocated.enabled", KeyType::kBool, false,
       "policy: a refit goes through the host's shared memory instead of a broadcast"},
      {"run.loss.kind", KeyType::kName, "nll", "Loss", 0, 0, known_losses(), false, "loss"},
      {"run.loss.eps", KeyType::kNumber, 0.2, "clipped_pg: the ratio is clamped to 1 +- eps", 0,
       kMaxConstant},
      {"run.loss.beta", KeyType::kNumber, 0.01,
       "clipped_pg: weight of the KL term; preference: of the margin", -kMaxConstant, kMaxConstant},
      {"run.loss.normalization",
       KeyType::kName,
       "token",
       "What the loss is a mean over",
       0,
       0,
       {"token", "sequence"}},
  };
}

std::vector<SchemaKey> outcome_keys() {
  return {
      {"faults", KeyType::kRecords, json::array(), "What goes wrong at run time, planted"},
      {"faults[].kind", KeyType::kName, nullptr, "What happens to the rank", 0, 0, known_faults()},
      {"faults[].rank", KeyType::kInteger, 0, "Whom it happens to", 0, kMaxRanks},
      {"faults[].label", KeyType::kText, "",
       "At calls whose label contains this text; * stands for any"},
      {"faults[].op", KeyType::kName, "", "At calls of this op", 0, 0, known_collectives()},
      {"faults[].axis", KeyType::kText, "", "At calls along this axis: tp, dp+cp, world"},
      {"faults[].step", KeyType::kInteger, 0, "At calls of this training step; 0: any", 0, 100000},
      {"faults[].at_call", KeyType::kInteger, 0, "At the k-th such call, from 0", 0, 1e12},
      {"faults[].seconds", KeyType::kNumber, 0.2, "Of a delay", 0, kMaxSeconds},
      {"faults[].side",
       KeyType::kName,
       "input",
       "corrupt: which buffer of the rank",
       0,
       0,
       {"input", "output"}},
      {"faults[].bit", KeyType::kInteger, -1,
       "corrupt: from the lowest; -1: the lowest bit of the exponent", -1, 127},
      {"faults[].element", KeyType::kInteger, -1, "corrupt: row-major; -1: the largest", -1, 1e15},
      {"expect.verdict", KeyType::kName, "match", "How the case ends", 0, 0, known_verdicts(),
       false, "expect"},
      {"expect.kind", KeyType::kText, "", "Kind of that verdict; \"\": any"},
      {"expect.tensor", KeyType::kText, "", "First divergent tensor; \"\": any"},
      {"expect.detector", KeyType::kName, "", "Who sees it first; \"\": any", 0, 0,
       known_detectors()},
      {"expect.collectives", KeyType::kMap, nullptr, "{axis: {op: count on each rank}}"},
  };
}

}  // namespace

Schema::Schema() {
  for (auto part : {general_keys, model_keys, parallel_keys, data_keys, run_keys, optimizer_keys,
                    world_keys, outcome_keys}) {
    for (SchemaKey& key : part()) keys_.push_back(std::move(key));
  }
}

const SchemaKey* Schema::find(std::string_view path) const {
  for (const SchemaKey& key : keys_) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

bool Schema::is_block(std::string_view path) const {
  const std::string prefix = std::string(path) + ".";
  return std::any_of(keys_.begin(), keys_.end(),
                     [&](const SchemaKey& key) { return key.path.starts_with(prefix); });
}

std::vector<std::string> Schema::names_below(std::string_view block) const {
  const std::string prefix = block.empty() ? "" : std::string(block) + ".";
  std::vector<std::string> names;
  for (const SchemaKey& key : keys_) {
    if (!key.path.starts_with(prefix)) continue;
    const std::string rest = key.path.substr(prefix.size());
    const std::string name = rest.substr(0, rest.find('.'));
    if (name.find('[') != std::string::npos) continue;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

}  // namespace shardproof::sim
