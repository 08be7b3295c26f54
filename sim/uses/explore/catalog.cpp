#include "sim/uses/explore/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "sim/case/names.h"
#include "sim/case/scenario/schema.h"
#include "sim/uses/explore/effects.h"
#include "sim/uses/explore/fitted_settings.h"

namespace shardproof::sim::explore {

using nlohmann::json;

namespace {

constexpr size_t kMostUsed = 12;  // values of an option that come from scenarios
constexpr size_t kLongestLabel = 60;

// An attribute of records that are not drawn is not drawn either.
bool is_drawn(const Schema& schema, const Option& key) {
  const CaseOption* list = schema.find(key.path.substr(0, key.path.find('[')));
  return key.not_drawn.empty() && (list == nullptr || list->not_drawn.empty());
}

// Of options of workloads: what divides their default mostly divides its multiples.
std::vector<int64_t> sizes_of(const DrawnOption& option) {
  std::vector<int64_t> sizes = {1, 2, 3, 4, 5, 7, 8};
  // A norm of one value is its sign, and the gradient of that is what rounding leaves.
  if (option.path == "model.hidden_size") sizes.erase(sizes.begin());
  // No token of a sequence of one token is scored.
  if (option.path == "data.sequence_length" || option.path.ends_with("_mb_tokens")) {
    sizes.erase(sizes.begin());
  }
  if (!option.workload.empty()) {
    const auto usual = option.default_value.get<int64_t>();
    sizes = {2 * usual, 3 * usual};
  }
  for (const Edge& edge : edges()) {
    if (option.path != edge.path) continue;
    sizes.insert(sizes.end(), {edge.size - 1, edge.size, edge.size + 1, 2 * edge.size + 3});
  }
  if (option.workload.empty() && option.low < 1) sizes.push_back(static_cast<int64_t>(option.low));
  return sizes;
}

void add_integers(DrawnOption& option) {
  for (const int64_t size : sizes_of(option)) {
    if (option.is_in_range(static_cast<double>(size))) option.candidates.emplace_back(size);
  }
}

void add_numbers(DrawnOption& option) {
  double middle = option.default_value.is_number() && option.default_value != 0
                      ? option.default_value.get<double>()
                      : 0.5;
  if (option.path == "run.noise_std") middle = 0.02;  // more, and gradients overflow
  std::vector<double> numbers = {middle / 2, middle * 3};
  const bool counts = option.path != "data.token_mask_probability";  // of 0 no token counts
  if (option.has_range() && option.low == 0 && counts) numbers.push_back(0);
  if (option.low < 0) numbers.push_back(-middle);
  for (const double number : numbers) {
    if (option.is_in_range(number)) option.candidates.emplace_back(number);
  }
}

void add_candidates(DrawnOption& option) {
  using enum KeyType;
  auto& candidates = option.candidates;
  const bool optional = option.default_value.is_null() && option.records.empty();
  if (!option.default_value.is_null() || optional) candidates.push_back(option.default_value);
  if (option.nullable && !optional) candidates.push_back(nullptr);
  if (option.type == kBool) candidates.insert(candidates.end(), {true, false});
  for (const std::string& choice : option.choices) candidates.emplace_back(choice);
  if (option.type == kInteger) add_integers(option);
  if (option.type == kNumber) add_numbers(option);
  if (option.type == kIntegers) {
    for (const json& list : {json{5}, json{2}, json{1, 0, 2}, json{7, 3}, json{3, 3, 3, 3},
                             json{2, 9, 1, 12, 5}, json{16, 1, 9}, json{33, 2, 65, 7, 1, 8}}) {
      if (*std::min_element(list.begin(), list.end()) >= option.low) candidates.push_back(list);
    }
  }
}

// Lists of records with free maps, whose attributes belong together, are taken from scenarios.
bool is_taken_whole(const Schema& schema, const std::string& path) {
  return std::any_of(schema.keys().begin(), schema.keys().end(), [&](const Option& key) {
    return key.path.starts_with(path + "[].") && key.type == KeyType::kMap;
  });
}

std::string list_of(const std::string& path) {
  const size_t brackets = path.find("[].");
  return brackets == path.npos ? "" : path.substr(0, brackets);
}

bool takes_used_values(const DrawnOption& option) {
  using enum KeyType;
  return option.type == kText || option.type == kTexts || option.type == kMap ||
         option.type == kNumberPair || option.type == kRecords ||
         (option.type == kNumber && option.default_value.is_null()) || !option.workload.empty();
}

void add_used(DrawnOption& option, const json& value) {
  auto& candidates = option.candidates;
  if (candidates.size() >= kMostUsed || !takes_used_values(option)) return;
  if (std::find(candidates.begin(), candidates.end(), value) == candidates.end()) {
    candidates.push_back(value);
  }
}

// A drawn layout is fitted to the stages and layers of its case (fit_pipeline.cpp).
std::string layout_label(const std::string& layout) {
  return has_stage_without_layers(layout) ? "a stage without layers" : "layers on every stage";
}

std::string number_label(const Option& option, const json& value) {
  const auto number = value.get<double>();
  if (number < 0) return "negative";
  if (option.has_range() && number == option.low) return "least";
  if (option.type == KeyType::kNumber) {
    if (option.default_value.is_null()) return value.dump();
    return number < option.default_value.get<double>() ? "less" : "more";
  }
  std::string label = value.get<int64_t>() % 2 == 0 ? "even" : "odd";
  for (const Edge& edge : edges()) {
    if (option.path != edge.path) continue;
    const auto size = static_cast<double>(edge.size);
    if (std::abs(number - size) <= 1) return fmt::format("near {}", edge.size);
    if (number > size) label = fmt::format("above {}", edge.size);
  }
  return label;
}

}  // namespace

std::string label_of(const Option& option, const json& value) {
  if (value == option.default_value) return "default";
  if (value.is_null()) return "null";
  if (option.path == "parallel.pp.layout") return layout_label(value);
  if (option.path == "model.config") return "given";  // fitted to its family (fit_experts.cpp)
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return number_label(option, value);
  if (option.type == KeyType::kIntegers) return value.size() == 1 ? "one" : "several";
  return value.dump().substr(0, kLongestLabel);
}

Catalog::Catalog(const std::vector<KnownWorkload>& workloads, std::vector<CaseSettings> scenarios) {
  const Schema& schema = case_schema();
  for (const CaseOption& key : schema.keys()) {
    if (!is_drawn(schema, key)) continue;
    const bool whole = key.type == KeyType::kRecords && is_taken_whole(schema, key.path);
    if (key.type == KeyType::kRecords && !whole) continue;  // drawn attribute by attribute
    const std::string list = list_of(key.path);
    if (!list.empty() && is_taken_whole(schema, list)) continue;
    options_.push_back({static_cast<const Option&>(key)});
    options_.back().records = list;
  }
  for (const KnownWorkload& workload : workloads) {
    for (const WorkloadOption& row : workload.options) {
      if (!row.not_drawn.empty()) continue;
      options_.push_back({static_cast<const Option&>(row)});
      DrawnOption& option = options_.back();
      option.path = "options." + workload.name + "." + row.path;
      option.workload = workload.name;
    }
  }
  for (DrawnOption& option : options_) {
    if (option.path == "parallel.pp.layout") option.candidates = {"Ett|tL", "E|tttL"};
    if (option.path == "workload") {
      option.type = KeyType::kName;
      option.choices = known_workloads();
      for (const KnownWorkload& workload : workloads) option.choices.push_back(workload.name);
    }
    add_candidates(option);
  }
  for (CaseSettings& settings : scenarios) {
    const std::string workload = setting_of(settings, "workload");
    for (DrawnOption& option : options_) {
      if (!option.workload.empty()) {
        const json given = setting_of(settings, "options");
        if (option.workload == workload && given.contains(option.name())) {
          add_used(option, given[option.name()]);
        }
      } else if (settings.contains(option.path)) {
        add_used(option, settings[option.path]);
      }
    }
    if (!is_model_workload(workload)) cases_[workload].push_back(std::move(settings));
  }
  make_kinds();
}

void Catalog::make_kinds() {
  kinds_.clear();
  kind_of_.clear();
  for (size_t i = 0; i < options_.size(); ++i) {
    for (const json& value : options_[i].candidates) {
      const std::string label = label_of(options_[i], value);
      const auto [found, added] = kind_of_.emplace(std::pair(i, label), kinds_.size());
      if (added) kinds_.push_back({.option = i, .label = label});
      kinds_[found->second].values.push_back(value);
    }
  }
  const auto is_workload = [this](const std::string& name) {
    return std::find(workloads().begin(), workloads().end(), name) != workloads().end();
  };
  const bool models = std::any_of(workloads().begin(), workloads().end(),
                                  [](const json& name) { return is_model_workload(name); });
  own_kinds_.clear();
  edge_kinds_.clear();
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    const DrawnOption& option = options_[kinds_[kind].option];
    if (is_workload(option.workload)) own_kinds_[option.workload].push_back(kind);
    for (const Edge& edge : edges()) {
      const std::string label = std::to_string(edge.size);
      const bool at_edge = kinds_[kind].label.ends_with(" " + label);  // "near 32", "above 32"
      if (models && option.workload.empty() && option.path == edge.path && at_edge) {
        edge_kinds_.push_back({kind, edge.code});
      }
    }
  }
}

const std::vector<json>& Catalog::workloads() const {
  return std::ranges::find(options_, "workload", &DrawnOption::path)->candidates;
}

std::vector<size_t> Catalog::kinds_of_code(const std::string& code) const {
  std::vector<size_t> found;
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    const std::string& path = options_[kinds_[kind].option].path;
    const std::string& label = kinds_[kind].label;
    const bool is_other = label != "default" && (path != "workload" || is_model_workload(label));
    if (is_other && affects_code(path, code)) found.push_back(kind);
  }
  return found;
}

void Catalog::restrict_to(const std::string& path, std::vector<json> values) {
  for (DrawnOption& option : options_) {
    if (option.path != path) continue;
    option.candidates = values;
    option.restricted = true;
  }
  make_kinds();
}

bool Catalog::allows(const CaseSettings& settings) const {
  return std::all_of(options_.begin(), options_.end(), [&](const DrawnOption& option) {
    const auto& allowed = option.candidates;
    return !option.restricted || std::find(allowed.begin(), allowed.end(),
                                           setting_of(settings, option.path)) != allowed.end();
  });
}

std::string Catalog::describe(size_t kind) const {
  return options_[kinds_[kind].option].path + "=" + kinds_[kind].label;
}

void Catalog::add_kind(size_t option, const json& value, std::vector<size_t>& found) const {
  const auto kind = kind_of_.find({option, label_of(options_[option], value)});
  if (kind != kind_of_.end()) found.push_back(kind->second);
}

std::vector<size_t> Catalog::kinds_in(const CaseSettings& settings) const {
  std::vector<size_t> found;
  const json workload = setting_of(settings, "workload"), given = setting_of(settings, "options");
  for (size_t i = 0; i < options_.size(); ++i) {
    const DrawnOption& option = options_[i];
    if (!option.workload.empty()) {
      if (workload == option.workload) {
        add_kind(i, given.value(option.name(), option.default_value), found);
      }
    } else if (!option.records.empty()) {
      for (const json& record : setting_of(settings, option.records)) {
        if (!in_effect(option.path, settings, record)) continue;
        add_kind(i, record.value(option.name(), option.default_value), found);
      }
    } else if (in_effect(option.path, settings)) {
      add_kind(i, setting_of(settings, option.path), found);
    }
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

const std::vector<CaseSettings>& Catalog::cases_of(const std::string& workload) const {
  static const std::vector<CaseSettings> none;
  const auto found = cases_.find(workload);
  return found == cases_.end() ? none : found->second;
}

}  // namespace shardproof::sim::explore
