#include "sim/case/scenario/known_workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "sim/case/names.h"

namespace shardproof::sim {

using nlohmann::json;

namespace {

// Whether `b` may replace the default `a`. An integer may stand for a fraction, not vice versa; the
// items of a list are of the type of the default's items.
bool same_type(const json& a, const json& b) {
  if (a.is_number_float()) return b.is_number();
  if (a.is_number_integer()) return b.is_number_integer();
  if (a.is_array() && b.is_array() && !a.empty()) {
    return std::ranges::all_of(b, [&](const json& item) { return same_type(a.front(), item); });
  }
  return a.type() == b.type();
}

// Whether all numbers are finite, and integers so small that they can be sizes.
bool is_in_range(const json& value) {
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  if (value.is_array()) return std::ranges::all_of(value, is_in_range);
  if (value.is_number_float()) return std::isfinite(value.get<double>());
  if (value.is_number_unsigned()) return value.get<uint64_t>() <= kMost;
  return !value.is_number_integer() || std::abs(value.get<int64_t>()) <= kMost;
}

// A workload of former versions, and what shows its subject now.
struct RemovedWorkload {
  std::string_view name, instead;
};
constexpr std::array<RemovedWorkload, 5> kRemoved = {{
    {"accumulated_linear",
     "use workload: train with run.gradients: main and parallel.tp.deferred_wgrad"},
    {"inference_pair", "use workload: logprobs with run.scoring.fused_norm: true"},
    {"layer_parameters",
     "ranks draw first values with model.init: own_stream; a saved state is loaded at another tp "
     "size by workload: policy with run.stages [{do: save}, {do: load, tensor_parallel_size: "
     "..}]"},
    {"layers_in_flight", "use workload: train with parallel.tp.gather_buffer: true"},
    {"vocab_parallel_embedding",
     "every model has one: use workload: train with parallel.tensor_parallel_size"},
}};

void refuse_removed(const Settings& settings, const std::string& workload) {
  for (const RemovedWorkload& removed : kRemoved) {
    if (removed.name != workload) continue;
    settings.fail("workload", fmt::format("workload {} was removed", workload),
                  std::string(removed.instead));
  }
}

std::vector<KnownWorkload>::const_iterator find_workload(const std::vector<KnownWorkload>& known,
                                                         const std::string& name) {
  return std::ranges::find_if(known, [&](const KnownWorkload& one) { return one.name == name; });
}

json checked_options(const Settings& settings, const KnownWorkload& workload) {
  json options = workload.options;
  std::vector<std::string> names;
  for (const auto& [name, value] : options.items()) names.push_back(name);
  const json given = settings.value("options");
  for (const auto& [name, value] : given.items()) {
    if (!options.contains(name)) {
      settings.fail("options", fmt::format("workload {} has no option '{}'", workload.name, name),
                    names.empty() ? "it has none" : known_names(name, names));
    }
    if (!same_type(options[name], value)) {
      settings.fail("options",
                    fmt::format("option {} is {}, of another type than its default {}", name,
                                value.dump(), options[name].dump()),
                    "write a value of that type");
    }
    if (!is_in_range(value)) {
      const std::string text =
          value.is_number_float() ? fmt::format("{}", value.get<double>()) : value.dump();
      settings.fail("options", fmt::format("option {} is {}", name, text),
                    "write finite numbers, and integers of at most 2147483647 in size");
    }
    options[name] = value;
  }
  return options;
}

}  // namespace

json workload_table(const std::vector<KnownWorkload>& known) {
  json table = json::object();
  for (const KnownWorkload& one : known) {
    table[one.name] = {{"about", one.about}, {"options", one.options}};
  }
  return table;
}

std::vector<KnownWorkload> known_workloads_from_json(const json& table) {
  std::vector<KnownWorkload> known;
  for (const auto& [name, row] : table.items()) {
    known.push_back({.name = name, .about = row.at("about"), .options = row.at("options")});
  }
  return known;
}

void check_workload(const Settings& settings, const std::vector<KnownWorkload>& known) {
  const std::string workload = settings.get<std::string>("workload");
  if (is_model_workload(workload) || find_workload(known, workload) != known.end()) return;
  refuse_removed(settings, workload);
  std::vector<std::string> names = known_workloads();
  for (const KnownWorkload& one : known) names.push_back(one.name);
  settings.fail("workload", fmt::format("workload is '{}'", workload),
                known_names(workload, names));
}

void set_workload(const Settings& settings, const std::vector<KnownWorkload>& known,
                  CaseSpec& spec) {
  spec.workload = settings.get<std::string>("workload");
  if (is_model_workload(spec.workload)) {
    spec.options = settings.value("options");
    if (!spec.options.empty()) {
      settings.fail("options", fmt::format("workload {} has no options", spec.workload),
                    "remove them, or name the workload that they are for");
    }
    return;
  }
  check_workload(settings, known);
  const auto found = find_workload(known, spec.workload);
  for (const char* prefix : {"model.", "data.", "run.", "record_activations", "sample_rows"}) {
    const std::string also = settings.given_below(prefix);
    if (also.empty()) continue;
    settings.fail(also, fmt::format("workload {} has no model, so no {}", spec.workload, also),
                  "remove it; `options` say what the workload does");
  }
  spec.options = checked_options(settings, *found);
}

}  // namespace shardproof::sim
