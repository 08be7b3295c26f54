#include "sim/explore/draw.h"

#include <algorithm>

#include "sim/case/names.h"
#include "sim/case/reference.h"
#include "sim/explore/effects.h"
#include "sim/explore/fit.h"

namespace shardproof::sim {

using nlohmann::json;

namespace {

constexpr const char* kStages = "run.stages";
// The least share of a registered workload's own options that a case gives: they are few, and a
// mistake in such a layer often needs three of them. So it does of its mesh and its precision.
constexpr double kOwnShare = 0.3, kOwnMesh = 0.5, kOwnPrecision = 0.6;
// Cases of registered workloads, which take little time.
constexpr double kRegistered = 0.3;
// A setting that was refused so often, and never taken, is not drawn beside a pair.
constexpr int64_t kNeverTaken = 8;
// Bounds of a case, so that thousands run in an hour: multiplications of its model, and layers that
// its ranks compute, over all steps and microbatches.
// Below float64 a golden runs many times; a reference does on all of its ranks.
constexpr double kMostWork = 2e9, kMostLowWork = 3e8, kMostLayers = 160, kMostReferenceLayers = 400;

template <class Item>
const Item& any(const std::vector<Item>& items, std::mt19937_64& random) {
  return items[random() % items.size()];
}

bool happens(double share, std::mt19937_64& random) {
  return static_cast<double>(random() % 1000000) < share * 1e6;
}

std::string setting_line(const std::string& path, const json& value) {
  return path + ": " + value.dump();
}

constexpr int64_t kReferenceRuns = 17;  // below float64: sim/run/reference_run.cpp

// Layers that the ranks of the reference compute.
double reference_layers(const CaseSpec& spec) {
  if (!spec.reference.is_set()) return 0;
  const int64_t ranks = reference_layout(spec.reference).world_size();
  const bool exact = spec.precision == Precision::kFloat64;
  return static_cast<double>(ranks * spec.steps * (exact ? 1 : kReferenceRuns)) *
         spec.model.value("num_hidden_layers", 1.0);
}

bool is_small(const CaseSpec& spec) {
  if (spec.parallel.world_size() > kMostDrawnRanks) return false;
  if (!is_model_workload(spec.workload)) return true;
  const auto size = [&](const char* name) { return spec.model.value(name, 1.0); };
  const auto samples = static_cast<double>(spec.data.batch_size);
  const double layer = size("hidden_size") * (3 * size("intermediate_size") +
                                              4 * size("num_attention_heads") * size("head_dim"));
  const auto passes = static_cast<double>(
      std::max(spec.steps, spec.lives * static_cast<int64_t>(spec.stages.size())));
  const double work =
      3 * samples * static_cast<double>(spec.data.seq_len) * passes *
      (size("num_hidden_layers") * layer + size("hidden_size") * size("vocab_size"));
  const double rows = spec.micro_batch_size > 0
                          ? samples / static_cast<double>(spec.micro_batch_size * spec.parallel.dp)
                          : 1;
  const double layers = static_cast<double>(spec.parallel.world_size()) * passes *
                        std::max(1.0, rows) * size("num_hidden_layers");
  const bool exact = spec.precision == Precision::kFloat64;
  return work <= (exact ? kMostWork : kMostLowWork) && layers <= kMostLayers &&
         reference_layers(spec) <= kMostReferenceLayers;
}

}  // namespace

struct Drawer::Drawing {
  CaseSettings settings = json::object();
  std::set<std::string> fixed = {};  // keys that the pair needs
};

// Sets a key, unless the pair needs another value of it.
bool Drawer::require(Drawing& drawing, const std::string& path, const json& value,
                     std::mt19937_64& random) const {
  const bool fixed = drawing.fixed.count(path) != 0;
  if (fixed) return setting_of(drawing.settings, path) == value;
  drawing.settings[path] = value;
  drawing.fixed.insert(path);
  return require_effect(drawing, path, random);
}

bool Drawer::require_effect(Drawing& drawing, const std::string& path,
                            std::mt19937_64& random) const {
  if (ways_of(path).empty() || (path.find("[].") == path.npos && in_effect(path, drawing.settings)))
    return true;
  for (const NeededSetting& needed : any(ways_of(path), random)) {
    if (needed.path.find("[].") != std::string::npos) {
      json& stages = drawing.settings[kStages];
      const bool there = std::any_of(stages.begin(), stages.end(), [&](const json& stage) {
        return stage["do"] == needed.value;
      });
      if (!there) stages.push_back({{"do", needed.value}});
      continue;
    }
    const json given = setting_of(drawing.settings, needed.path);
    const json wanted = needed.value.is_null() ? json(2 + 2 * (random() % 4 == 0)) : needed.value;
    const bool fits = needed.holds(given);
    if (!fits && !require(drawing, needed.path, wanted, random)) return false;
    if (fits) drawing.fixed.insert(needed.path);
    if (!require_effect(drawing, needed.path, random)) return false;
  }
  return true;
}

bool Drawer::require_kind(Drawing& drawing, size_t kind, std::mt19937_64& random) const {
  const ValueKind& wanted = catalog_.kinds()[kind];
  const DrawnOption& option = catalog_.options()[wanted.option];
  const json value = any(wanted.values, random);
  json& settings = drawing.settings;
  if (!option.workload.empty()) {
    const bool had = drawing.fixed.count("workload") != 0;
    if (!require(drawing, "workload", option.workload, random)) return false;
    if (!had) {
      const auto& known = catalog_.cases_of(option.workload);
      if (!known.empty()) settings.update(any(known, random));
    }
    settings["options"][option.name()] = value;
    drawing.fixed.insert(option.path);
    return true;
  }
  if (option.records.empty()) {
    if (!value.is_null() || option.nullable) return require(drawing, option.path, value, random);
    if (drawing.fixed.count(option.path) != 0) return false;
    settings.erase(option.path);
    drawing.fixed.insert(option.path);
    return require_effect(drawing, option.path, random);
  }
  if (!require_effect(drawing, option.path, random)) return false;
  json& records = settings[option.records];
  if (option.name() == "do") {
    if (!require(drawing, "workload", "policy", random)) return false;
    records.push_back({{"do", value}});
    return true;
  }
  if (option.records != kStages && records.empty()) records.push_back({{"rank", 0}});
  std::vector<size_t> takers;  // records in which the attribute has an effect
  for (size_t i = 0; i < records.size(); ++i) {
    if (in_effect(option.path, settings, records[i])) takers.push_back(i);
  }
  if (takers.empty()) return false;
  records[any(takers, random)][option.name()] = value;
  return true;
}

void Drawer::choose_workload(Drawing& drawing, std::mt19937_64& random) const {
  if (drawing.fixed.count("workload") != 0) {
    drawing.settings["workload"] = setting_of(drawing.settings, "workload");
    return;
  }
  const auto& options = catalog_.options();
  const auto found = std::find_if(options.begin(), options.end(), [](const DrawnOption& option) {
    return option.path == "workload";
  });
  std::vector<json> models, others;
  for (const json& name : found->candidates) {
    (is_model_workload(name) ? models : others).push_back(name);
  }
  const bool model = others.empty() || (!models.empty() && !happens(kRegistered, random));
  const std::string name = any(model ? models : others, random);
  drawing.settings["workload"] = name;
  const auto& known = catalog_.cases_of(name);
  if (model || known.empty()) return;
  const CaseSettings base = any(known, random);
  for (const auto& [path, value] : base.items()) {
    if (!drawing.settings.contains(path)) drawing.settings[path] = value;
  }
}

void Drawer::fill(Drawing& drawing, double share, std::mt19937_64& random) const {
  std::vector<const DrawnOption*> order;
  for (const DrawnOption& option : catalog_.options()) order.push_back(&option);
  std::shuffle(order.begin(), order.end(), random);
  // Twice: what an option needs may be drawn after it.
  for (int pass = 0; pass < 2; ++pass) {
    for (const DrawnOption* option : order) {
      if (!option->records.empty() || option->path == "workload") continue;
      json& settings = drawing.settings;
      if (!option->workload.empty()) {
        const bool taken = settings["workload"] == option->workload;
        if (!taken || !happens(kOwnShare + share / 2, random)) continue;
        settings["options"][option->name()] = any(option->candidates, random);
        continue;
      }
      // The meshes that scenarios give to a registered workload fit its options.
      const bool model = is_model_workload(settings["workload"]);
      if (!model && option->path.starts_with("parallel.") && !happens(kOwnMesh, random)) continue;
      const bool own = !model && option->path == "precision";
      if (drawing.fixed.count(option->path) != 0 || settings.contains(option->path)) continue;
      if (option->restricted) drawing.fixed.insert(option->path);
      if (!option->restricted && !happens(own ? kOwnPrecision : share, random)) continue;
      if (!in_effect(option->path, settings)) continue;
      const json value = any(option->candidates, random);
      if (!option->restricted && is_hopeless(option->path, value)) continue;
      if (value != option->default_value || option->restricted) settings[option->path] = value;
    }
  }
}

// Before the other options, some of which have an effect in certain stages alone.
void Drawer::choose_stages(Drawing& drawing, std::mt19937_64& random) const {
  json& settings = drawing.settings;
  if (settings["workload"] != name_of(ModelWorkload::kPolicy)) return;
  json& stages = settings[kStages];
  if (stages.is_null()) stages = json::array();
  const size_t least = stages.size() + (stages.empty() ? 1 : 0);
  const size_t count = least + random() % 4;
  while (stages.size() < count) {
    const auto kind = static_cast<StageKind>(random() % all_names<StageKind>().size());
    const auto place = static_cast<std::ptrdiff_t>(random() % (stages.size() + 1));
    stages.insert(stages.begin() + place, json::object({{"do", name_of(kind)}}));
  }
}

void Drawer::fill_stages(Drawing& drawing, double share, std::mt19937_64& random) const {
  json& settings = drawing.settings;
  if (settings["workload"] != name_of(ModelWorkload::kPolicy)) return;
  for (const DrawnOption& option : catalog_.options()) {
    if (option.records != kStages || option.name() == "do") continue;
    for (json& stage : settings[kStages]) {
      const bool taken = !stage.contains(option.name()) && happens(share, random) &&
                         in_effect(option.path, settings, stage);
      if (taken) stage[option.name()] = any(option.candidates, random);
    }
  }
}

bool Drawer::is_hopeless(const std::string& path, const json& value) const {
  const auto found = outcomes_.find(setting_line(path, value));
  return found != outcomes_.end() && found->second.first >= kNeverTaken &&
         found->second.second == 0;
}

// Removes settings at fault until the checks accept the rest. False when the pair needs them.
bool Drawer::settle(Drawing& drawing, std::mt19937_64& random) {
  constexpr int kMostRemoved = 20;
  json& settings = drawing.settings;
  for (int i = 0; i < kMostRemoved; ++i) {
    fit_sizes(settings, drawing.fixed, catalog_.defaults_of(settings["workload"]));
    const CheckedCase checked = check_settings(settings, "drawn.yaml", world_);
    ++counts_.drawn;
    if (checked.spec && is_small(*checked.spec)) {
      for (const auto& [path, value] : settings.items())
        ++outcomes_[setting_line(path, value)].second;
      return true;
    }
    ++counts_.refused;
    ++counts_.refused_by[checked.key];
    if (settings.contains(checked.key)) {
      ++outcomes_[setting_line(checked.key, settings[checked.key])].first;
    }
    std::vector<std::string> removable;
    for (const auto& [path, value] : settings.items()) {
      const bool plain = drawing.fixed.count(path) == 0 && path != "workload" && path != kStages;
      if (plain && (checked.spec || path == checked.key)) removable.push_back(path);
    }
    if (removable.empty()) return false;
    settings.erase(any(removable, random));
  }
  return false;
}

std::optional<CaseSettings> Drawer::draw(const KindPair& pair, std::mt19937_64& random,
                                         int64_t tries) {
  for (int64_t i = 0; i < tries; ++i) {
    Drawing drawing;
    const bool first = random() % 2 == 0;
    if (!require_kind(drawing, first ? pair.first : pair.second, random)) continue;
    if (!require_kind(drawing, first ? pair.second : pair.first, random)) continue;
    choose_workload(drawing, random);
    choose_stages(drawing, random);
    // Simple cases and wild ones; the last tries add little to the pair.
    const double share =
        i + 2 >= tries ? 0.02 : 0.03 + 0.5 * static_cast<double>(random() % 100) / 100;
    fill(drawing, share, random);
    fill_stages(drawing, share, random);
    if (!drawing.settings.contains("seed")) drawing.settings["seed"] = random() % 1000;
    if (!settle(drawing, random) || !catalog_.allows(drawing.settings)) continue;
    const std::vector<size_t> kinds = catalog_.kinds_in(drawing.settings);
    const auto there = [&](size_t kind) {
      return std::binary_search(kinds.begin(), kinds.end(), kind);
    };
    if (there(pair.first) && there(pair.second)) return drawing.settings;
  }
  return std::nullopt;
}

CaseSettings Drawer::draw_missing(PairCoverage& run, PairCoverage& expected,
                                  std::mt19937_64& random) {
  for (;;) {
    const auto [missing, found] = expected.missing_pair(random);
    const KindPair pair = found ? missing : expected.any_pair(random);
    if (const auto settings = draw(pair, random, kTries)) return *settings;
    if (!found) continue;
    run.give_up(pair);
    expected.give_up(pair);
  }
}

}  // namespace shardproof::sim
