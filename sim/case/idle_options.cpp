#include "sim/case/idle_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/families.h"
#include "sim/case/names.h"

namespace shardproof::sim {
namespace {

using nlohmann::json;

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Of a key of the model's config; none where its family decides.
std::optional<json> value_in_model(const json& model, const std::string& key) {
  if (key != "family" || !model.is_object()) {
    return model.contains(key) ? std::optional<json>(model.at(key)) : std::nullopt;
  }
  for (const Architecture& known : known_architectures()) {
    if (model.value("model_type", json()) == known.model_type) return known.family;
  }
  return std::nullopt;
}

int64_t nodes_of(const CaseSpec& spec) {
  const int64_t per_node = spec.world.ranks_per_node;
  return per_node > 0 ? spec.parallel.world_size() / per_node : 1;
}

struct Lack {
  size_t met = 0;         // settings of the way that are as it needs them, up to what is lacking
  std::string text = {};  // "": nothing
};

// What the way lacks first, as "parallel.tensor_parallel_size is 1".
Lack lack_of(const Way& way, const CaseSpec& spec) {
  for (size_t met = 0; met < way.size(); ++met) {
    const Needed& needed = way[met];
    if (needed.path == "run.stages[].do") {
      const auto does = [&](const StageSpec& stage) { return needed.holds(name_of(stage.kind)); };
      if (std::ranges::any_of(spec.stages, does)) continue;
      return {met, "no stage of run.stages does " + text_of(needed.value)};
    }
    // Of nodes the number counts, whichever of the two keys gave it.
    const std::string path = needed.path == "world.ranks_per_node" ? "world.nodes" : needed.path;
    const auto given = value_of_key(spec, path);
    const bool is_flag = needed.path.starts_with("model.") && needed.value == true;
    if (!given && is_flag) return {met, needed.path + " is not given"};
    if (given && !needed.holds(*given)) return {met, path + " is " + text_of(*given)};
  }
  return {way.size()};
}

// Of `parallel` a registered workload gets the sizes of the mesh alone.
bool is_of_models(const std::string& path) {
  const auto is_size = [&](const auto& axis) {
    return path == std::string("parallel.") + axis.key;
  };
  return path.starts_with("parallel.") && std::ranges::none_of(kTrainingAxes, is_size) &&
         std::ranges::none_of(kExpertParts, is_size);
}

// Whether the scenario is for one backend only, in whose world the option has no effect.
bool is_of_other_worlds(const CaseOption& option, const CaseSpec& spec) {
  const std::string backend = name_of(spec.world.backend);
  return spec.backends == std::vector{backend} && !option.backends.empty() &&
         std::ranges::find(option.backends, backend) == option.backends.end();
}

// "": the option has what it needs on the mesh of the case, or on one that a stage loads.
std::string idle_option(const CaseOption& option, const json& value, const CaseSpec& spec) {
  const auto sentence = [&](const std::string& lack) {
    return fmt::format("{} is {}, but {}: it has no effect", option.path, text_of(value), lack);
  };
  if (!is_model_workload(spec.workload) && is_of_models(option.path)) {
    return sentence("workload is " + spec.workload);
  }
  if (is_of_other_worlds(option, spec)) {
    return sentence(std::string("world.backend is ") + name_of(spec.world.backend));
  }
  if (option.needs.empty()) return "";
  std::vector<Lack> lacks;
  const auto look = [&](const CaseSpec& on_mesh) {
    for (const Way& way : option.needs) lacks.push_back(lack_of(way, on_mesh));
  };
  look(spec);
  for (const StageSpec& stage : spec.stages) {
    if (stage.kind != StageKind::kLoad) continue;
    CaseSpec on_mesh = spec;
    on_mesh.parallel = stage.parallel;
    look(on_mesh);
  }
  if (std::ranges::find(lacks, "", &Lack::text) != lacks.end()) return "";
  // The way that needs the least besides. Of a policy the stages say more than the other workloads
  // that could take the option.
  const auto nearness = [&](const Lack& lack) {
    const bool is_other = spec.is(ModelWorkload::kPolicy) && lack.text.starts_with("workload is ");
    return std::pair{!is_other, lack.met};
  };
  return sentence(std::ranges::max_element(lacks, {}, nearness)->text);
}

// Of records the reader of each says what it does not take. A reference has its needs for draws.
bool is_read_elsewhere(const std::string& path) {
  return path.find("[].") != path.npos || path.starts_with("reference.");
}

// What a fault has that faults of its kind do not read.
void add_idle(const FaultSpec& fault, size_t number, std::vector<std::string>& idle) {
  const json kind = name_of(fault.kind);
  for (const OptionRow<FaultSpec>& row : rows_of(fault)) {
    const json value = row.get(fault, Extent::kAll);
    if (row.needs.empty() || value == row.default_value) continue;
    const bool holds =
        std::ranges::any_of(row.needs, [&](const Way& way) { return way.front().holds(kind); });
    if (holds) continue;
    const std::string path = row.path.substr(row.path.find('.'));
    idle.push_back(fmt::format("faults[{}]{} is {}, but its kind is {}: it has no effect", number,
                               path, text_of(value), text_of(kind)));
  }
}

// Factors on links that take no time.
void add_idle(const WorldSpec& world, int64_t nodes, std::vector<std::string>& idle) {
  const auto is_free = [](const LinkSpec& link) {
    return link.latency_us == 0 && link.gb_per_s == 0;
  };
  if (!is_free(world.in_node) || (nodes > 1 && !is_free(world.inter_node))) return;
  for (size_t i = 0; i < world.stragglers.size(); ++i) {
    const json factor = world.stragglers[i].links;
    if (factor == StragglerSpec{}.links) continue;
    idle.push_back(
        fmt::format("world.stragglers[{}].links is {}, but no link of world.links takes "
                    "time: it has no effect",
                    i, text_of(factor)));
  }
}

// Of families whose first layers have no window, as many as the config says.
std::string window_of_no_layer(const json& model) {
  constexpr int64_t kUsual = 28;  // of transformers' Qwen2Config
  const json uses = model.value("use_sliding_window", json());
  const auto family = value_in_model(model, "family");
  const bool is_full = model.contains("sliding_window") && model["sliding_window"].is_null();
  if (uses != true || model.contains("layer_types") || !family || is_full) return "";
  if (family_traits(family->get<std::string>()).window != WindowRule::kLastLayers) return "";
  const json without = model.value("max_window_layers", json(kUsual));
  const json layers = model.value("num_hidden_layers", json());
  if (!without.is_number_integer() || !layers.is_number_integer() || without < layers) return "";
  return fmt::format(
      "model.use_sliding_window is true, but the first {} layers have no window, and "
      "there are {}: it has no effect; give max_window_layers",
      without.dump(), layers.dump());
}

}  // namespace

std::optional<json> value_of_key(const CaseSpec& spec, const std::string& path) {
  if (path == "workload") return spec.workload;
  if (path.starts_with("model.")) return value_in_model(spec.model, path.substr(6));
  if (path == "run.sequence_packing.enabled") return spec.batching.kind == BatchingKind::kPacked;
  if (path == "run.dynamic_batching.enabled") return spec.batching.kind == BatchingKind::kDynamic;
  if (path == "world.nodes") return nodes_of(spec);
  for (const CaseOption& option : case_options()) {
    if (option.path == path && option.get) return option.get(spec, Extent::kAll);
  }
  return std::nullopt;
}

std::vector<std::string> idle_options(const CaseSpec& spec) {
  std::vector<std::string> idle = spec.idle_keys;
  for (const CaseOption& option : case_options()) {
    if (!option.get || option.only_allows || option.default_value.is_null()) continue;
    const json value = option.get(spec, Extent::kAll);
    if (value == option.default_value) continue;
    const std::string text = idle_option(option, value, spec);
    if (!text.empty()) idle.push_back(text);
  }
  for (size_t i = 0; i < spec.faults.size(); ++i) add_idle(spec.faults[i], i, idle);
  add_idle(spec.world, nodes_of(spec), idle);
  if (spec.model.is_object()) {
    const std::string window = window_of_no_layer(spec.model);
    if (!window.empty()) idle.push_back(window);
  }
  return idle;
}

std::vector<std::string> idle_keys(
    const CaseSpec& spec, const std::function<std::optional<json>(const std::string&)>& given) {
  std::vector<std::string> idle;
  for (const CaseOption& option : case_options()) {
    const bool is_seen = option.get && !option.default_value.is_null();
    if (is_seen || option.only_allows || is_read_elsewhere(option.path)) continue;
    const std::optional<json> value = given(option.path);
    if (!value || *value == option.default_value) continue;
    const std::string text = idle_option(option, *value, spec);
    if (!text.empty()) idle.push_back(text);
  }
  return idle;
}

}  // namespace shardproof::sim
