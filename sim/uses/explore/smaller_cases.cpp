#include "sim/uses/explore/smaller_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "sim/case/scenario/schema.h"
#include "sim/uses/explore/fitted_settings.h"

namespace shardproof::sim::explore {

using nlohmann::json;

namespace {

constexpr size_t kShown = 60;                             // letters of a value
constexpr const char* kLayerTypes = "model.layer_types";  // one for each layer

// Keys whose default follows from other keys; a case has the value that the code would choose.
struct Follows {
  const char* path;
  int64_t value;
};
constexpr Follows kFollows[] = {{"parallel.data_parallel_size", 1},
                                {"data.batch_size", 4},
                                {"data.sequence_length", 16},
                                {"model.head_dim", 0},
                                {"model.num_key_value_heads", 0}};

// Whether the size of a case grows with this integer.
bool is_size(const Option& key) {
  static const std::set<std::string> blocks = {"model", "parallel", "data", "run"};
  static const std::set<std::string> numbers = {
      "model.pad_token_id", "data.huge_advantage.sample", "model.max_position_embeddings",
      "run.refit.budget_bytes", "run.loss_scale.growth_interval"};
  return key.type == KeyType::kInteger && blocks.count(key.path.substr(0, key.path.find('.'))) &&
         numbers.count(key.path) == 0 && key.path.find('[') == key.path.npos;
}

// What most of the time of a case goes into is made smaller first.
double weight_of(const Option& key) {
  const bool heavy = key.path.starts_with("parallel.") || key.path == "model.num_hidden_layers" ||
                     key.path == "run.steps";
  return heavy ? 4 : 1;
}

// 0: the size follows from others.
int64_t size_at(const CaseSettings& settings, const Option& key) {
  if (settings.contains(key.path) && settings[key.path].is_number()) {
    return settings[key.path].get<int64_t>();
  }
  if (key.path == "data.sequence_length" || key.path == "data.batch_size") {
    if (settings.contains("data.lengths")) return 0;
  }
  for (const Follows& one : kFollows) {
    if (key.path == one.path) return one.value;
  }
  return key.default_value.is_number() ? key.default_value.get<int64_t>() : 0;
}

Edit edit_of(const std::string& path, const json& value) {
  std::string shown = value.is_null() ? "absent" : value.dump();
  if (shown.size() > kShown) shown = shown.substr(0, kShown) + "..";
  return {path + ": " + shown, {{path, value}}};
}

// Faults and stragglers on ranks of a smaller world, where no rank is a straggler twice.
void keep_ranks_within(const CaseSettings& settings, int64_t ranks, json& patch) {
  constexpr const char* kStragglers = "world.stragglers";
  for (const std::string list : {"faults", kStragglers}) {
    if (!settings.contains(list)) continue;
    std::set<int64_t> named;
    json records = json::array();
    for (json record : settings[list]) {
      record["rank"] = record["rank"].get<int64_t>() % ranks;
      const bool is_first = named.insert(record["rank"].get<int64_t>()).second;
      if (is_first || list != kStragglers) records.push_back(std::move(record));
    }
    if (records != settings[list]) patch[list] = records;
  }
}

int64_t ranks_of(const CaseSettings& settings) {
  int64_t ranks = 1;
  for (const TrainingAxis& axis : kTrainingAxes) {
    const json given = setting_of(settings, path_of_size(axis));
    if (given.is_number()) ranks *= given.get<int64_t>();
  }
  return ranks;
}

// The edit of `path` with the sizes that have to agree with it, such as heads that tp divides.
Edit with_fitted_sizes(const CaseSettings& settings, Edit edit, const std::string& path,
                       const WorkloadOptions& options) {
  const CaseSettings plain = edited(settings, edit);
  CaseSettings fitted = plain;
  fit_sizes(fitted, {path}, options);
  for (const auto& [key, value] : fitted.items()) {
    if (!plain.contains(key) || plain[key] != value) edit.patch[key] = value;
  }
  for (const auto& [key, value] : plain.items()) {
    if (!fitted.contains(key)) edit.patch[key] = nullptr;
  }
  if (fitted != plain) edit.what += ", and sizes that follow";
  return edit;
}

// A size of the mesh.
Edit edit_of_axis(const CaseSettings& settings, const std::string& path, int64_t size) {
  Edit edit = edit_of(path, size);
  CaseSettings with = settings;
  with[path] = size;
  keep_ranks_within(settings, ranks_of(with), edit.patch);
  if (settings.contains("world.size")) edit.patch["world.size"] = nullptr;
  return edit;
}

// Of `before` layers: types as many as layers, and a window in the last of them where one had it.
void keep_layers_within(const CaseSettings& settings, int64_t before, int64_t layers, json& patch) {
  if (settings.contains(kLayerTypes) &&
      settings[kLayerTypes].size() > static_cast<size_t>(layers)) {
    const json& types = settings[kLayerTypes];
    patch[kLayerTypes] = json(types.begin(), types.begin() + layers);
  }
  const char* without_window = "model.max_window_layers";
  if (!settings.contains(without_window)) return;
  const json& first = settings[without_window];
  if (first >= layers && first < before) patch[without_window] = layers - 1;
}

void add_sizes(const CaseSettings& settings, const WorkloadOptions& options,
               std::vector<Edit>& edits) {
  for (const CaseOption& key : case_schema().keys()) {
    const bool in_files = settings.contains("model.folder") || settings.contains("data.case");
    if (!is_size(key) || (in_files && key.path.starts_with("model."))) continue;
    const int64_t size = size_at(settings, key), low = static_cast<int64_t>(key.low);
    std::set<int64_t> smaller = {low, 2, 4, 8, size / 2, size - 1};
    for (const int64_t target : smaller) {
      if (target < low || target < 1 || target >= size) continue;
      const bool axis = key.path.starts_with("parallel.") && key.path.ends_with("_size");
      Edit edit = axis ? edit_of_axis(settings, key.path, target) : edit_of(key.path, target);
      if (key.path == "model.num_hidden_layers") {
        keep_layers_within(settings, size, target, edit.patch);
      }
      edits.push_back(edit);
      if (!axis && key.path != "model.num_attention_heads") continue;
      const Edit fitted = with_fitted_sizes(settings, edit, key.path, options);
      if (fitted.patch != edit.patch) edits.push_back(fitted);
    }
  }
}

void add_shorter_lists(const CaseSettings& settings, std::vector<Edit>& edits) {
  for (const auto& [path, value] : settings.items()) {
    const Option* key = case_schema().find(path);
    if (!value.is_array() || key == nullptr || key->type == KeyType::kNumberPair) continue;
    for (size_t i = 0; i < value.size() && value.size() > 1; ++i) {
      json list = value;
      list.erase(i);
      edits.push_back(edit_of(path, list));
    }
    const bool integers = key->type == KeyType::kIntegers;
    for (size_t i = 0; i < value.size(); ++i) {
      if (integers && value[i] > 2) {
        for (const int64_t smaller : {int64_t{2}, value[i].get<int64_t>() / 2}) {
          json list = value;
          list[i] = smaller;
          edits.push_back(edit_of(path, list));
        }
      }
      if (!value[i].is_object()) continue;
      for (const auto& [name, attribute] : value[i].items()) {
        const Option* of = case_schema().find(path + "[]." + name);
        if (of == nullptr || of->default_value.is_null() || of->default_value == attribute)
          continue;
        json list = value;
        list[i][name] = of->default_value;
        edits.push_back(edit_of(path, list));
      }
    }
  }
}

// Maps of numbers that decide how much a case computes.
constexpr const char* kMapsOfNumbers[] = {"options", "model.config"};

// The numbers among the options of a registered workload or the further keys of a config, and in
// their lists.
std::vector<json::json_pointer> numbers_of_options(const json& options) {
  std::vector<json::json_pointer> places;
  const json flat = options.flatten();
  for (const auto& [place, value] : flat.items()) {
    if (value.is_number_integer()) places.emplace_back(place);
  }
  return places;
}

void add_smaller_options(const CaseSettings& settings, std::vector<Edit>& edits) {
  for (const char* path : kMapsOfNumbers) {
    if (!settings.contains(path)) continue;
    const json& options = settings[path];
    for (const json::json_pointer& place : numbers_of_options(options)) {
      const auto number = options.at(place).get<int64_t>();
      for (const int64_t smaller : std::set<int64_t>{number / 4, number / 2, number - 1}) {
        if (smaller < 1 || smaller >= number) continue;
        Edit edit{fmt::format("{}{}: {}", path, place.to_string(), smaller), {{path, options}}};
        edit.patch[path][place] = smaller;
        edits.push_back(edit);
      }
    }
  }
}

// Without a key, or without all keys of a block.
void add_absences(const CaseSettings& settings, std::vector<Edit>& edits) {
  std::set<std::string> blocks;
  for (const auto& [path, value] : settings.items()) {
    if (path == "workload" || path.starts_with("expect")) continue;
    edits.push_back(edit_of(path, nullptr));
    for (size_t dot = path.find('.'); dot != path.npos; dot = path.find('.', dot + 1)) {
      blocks.insert(path.substr(0, dot + 1));
    }
  }
  for (const std::string& block : blocks) {
    Edit edit{block + "*: absent", json::object()};
    for (const auto& [path, value] : settings.items()) {
      if (path.starts_with(block)) edit.patch[path] = nullptr;
    }
    if (edit.patch.size() > 1) edits.push_back(edit);
  }
}

}  // namespace

// Not json::merge_patch, which would merge the maps of two values.
CaseSettings edited(const CaseSettings& settings, const Edit& edit) {
  CaseSettings smaller = settings;
  for (const auto& [path, value] : edit.patch.items()) {
    if (value.is_null()) {
      smaller.erase(path);
    } else {
      smaller[path] = value;
    }
  }
  return smaller;
}

double size_of(const CaseSettings& settings) {
  double size = 0;
  for (const CaseOption& key : case_schema().keys()) {
    if (!is_size(key)) continue;
    size += weight_of(key) * std::log2(1 + static_cast<double>(size_at(settings, key)));
  }
  for (const char* map : kMapsOfNumbers) {
    const json options = settings.value(map, json::object());
    for (const json::json_pointer& place : numbers_of_options(options)) {
      size += 0.1 * std::log2(2 + std::abs(options.at(place).get<double>()));
    }
  }
  for (const auto& [path, value] : settings.items()) {
    const Option* key = case_schema().find(path);
    if (key == nullptr) continue;
    size += is_size(*key) ? 0.01 : 0.5;
    if (!value.is_array()) continue;
    for (const json& item : value) {
      if (item.is_number()) size += std::log2(2 + std::abs(item.get<double>()));
      if (!item.is_object()) continue;
      size += 1;
      for (const auto& [name, attribute] : item.items()) {
        const Option* of = case_schema().find(path + "[]." + name);
        size += of == nullptr || of->default_value != attribute ? 0.25 : 0;
      }
    }
  }
  return size;
}

std::vector<Edit> smaller_cases(const CaseSettings& settings, const WorkloadOptions& options) {
  std::vector<Edit> edits;
  add_sizes(settings, options, edits);
  add_shorter_lists(settings, edits);
  add_smaller_options(settings, edits);
  add_absences(settings, edits);
  const double size = size_of(settings);
  std::vector<std::pair<double, Edit>> gains;
  for (Edit& edit : edits) {
    const double gain = size - size_of(edited(settings, edit));
    if (gain > 0) gains.emplace_back(gain, std::move(edit));
  }
  std::ranges::stable_sort(gains, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<Edit> sorted;
  for (auto& [gain, edit] : gains) sorted.push_back(std::move(edit));
  return sorted;
}

Edit joined(const std::vector<Edit>& edits, size_t count) {
  Edit all{fmt::format("{} edits", count), json::object()};
  for (size_t i = 0; i < count; ++i) {
    for (const auto& [path, value] : edits[i].patch.items()) {
      if (!all.patch.contains(path)) all.patch[path] = value;
    }
  }
  return all;
}

std::vector<Edit> edits_without_axes(const CaseSettings& settings, const WorkloadOptions& options) {
  std::vector<Edit> edits;
  std::vector<std::string> paths;
  for (const TrainingAxis& axis : kTrainingAxes) paths.push_back(path_of_size(axis));
  for (const ExpertPart& part : kExpertParts) paths.push_back(std::string("parallel.") + part.key);
  for (const std::string& path : paths) {
    const json size = setting_of(settings, path);
    if (!size.is_number() || size <= 1) continue;
    edits.push_back(with_fitted_sizes(settings, edit_of_axis(settings, path, 1), path, options));
  }
  if (edits.size() > 1) {
    Edit all = joined(edits, edits.size());
    keep_ranks_within(settings, 1, all.patch);  // each edit alone leaves more ranks
    edits.insert(edits.begin(), all);
  }
  return edits;
}

}  // namespace shardproof::sim::explore
