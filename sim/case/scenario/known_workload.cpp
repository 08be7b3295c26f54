#include "sim/case/scenario/known_workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
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

// Whether the numbers of `value` are finite and within the option's range.
bool fits_range(const WorkloadOption& option, const json& value) {
  if (value.is_array()) {
    return std::ranges::all_of(value, [&](const json& item) { return fits_range(option, item); });
  }
  if (!value.is_number()) return true;
  const auto number = value.get<double>();
  if (option.has_range()) return option.is_in_range(number);
  if (value.is_number_float()) return std::isfinite(number);
  return std::abs(number) <= static_cast<double>(WorkloadOption::kMostInteger);
}

std::string range_of(const WorkloadOption& option) {
  if (option.has_range()) return fmt::format("give {} to {}", option.low, option.high);
  return fmt::format("write finite numbers, and integers of at most {} in size",
                     WorkloadOption::kMostInteger);
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

KeyType type_of_usual(const json& value) {
  if (value.is_boolean()) return KeyType::kBool;
  if (value.is_number_integer()) return KeyType::kInteger;
  if (value.is_number()) return KeyType::kNumber;
  return value.is_string() ? KeyType::kText : KeyType::kMap;
}

// Text in single quotes; a number that JSON lacks, such as nan, as its name.
std::string shown_value(const json& value) {
  if (value.is_string()) return "'" + value.get<std::string>() + "'";
  return value.is_number_float() ? fmt::format("{}", value.get<double>()) : value.dump();
}

}  // namespace

WorkloadOption::WorkloadOption(const std::string& name, json usual, std::string about) {
  path = name;
  type = type_of_usual(usual);
  default_value = std::move(usual);
  doc = std::move(about);
}

json usual_values(const WorkloadOptions& options) {
  json values = json::object();
  for (const WorkloadOption& option : options) values[option.path] = option.default_value;
  return values;
}

const WorkloadOptions& options_of(const std::vector<KnownWorkload>& known,
                                  const std::string& name) {
  static const WorkloadOptions none;
  const auto found = find_workload(known, name);
  return found == known.end() ? none : found->options;
}

json checked_options(const KnownWorkload& workload, const json& given, const Refuse& refuse) {
  json options = usual_values(workload.options);
  std::vector<std::string> names;
  for (const auto& [name, value] : options.items()) names.push_back(name);
  for (const auto& [name, value] : given.items()) {
    const auto option = std::ranges::find(workload.options, name, &Option::path);
    if (option == workload.options.end()) {
      refuse(fmt::format("workload {} has no option '{}'", workload.name, name),
             names.empty() ? "it has none" : known_names(name, names));
    } else if (!same_type(option->default_value, value)) {
      refuse(fmt::format("option {} is {}, of another type than its default {}", name, value.dump(),
                         option->default_value.dump()),
             "write a value of that type");
    } else if (!fits_range(*option, value)) {
      refuse(fmt::format("option {} is {}", name, shown_value(value)), range_of(*option));
    } else if (!option->choices.empty() &&
               !std::ranges::count(option->choices, value.get<std::string>())) {
      refuse(fmt::format("option {} is {}", name, shown_value(value)),
             known_names(value.get<std::string>(), option->choices));
    }
    options[name] = value;
  }
  return options;
}

json workload_table(const std::vector<KnownWorkload>& known) {
  json table = json::object();
  for (const KnownWorkload& one : known) {
    json& options = table[one.name] = {{"about", one.about}, {"options", json::object()}};
    for (const WorkloadOption& option : one.options) {
      json& row = options["options"][option.path] = {{"usual", option.default_value}};
      if (!option.doc.empty()) row["about"] = option.doc;
      if (!option.choices.empty()) row["choices"] = option.choices;
      if (option.has_range()) row["range"] = {option.low, option.high};
    }
  }
  return table;
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
  spec.options = checked_options(*found, settings.value("options"),
                                 [&](const std::string& what, const std::string& fix) {
                                   settings.fail("options", what, fix);
                                 });
}

}  // namespace shardproof::sim
