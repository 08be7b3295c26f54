#include "sim/case/idle_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/families.h"

namespace shardproof::sim {
namespace {

using nlohmann::json;

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Of a key of the model's config; none where its family decides.
std::optional<json> value_in_model(const json& model, const std::string& key) {
  if (key != "family") {
    return model.contains(key) ? std::optional<json>(model.at(key)) : std::nullopt;
  }
  for (const Architecture& known : known_architectures()) {
    if (model.value("model_type", json()) == known.model_type) return known.family;
  }
  return std::nullopt;
}

// None where the case does not have it as one member.
std::optional<json> value_in(const CaseSpec& spec, const std::string& path) {
  if (path == "workload") return spec.workload;
  if (path.starts_with("model.")) return value_in_model(spec.model, path.substr(6));
  if (path == "run.sequence_packing.enabled") return spec.batching.kind == BatchingKind::kPacked;
  if (path == "run.dynamic_batching.enabled") return spec.batching.kind == BatchingKind::kDynamic;
  for (const CaseOption& option : case_options()) {
    if (option.path == path && option.get) return option.get(spec, Extent::kAll);
  }
  return std::nullopt;
}

// What the way lacks, as "parallel.tensor_parallel_size is 1"; "": nothing.
std::string lack_of(const Way& way, const CaseSpec& spec) {
  for (const Needed& needed : way) {
    if (needed.path == "run.stages[].do") {
      const auto does = [&](const StageSpec& stage) { return needed.holds(name_of(stage.kind)); };
      if (std::any_of(spec.stages.begin(), spec.stages.end(), does)) continue;
      return "no stage of run.stages does " + text_of(needed.value);
    }
    const auto given = value_in(spec, needed.path);
    if (given && !needed.holds(*given)) return needed.path + " is " + text_of(*given);
  }
  return "";
}

// The case, and for each stage of a policy that changes the mesh the case on that mesh.
std::vector<CaseSpec> on_each_mesh(const CaseSpec& spec) {
  std::vector<CaseSpec> all = {spec};
  for (const StageSpec& stage : spec.stages) {
    if (stage.kind == StageKind::kLoad) all.emplace_back(spec).parallel = stage.parallel;
  }
  return all;
}

}  // namespace

std::vector<std::string> idle_options(const CaseSpec& spec) {
  std::vector<std::string> idle;
  const bool has_budget = spec.batching.token_budget > 0 || spec.batching.logprob_budget > 0;
  if (spec.batching.kind == BatchingKind::kFixed && has_budget) {
    idle.push_back(
        "mb_tokens are given, but neither run.sequence_packing.enabled nor "
        "run.dynamic_batching.enabled is true: they have no effect");
  }
  const std::vector<CaseSpec> meshes = on_each_mesh(spec);
  for (const CaseOption& option : case_options()) {
    if (!option.get || option.only_allows || option.default_value.is_null()) continue;
    if (option.needs.empty()) continue;
    const json value = option.get(spec, Extent::kAll);
    if (value == option.default_value) continue;
    std::vector<std::string> lacks;
    for (const CaseSpec& on_mesh : meshes) {
      for (const Way& way : option.needs) lacks.push_back(lack_of(way, on_mesh));
    }
    if (std::find(lacks.begin(), lacks.end(), "") != lacks.end()) continue;
    idle.push_back(fmt::format("{} is {}, but {}: it has no effect", option.path, text_of(value),
                               lacks.front()));
  }
  return idle;
}

}  // namespace shardproof::sim
