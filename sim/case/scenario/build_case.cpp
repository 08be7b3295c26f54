// From the settings of one row of a scenario to the case that they describe.
#include "sim/case/scenario/build_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "sim/case/names.h"
#include "sim/case/scenario/build_emulation.h"
#include "sim/case/scenario/case_folder.h"
#include "sim/case/scenario/known_workload.h"
#include "sim/case/scenario/read_batching.h"
#include "sim/case/scenario/read_faults.h"
#include "sim/case/scenario/read_numerics.h"
#include "sim/case/scenario/read_optimizer.h"
#include "sim/case/scenario/read_stages.h"
#include "sim/case/scenario/read_text.h"

namespace shardproof::sim {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int64_t kDefaultBatchSize = 4;
constexpr int64_t kDefaultSequenceLength = 16;

// A path in a scenario is relative to the scenario's folder.
std::string beside(const Settings& settings, const std::string& path) {
  return (fs::absolute(settings.file()).parent_path() / path).lexically_normal().string();
}

// Reads something that lies outside the scenario; what is wrong with it is told at `path`'s place.
template <class Read>
auto read_outside(const Settings& settings, const std::string& path, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    settings.fail(path, path + ": " + error.fact(), error.fix());
  }
}

std::string gemma_name(const std::string& name) {
  return name == "hidden_act" ? "hidden_activation" : name;
}

// Sizes that follow from others in a scenario, whatever Hugging Face's default for the family is.
void fill_sizes(json& model, bool gemma) {
  const auto heads = model["num_attention_heads"].get<int64_t>();
  const auto hidden = model["hidden_size"].get<int64_t>();
  if (!model.contains("num_key_value_heads")) model["num_key_value_heads"] = heads;
  if (!model.contains("head_dim") && hidden % heads == 0) model["head_dim"] = hidden / heads;
  if (gemma && !model.contains("query_pre_attn_scalar") && model.contains("head_dim")) {
    model["query_pre_attn_scalar"] = model["head_dim"];
  }
}

json sizes_model(const Settings& settings) {
  json model = json::object();
  const std::string family = settings.get<std::string>("model.family");
  const bool gemma = family == "gemma3";
  model["model_type"] = gemma ? "gemma3_text" : family;  // sizes are those of the text part
  for (const char* name : {"vocab_size",
                           "hidden_size",
                           "intermediate_size",
                           "num_hidden_layers",
                           "num_attention_heads",
                           "num_key_value_heads",
                           "head_dim",
                           "max_position_embeddings",
                           "rms_norm_eps",
                           "rope_theta",
                           "rope_scaling",
                           "rope_parameters",
                           "tie_word_embeddings",
                           "attention_bias",
                           "mlp_bias",
                           "hidden_act",
                           "pad_token_id",
                           "query_pre_attn_scalar",
                           "use_sliding_window",
                           "sliding_window",
                           "sliding_window_pattern",
                           "max_window_layers",
                           "layer_types",
                           "rope_local_base_freq"}) {
    const json value = settings.value(std::string("model.") + name);
    if (!value.is_null()) model[gemma ? gemma_name(name) : name] = value;
  }
  fill_sizes(model, gemma);
  return model;
}

void set_model(const Settings& settings, CaseSpec& spec) {
  if (!settings.given("model.folder")) {
    spec.model = sizes_model(settings);
    return;
  }
  const std::string also = settings.given_below("model.", {"model.folder"});
  if (!also.empty()) {
    settings.fail(also, fmt::format("{} and model.folder are both given", also),
                  "the folder's config.json has the sizes; remove one");
  }
  const std::string folder = beside(settings, settings.get<std::string>("model.folder"));
  spec.weights_folder = folder;
  spec.model = read_outside(settings, "model.folder", [&] {
    return read_json_object((fs::path(folder) / "config.json").string());
  });
}

void set_batch_size(const Settings& settings, DataSpec& data) {
  data.batch_size =
      data.lengths.empty() ? kDefaultBatchSize : static_cast<int64_t>(data.lengths.size());
  std::string source = data.lengths.empty() ? "" : "data.lengths";
  for (const std::string path : {"data.batch_size", "run.train_global_batch_size"}) {
    if (!settings.given(path)) continue;
    // A policy's call may hold several.
    if (has_stages(settings) && path.starts_with("run.")) continue;
    const auto size = settings.get<int64_t>(path);
    if (!source.empty() && size != data.batch_size) {
      settings.fail(
          path,
          fmt::format("{} is {}, but {} gives {} samples", path, size, source, data.batch_size),
          "make them equal, or give one of them");
    }
    data.batch_size = size;
    source = path;
  }
}

void set_lengths(const Settings& settings, DataSpec& data) {
  if (settings.given("data.lengths")) {
    data.lengths = settings.get<std::vector<int64_t>>("data.lengths");
    if (data.lengths.empty()) settings.fail("data.lengths", "the batch is empty", "give a length");
  }
  const int64_t longest =
      data.lengths.empty() ? 0 : *std::max_element(data.lengths.begin(), data.lengths.end());
  data.seq_len = longest > 0 ? longest : kDefaultSequenceLength;
  if (!settings.given("data.sequence_length")) return;
  data.seq_len = settings.get<int64_t>("data.sequence_length");
  if (longest > data.seq_len) {
    settings.fail("data.lengths",
                  fmt::format("a sample has {} tokens, but data.sequence_length is {}", longest,
                              data.seq_len),
                  fmt::format("set data.sequence_length to at least {}", longest));
  }
}

void set_dropped(const Settings& settings, DataSpec& data) {
  data.dropped_samples = settings.get<std::vector<int64_t>>("data.dropped_samples");
  for (const int64_t sample : data.dropped_samples) {
    if (sample < data.batch_size) continue;
    settings.fail("data.dropped_samples",
                  fmt::format("sample {} is dropped, but the batch has samples 0 to {}", sample,
                              data.batch_size - 1),
                  "name samples of the batch");
  }
}

void set_data(const Settings& settings, CaseSpec& spec) {
  set_lengths(settings, spec.data);
  set_batch_size(settings, spec.data);
  set_dropped(settings, spec.data);
  spec.data.mask_probability = settings.get<double>("data.token_mask_probability");
  spec.data.mask_weights = settings.get<bool>("data.token_mask_weights");
  spec.data.masked_not_finite = settings.get<bool>("data.masked_not_finite");
}

// The policy configuration has it among the options of generation.
double temperature(const Settings& settings) {
  const std::string path = "run.temperature", other = "run.generation.temperature";
  if (!settings.given(other)) return settings.get<double>(path);
  if (settings.given(path)) {
    settings.fail(other, fmt::format("{} and {} are both given", path, other), "keep one");
  }
  return settings.get<double>(other);
}

void set_loss(const Settings& settings, LossSpec& loss) {
  loss.kind = settings.get<std::string>("run.loss.kind");
  loss.eps = settings.get<double>("run.loss.eps");
  loss.beta = settings.get<double>("run.loss.beta");
  loss.temperature = temperature(settings);
  loss.normalization = settings.get<std::string>("run.loss.normalization");
}

// Model, weights, batch, loss and optimizer of a case folder. Only `uneven` may be said beside it.
void set_from_folder(const Settings& settings, CaseSpec& spec) {
  for (const char* prefix : {"model.", "data.", "run.loss.", "run.optimizer.", "run.scheduler",
                             "run.max_grad_norm", "run.train_global_batch_size"}) {
    const std::string also = settings.given_below(prefix, {"data.case", "data.uneven"});
    if (!also.empty()) {
      settings.fail(also, fmt::format("{} and data.case are both given", also),
                    "the case folder says it; remove one");
    }
  }
  const CaseSpec folder = read_outside(settings, "data.case", [&] {
    return read_case_folder(beside(settings, settings.get<std::string>("data.case")));
  });
  spec.model = folder.model;
  spec.weights_folder = folder.weights_folder;
  spec.expected_file = folder.expected_file;
  spec.data = folder.data;
  spec.loss = folder.loss;
  spec.loss.temperature = temperature(settings);
  spec.optimizer = folder.optimizer;
  spec.steps = folder.steps;
}

void set_model_and_data(const Settings& settings, CaseSpec& spec) {
  if (settings.given("data.case")) {
    set_from_folder(settings, spec);
  } else {
    set_model(settings, spec);
    set_data(settings, spec);
    set_loss(settings, spec.loss);
    read_optimizer(settings, spec.optimizer);
  }
  read_numerics(settings, spec);
  if (!settings.given("data.case") || settings.given("run.steps")) {
    spec.steps = settings.get<int64_t>("run.steps");
  }
}

// dp is what world.size leaves when it is not given.
int64_t data_parallel_size(const Settings& settings, int64_t others) {
  if (settings.given("parallel.data_parallel_size")) {
    return settings.get<int64_t>("parallel.data_parallel_size");
  }
  if (!settings.given("world.size")) return 1;
  const auto world_size = settings.get<int64_t>("world.size");
  if (world_size % others != 0) {
    settings.fail("world.size",
                  fmt::format("world.size is {}, but cp * ulysses * tp is {}", world_size, others),
                  fmt::format("choose a multiple of {}", others));
  }
  return world_size / others;
}

void set_parallel(const Settings& settings, ParallelSpec& parallel) {
  parallel.cp = settings.get<int64_t>("parallel.context_parallel_size");
  parallel.ulysses = settings.get<int64_t>("parallel.ulysses_size");
  parallel.tp = settings.get<int64_t>("parallel.tensor_parallel_size");
  parallel.dp = data_parallel_size(settings, parallel.cp * parallel.ulysses * parallel.tp);
  parallel.sequence_parallel = settings.get<bool>("parallel.sequence_parallel");
  parallel.data_parallel = settings.get<std::string>("parallel.data_parallel");
  parallel.context_layout = settings.get<std::string>("parallel.context_layout");
  parallel.context_rotation = settings.get<std::string>("parallel.context_rotation");
  parallel.activation_checkpointing =
      settings.get<std::string>("parallel.activation_checkpointing");
  parallel.grad_norm_counts = settings.get<std::string>("run.grad_norm.counts");
  parallel.fsdp = {
      .replicate_size = settings.get<int64_t>("parallel.replicate_size"),
      .reshard_after_forward = settings.get<bool>("parallel.fsdp.reshard_after_forward"),
      .prefetch = settings.get<bool>("parallel.fsdp.prefetch"),
      .reduce_each_microbatch = settings.get<bool>("parallel.fsdp.reduce_each_microbatch"),
      .cpu_offload = settings.get<bool>("parallel.cpu_offload")};
  parallel.custom_plan = settings.value("parallel.custom_parallel_plan");
  const std::string blamed = settings.given_below("parallel.");
  const Mesh mesh = read_outside(settings, blamed.empty() ? "world.size" : blamed,
                                 [&] { return parallel.mesh(); });
  if (!settings.given("world.size")) return;
  const auto world_size = settings.get<int64_t>("world.size");
  if (world_size != mesh.world_size()) {
    settings.fail("world.size",
                  fmt::format("world.size is {}, but the mesh {} has {} ranks", world_size,
                              mesh.describe(), mesh.world_size()),
                  "change the mesh or world.size");
  }
}

void check_collectives(const Settings& settings, const json& collectives) {
  const std::string path = "expect.collectives";
  if (collectives.is_null()) return;
  for (const auto& [axis, counts] : collectives.items()) {
    std::vector<std::string> axes = known_axes();
    axes.push_back("world");
    const bool named = axis.find('+') != std::string::npos ||
                       std::find(axes.begin(), axes.end(), axis) != axes.end();
    if (!named)
      settings.fail(path, fmt::format("unknown axis '{}' in {}", axis, path),
                    known_names(axis, axes));
    if (!counts.is_object())
      settings.fail(path, fmt::format("{}.{} is no map", path, axis), "write {all_reduce: 3}");
    for (const auto& [op, count] : counts.items()) {
      const std::vector<std::string> ops = known_collectives();
      if (std::find(ops.begin(), ops.end(), op) == ops.end()) {
        settings.fail(path, fmt::format("unknown collective '{}' in {}", op, path),
                      known_names(op, ops));
      }
      if (!count.is_number_integer() || count < 0) {
        settings.fail(path, fmt::format("{}.{}.{} is {}", path, axis, op, count.dump()),
                      "write a count, 0 or more");
      }
    }
  }
}

void set_expect(const Settings& settings, ExpectSpec& expect) {
  expect.verdict = settings.get<std::string>("expect.verdict");
  expect.kind = settings.get<std::string>("expect.kind");
  expect.tensor = settings.get<std::string>("expect.tensor");
  expect.detector = settings.get<std::string>("expect.detector");
  expect.collectives = settings.value("expect.collectives");
  check_collectives(settings, expect.collectives);
}

void set_world(const Settings& settings, const WorldChoice& choice, CaseSpec& spec) {
  spec.world.backend = choice.backend;
  spec.world.device = choice.device;
  spec.world.hang_s = settings.get<double>("world.hang_s");
  spec.world.deadline_s = settings.get<double>("world.deadline_s");
  const json backends = settings.value("world.backend");
  if (!backends.is_null()) spec.backends = backends.get<std::vector<std::string>>();
}

}  // namespace

CaseSpec build_case(const Settings& settings, const WorldChoice& world) {
  CaseSpec spec;
  spec.file = settings.file();
  set_workload(settings, world.workloads, spec);
  if (is_model_workload(spec.workload)) set_model_and_data(settings, spec);
  spec.data.uneven = settings.get<bool>("data.uneven");
  spec.precision = settings.get<std::string>("precision");
  spec.seed = settings.get<int64_t>("seed");
  spec.judged = settings.get<bool>("judged");
  spec.record_activations = settings.get<bool>("record_activations");
  read_batching(settings, spec);
  set_parallel(settings, spec.parallel);
  read_stages(settings, spec);
  set_world(settings, world, spec);
  set_emulation(settings, spec.parallel.world_size(), spec.world);
  spec.faults = read_faults(settings, spec.parallel.world_size());
  spec.world.digests = settings.get<bool>("world.digests") || !spec.faults.empty();
  set_expect(settings, spec.expect);
  spec.tags = settings.get<std::vector<std::string>>("tags");
  return spec;
}

}  // namespace shardproof::sim
