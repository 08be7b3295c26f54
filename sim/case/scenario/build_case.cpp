#include "sim/case/scenario/build_case.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/count_of.h"
#include "base/error.h"
#include "base/read_text.h"
#include "base/stage_layout.h"
#include "sim/case/idle_options.h"
#include "sim/case/names.h"
#include "sim/case/scenario/blocks.h"
#include "sim/case/scenario/case_folder.h"
#include "sim/case/scenario/known_workload.h"

namespace shardproof::sim {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// A path in a scenario is relative to the scenario's folder.
std::string beside(const Settings& settings, const std::string& path) {
  return (fs::absolute(settings.file()).parent_path() / path).lexically_normal().string();
}

std::string gemma_name(const std::string& name) {
  return name == "hidden_act" ? "hidden_activation" : name;
}

// Fills in sizes that follow from others, in place of Hugging Face's defaults for the family.
void fill_sizes(json& model, bool gemma) {
  const auto heads = model["num_attention_heads"].get<int64_t>();
  const auto hidden = model["hidden_size"].get<int64_t>();
  if (!model.contains("num_key_value_heads")) model["num_key_value_heads"] = heads;
  if (!model.contains("head_dim") && hidden % heads == 0) model["head_dim"] = hidden / heads;
  if (gemma && !model.contains("query_pre_attn_scalar") && model.contains("head_dim")) {
    model["query_pre_attn_scalar"] = model["head_dim"];
  }
}

// Joins the further keys of config.json, none of which has a key of its own here.
void add_config(const Settings& settings, json& model) {
  const std::string path = "model.config";
  if (!settings.given(path)) return;
  const json further = settings.value(path);
  for (const auto& [name, value] : further.items()) {
    const std::string own = "model." + (name == "model_type" ? "family" : name);
    if (model.contains(name) || settings.schema().find(own) != nullptr) {
      settings.fail(path, fmt::format("{} has '{}', which {} sets", path, name, own),
                    fmt::format("write {} instead", own));
    }
    model[name] = value;
  }
}

json sizes_model(const Settings& settings) {
  json model = json::object();
  const std::string family = settings.get<std::string>("model.family");
  const bool gemma = family == "gemma3";
  model["model_type"] = gemma ? "gemma3_text" : family;  // the sizes are those of the text model
  for (const CaseOption& key : settings.schema().keys()) {
    // A key that sets a member of the case is none of the model's config.
    const bool is_size = key.path.starts_with("model.") && !key.set;
    if (!is_size || key.path == "model.family" || key.path == "model.config") continue;
    const json value = settings.value(key.path);
    const std::string name = key.path.substr(key.path.find('.') + 1);
    if (!value.is_null()) model[gemma ? gemma_name(name) : name] = value;
  }
  fill_sizes(model, gemma);
  add_config(settings, model);
  return model;
}

void set_model(const Settings& settings, CaseSpec& spec) {
  if (!settings.given("model.folder")) {
    spec.model = sizes_model(settings);
    return;
  }
  const std::vector<std::string> of_heads = {"num_nextn_predict_layers", "mtp_loss_scaling_factor",
                                             "mtp_use_repeated_layer"};
  std::vector<std::string> beside_folder = {"model.folder"};
  for (const std::string& key : of_heads) beside_folder.push_back("model." + key);
  const std::string also = settings.given_below("model.", beside_folder);
  if (!also.empty()) {
    settings.fail(also, fmt::format("{} and model.folder are both given", also),
                  "the folder's config.json has the sizes; remove one");
  }
  const std::string folder = beside(settings, settings.get<std::string>("model.folder"));
  spec.weights_folder = folder;
  spec.model = read_outside(settings, "model.folder", [&] {
    return read_json_object((fs::path(folder) / "config.json").string());
  });
  leave_out_extra_heads(spec.model);
  for (const std::string& key : of_heads) {
    const json value = settings.value("model." + key);
    if (!value.is_null()) spec.model[key] = value;
  }
}

void set_batch_size(const Settings& settings, DataSpec& data) {
  if (!data.lengths.empty()) data.batch_size = static_cast<int64_t>(data.lengths.size());
  std::string source = data.lengths.empty() ? "" : "data.lengths";
  for (const std::string path : {"data.batch_size", "run.train_global_batch_size"}) {
    if (!settings.given(path)) continue;
    // A call of a policy may hold several global batches.
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
  if (!settings.given("data.lengths")) return;
  if (data.lengths.empty()) settings.fail("data.lengths", "the batch is empty", "give a length");
  const int64_t longest = *std::max_element(data.lengths.begin(), data.lengths.end());
  if (!settings.given("data.sequence_length")) data.seq_len = longest;
  if (longest > data.seq_len) {
    settings.fail("data.lengths",
                  fmt::format("a sample has {} tokens, but data.sequence_length is {}", longest,
                              data.seq_len),
                  fmt::format("set data.sequence_length to at least {}", longest));
  }
}

void check_dropped(const Settings& settings, const DataSpec& data) {
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
  check_dropped(settings, spec.data);
}

// The policy configuration has the temperature among its generation options.
void set_temperature(const Settings& settings, LossSpec& loss) {
  const std::string path = "run.temperature", other = "run.generation.temperature";
  if (!settings.given(other)) return;
  if (settings.given(path)) {
    settings.fail(other, fmt::format("{} and {} are both given", path, other), "keep one");
  }
  loss.temperature = settings.get<double>(other);
}

// Model, weights, batch, loss and optimizer of a case folder. Only `uneven` may be given beside it.
CaseSpec case_of_folder(const Settings& settings) {
  for (const char* prefix : {"model.", "data.", "run.loss.", "run.optimizer.", "run.scheduler",
                             "run.max_grad_norm", "run.train_global_batch_size"}) {
    const std::string also = settings.given_below(prefix, {"data.case", "data.uneven"});
    if (!also.empty()) {
      settings.fail(also, fmt::format("{} and data.case are both given", also),
                    "the case folder says it; remove one");
    }
  }
  return read_outside(settings, "data.case", [&] {
    return read_case_folder(beside(settings, settings.get<std::string>("data.case")));
  });
}

void set_members(const Settings& settings, CaseSpec& spec) {
  for (const CaseOption& option : settings.schema().keys()) {
    if (!option.set || !settings.given(option.path)) continue;
    const json value = settings.value(option.path);
    if (!value.is_null()) option.set(spec, value);
  }
}

void check_huge_advantage(const Settings& settings, const DataSpec& data) {
  const std::string key = "data.huge_advantage.sample";
  if (data.huge_advantage_sample < 0) return;
  if (!data.file.empty()) {
    settings.fail(key, "the batch is read from a file, with its own advantages",
                  "write them there");
  }
  if (data.huge_advantage_sample < data.batch_size) return;
  settings.fail(
      key, fmt::format("sample {} of a batch of {}", data.huge_advantage_sample, data.batch_size),
      "count from 0");
}

void check_noise(const Settings& settings, const CaseSpec& spec) {
  if (spec.noise_std == 0 || spec.is(ModelWorkload::kTrain)) return;
  settings.fail("run.noise_std", fmt::format("workload {} takes no noise", spec.workload),
                "noise the weights of workload train");
}

void check_fused_norm(const Settings& settings, const CaseSpec& spec) {
  if (!spec.fused_norm || spec.is(ModelWorkload::kLogprobs)) return;
  settings.fail(
      "run.scoring.fused_norm",
      fmt::format("workload {} needs gradients, which the fused pass does not have", spec.workload),
      "use it with workload: logprobs");
}

// The golden draws the parts of the plan that every architecture has.
void check_init(const Settings& settings, const CaseSpec& spec) {
  if (spec.init == WeightInit::kMaster) return;
  const auto fail = [&](const char* what, const char* fix) {
    settings.fail("model.init", what, fix);
  };
  if (spec.is(ModelWorkload::kPolicy)) {
    fail("stages of workload policy may change tp, on which weights of own streams depend",
         "use workload: train or logprobs");
  }
  if (!spec.parallel.custom_plan.is_null()) {
    fail("the golden of own_stream does not know what a custom plan cuts", "remove one of them");
  }
  if (spec.reference.is_set()) {
    fail("with own_stream another layout has other weights, so it cannot be the reference",
         "remove one of them");
  }
}

void set_model_and_data(const Settings& settings, CaseSpec& spec) {
  if (!settings.given("data.case")) {
    set_model(settings, spec);
    set_data(settings, spec);
    set_optimizer(settings, spec.optimizer);
  }
  set_temperature(settings, spec.loss);
  set_norm_type(settings, spec.optimizer);
  check_huge_advantage(settings, spec.data);
  check_noise(settings, spec);
  check_fused_norm(settings, spec);
}

// Derives dp from world.size when it is not given.
void set_data_parallel_size(const Settings& settings, ParallelSpec& parallel) {
  if (settings.given("parallel.data_parallel_size") || !settings.given("world.size")) return;
  parallel.dp = 1;
  const int64_t others = parallel.ranks();
  const auto world_size = settings.get<int64_t>("world.size");
  if (world_size % others != 0) {
    std::vector<std::string> axes = axis_names();
    std::erase(axes, "dp");
    settings.fail(
        "world.size",
        fmt::format("world.size is {}, but {} is {}", world_size, fmt::join(axes, " * "), others),
        fmt::format("choose a multiple of {}", others));
  }
  parallel.dp = world_size / others;
}

void set_parallel(const Settings& settings, ParallelSpec& parallel) {
  set_data_parallel_size(settings, parallel);
  std::string blamed = settings.given_below("parallel.expert_");
  if (blamed.empty()) blamed = settings.given_below("parallel.");
  const Mesh mesh = read_outside(settings, blamed.empty() ? "world.size" : blamed,
                                 [&] { return parallel.mesh(); });
  read_outside(settings, "parallel.pp.layout",
               [&] { return read_layout(parallel.pp_options.layout); });
  if (!settings.given("world.size")) return;
  const auto world_size = settings.get<int64_t>("world.size");
  if (world_size != mesh.world_size()) {
    settings.fail("world.size",
                  fmt::format("world.size is {}, but the mesh {} has {}", world_size,
                              mesh.describe(), count_of(mesh.world_size(), "rank")),
                  "change the mesh or world.size");
  }
}

// The verdict that has the kind.
Verdict verdict_of_kind(ResultKind kind) {
  if (kind == ResultKind::kRefused) return Verdict::kRefused;
  return kind >= ResultKind::kValues ? Verdict::kMismatch : Verdict::kFailed;
}

void check_expected(const Settings& settings, const CaseSpec& spec) {
  const ExpectSpec& expect = spec.expect;
  if (!spec.judged && expect.kind == name_of(ResultKind::kValues)) {
    settings.fail("expect.kind", "expect.kind is values, and with judged: false none is compared",
                  "remove judged: false");
  }
  const auto fits = [&](Verdict verdict) { return verdict == expect.verdict; };
  const bool errs = fits(Verdict::kMismatch) || fits(Verdict::kFailed);
  for (const auto& [path, value, possible] :
       {std::tuple{"expect.kind", &expect.kind,
                   expect.kind.empty() || fits(verdict_of_kind(enum_of<ResultKind>(expect.kind)))},
        {"expect.tensor", &expect.tensor, fits(Verdict::kMismatch)},
        {"expect.detector", &expect.detector, errs},
        {"expect.message", &expect.message, !fits(Verdict::kMatch)}}) {
    if (value->empty() || possible) continue;
    const Verdict due = value == &expect.kind ? verdict_of_kind(enum_of<ResultKind>(expect.kind))
                                              : Verdict::kMismatch;
    settings.fail(path, fmt::format("{} is {}, which no {} has", path, *value, expect.verdict),
                  fmt::format("name the verdict that has it: expect: {{verdict: {}, ..}}", due));
  }
  if (expect.nothing_counted && !fits(Verdict::kMatch)) {
    settings.fail("expect.nothing_counted",
                  fmt::format("expect.nothing_counted is of a match, and expect.verdict is {}",
                              expect.verdict),
                  "leave one of them out");
  }
}

// Calls are counted where every value is right.
void check_collectives(const Settings& settings, const ExpectSpec& expect) {
  const std::string path = "expect.collectives";
  const json& collectives = expect.collectives;
  if (collectives.is_null()) return;
  const bool counts_calls =
      expect.verdict == Verdict::kMatch || expect.kind == name_of(ResultKind::kSchedule);
  if (!counts_calls) {
    settings.fail(path,
                  fmt::format("{} beside a {} of any kind: calls are counted where every value is "
                              "right",
                              path, expect.verdict),
                  "remove one of both, or expect {verdict: mismatch, kind: schedule}");
  }
  for (const auto& [axis, counts] : collectives.items()) {
    check_axis(settings, path, axis, path);
    if (!counts.is_object())
      settings.fail(path, fmt::format("{}.{} is not a map", path, axis), "write {all_reduce: 3}");
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

}  // namespace

CaseSpec build_case(const Settings& settings, const WorldChoice& world) {
  const bool model = is_model_workload(settings.get<std::string>("workload"));
  CaseSpec spec;
  if (model && settings.given("data.case")) spec = case_of_folder(settings);
  spec.file = settings.file();
  set_members(settings, spec);
  set_workload(settings, world.workloads, spec);
  if (model) set_model_and_data(settings, spec);
  set_batching(settings, spec);
  set_parallel(settings, spec.parallel);
  set_stages(settings, spec);
  spec.world.backend = world.backend;
  spec.world.device = world.device;
  set_world(settings, spec);
  check_reference(settings, spec);
  if (model) check_init(settings, spec);
  check_collectives(settings, spec.expect);
  check_expected(settings, spec);
  spec.idle_keys = idle_keys(spec, [&](const std::string& path) {
    return settings.given(path) ? std::optional<json>(settings.value(path)) : std::nullopt;
  });
  return spec;
}

}  // namespace shardproof::sim
