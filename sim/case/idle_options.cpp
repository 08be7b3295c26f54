#include "sim/case/idle_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace shardproof::sim {
namespace {

using nlohmann::json;

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// None where the case does not have it as one member.
std::optional<json> value_in(const CaseSpec& spec, const std::string& path) {
  if (path == "workload") return std::nullopt;
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
    const auto given = value_in(spec, needed.path);
    if (given && !needed.holds(*given)) return needed.path + " is " + text_of(*given);
  }
  return "";
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
  for (const CaseOption& option : case_options()) {
    if (!option.get || option.only_allows || option.default_value.is_null()) continue;
    if (option.needs.empty()) continue;
    const json value = option.get(spec, Extent::kAll);
    if (value == option.default_value) continue;
    std::vector<std::string> lacks;
    for (const Way& way : option.needs) lacks.push_back(lack_of(way, spec));
    if (std::find(lacks.begin(), lacks.end(), "") != lacks.end()) continue;
    idle.push_back(fmt::format("{} is {}, but {}: it has no effect", option.path, text_of(value),
                               lacks.front()));
  }
  return idle;
}

}  // namespace shardproof::sim
