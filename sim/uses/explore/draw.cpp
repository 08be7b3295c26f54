#include "sim/uses/explore/draw.h"

#include <algorithm>

#include "sim/case/names.h"
#include "sim/case/reference.h"
#include "sim/uses/explore/effects.h"
#include "sim/uses/explore/fitted_settings.h"

namespace shardproof::sim::explore {

using nlohmann::json;

namespace {

constexpr const char* kStages = "run.stages";
// The least share of a registered workload's own options that a case gives: they are few, and a
// mistake in such a layer often needs three of them. So it does of its mesh and its precision.
constexpr double kOwnShare = 0.3, kOwnMesh = 0.5, kOwnPrecision = 0.6;
// Every second case gives most of its own options, since a mistake may need four of them.
constexpr double kMostOwnShare = 0.9;
// What a stage leaves behind often shows only when it comes again after training: so many policies
// have such three stages.
constexpr double kStageAgain = 0.4;
// The least share of options beside a pair.
constexpr double kLeastShare = 0.02;
// A mistake often needs some values of options that belong together: each case has two groups of
// keys of which it gives at least this share, and so it does of options that have an effect only
// beside a value of another.
constexpr double kGroupShare = 0.5, kDependentShare = 0.25;
// Of a size, how often it is drawn by the mesh: a size that an axis cuts evenly, or nearly does.
constexpr double kByMesh = 0.4;
// A setting that was refused so often, and never taken, is not drawn beside a pair.
constexpr int64_t kNeverTaken = 8;
// The keys that belong together: "model.", "run.optimizer.".
std::string group_of(const std::string& path) {
  const size_t dot = path.find('.');
  if (dot == path.npos || !path.starts_with("run.")) return path.substr(0, dot);
  return path.substr(0, path.find('.', dot + 1));
}

// Whether it has an effect only beside a value of a key other than the workload.
bool is_dependent(const std::string& path) {
  const std::vector<Way>& ways = ways_of(path);
  return !ways.empty() && std::ranges::none_of(ways, [](const Way& way) {
    return std::ranges::all_of(way, [](const Needed& needed) { return needed.path == "workload"; });
  });
}

// Of the whole axis, or around one or two of its sizes: 1 2 3 4 5 7 9 for an axis of 4.
json size_by_mesh(const CaseSettings& settings, std::mt19937_64& random) {
  std::vector<int64_t> axes;
  for (const TrainingAxis& axis : kTrainingAxes) {
    const json size = setting_of(settings, path_of_size(axis));
    if (size.is_number_integer() && size > 1) axes.push_back(size);
  }
  if (axes.empty()) return nullptr;
  const int64_t size = any(axes, random);
  const std::vector<int64_t> sizes = {1,        size / 2,     size - 1,    size,
                                      size + 1, 2 * size - 1, 2 * size + 1};
  return any(sizes, random);
}

std::string setting_line(const std::string& path, const json& value) {
  return path + ": " + value.dump();
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
  for (const Needed& needed : any(ways_of(path), random)) {
    if (needed.path.find("[].") != std::string::npos) {
      json& stages = drawing.settings[kStages];
      const bool there = std::ranges::any_of(
          stages, [&](const json& stage) { return stage["do"] == needed.value; });
      if (!there) stages.push_back({{"do", needed.value}});
      if (!require_effect(drawing, needed.path, random)) return false;
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
  std::vector<json> models, others;
  for (const json& name : catalog_.workloads()) {
    (is_model_workload(name) ? models : others).push_back(name);
  }
  const std::string name = any(models.empty() ? others : models, random);
  drawing.settings["workload"] = name;
  const auto& known = catalog_.cases_of(name);
  if (known.empty()) return;
  const CaseSettings base = any(known, random);
  for (const auto& [path, value] : base.items()) {
    if (!drawing.settings.contains(path)) drawing.settings[path] = value;
  }
}

json Drawer::drawn_value(const DrawnOption& option, const CaseSettings& settings,
                         std::mt19937_64& random) const {
  const bool size = option.type == KeyType::kInteger && !option.restricted &&
                    (option.path.starts_with("model.") || option.path.starts_with("data."));
  if (size && happens(kByMesh, random)) {
    const json value = size_by_mesh(settings, random);
    const bool fits = !value.is_null() && option.is_in_range(value.get<double>());
    if (fits && option.path != "model.hidden_size") return value;
  }
  return any(option.candidates, random);
}

void Drawer::fill(Drawing& drawing, double share, std::mt19937_64& random) const {
  std::vector<const DrawnOption*> order;
  for (const DrawnOption& option : catalog_.options()) order.push_back(&option);
  std::shuffle(order.begin(), order.end(), random);
  std::set<std::string> groups;
  if (share > kLeastShare) {
    while (groups.size() < 2) {
      const DrawnOption& option = *any(order, random);
      if (option.workload.empty()) groups.insert(group_of(option.path));
    }
  }
  const auto share_of = [&](const std::string& path) {
    double most = share;
    if (share > kLeastShare && is_dependent(path)) most = std::max(most, kDependentShare);
    return groups.count(group_of(path)) != 0 ? std::max(most, kGroupShare) : most;
  };
  const bool most = share > kLeastShare && happens(0.5, random);
  const double own_share = most ? kMostOwnShare : kOwnShare + share / 2;
  // Twice: what an option needs may be drawn after it.
  for (int pass = 0; pass < 2; ++pass) {
    for (const DrawnOption* option : order) {
      if (!option->records.empty() || option->path == "workload") continue;
      json& settings = drawing.settings;
      if (!option->workload.empty()) {
        const bool taken = settings["workload"] == option->workload;
        const bool given = pass > 0 || drawing.fixed.count(option->path) != 0;
        if (!taken || given || !happens(own_share, random)) continue;
        settings["options"][option->name()] = any(option->candidates, random);
        continue;
      }
      // The meshes that scenarios give to a registered workload fit its options.
      const bool model = is_model_workload(settings["workload"]);
      if (!model && option->path.starts_with("parallel.") && !happens(kOwnMesh, random)) continue;
      const bool own = !model && option->path == "precision";
      if (drawing.fixed.count(option->path) != 0 || settings.contains(option->path)) continue;
      if (option->restricted) drawing.fixed.insert(option->path);
      if (!option->restricted && !happens(own ? kOwnPrecision : share_of(option->path), random))
        continue;
      if (!in_effect(option->path, settings)) continue;
      const json value = drawn_value(*option, settings, random);
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
  const auto any_stage = [&] {
    const auto kind = static_cast<StageKind>(random() % all_names<StageKind>().size());
    return json::object({{"do", name_of(kind)}});
  };
  if (happens(kStageAgain, random)) {
    const json again = any_stage();
    stages.insert(stages.end(), {again, {{"do", name_of(StageKind::kTrain)}}, again});
  }
  const size_t least = stages.size() + (stages.empty() ? 1 : 0);
  const size_t count = least + random() % 4;
  while (stages.size() < count) {
    const auto place = static_cast<std::ptrdiff_t>(random() % (stages.size() + 1));
    stages.insert(stages.begin() + place, any_stage());
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
    fit_sizes(settings, drawing.fixed,
              options_of(world_.workloads, setting_of(settings, "workload")));
    if (is_refused(settings)) return false;  // the pair needs what together cannot run
    const CheckedCase checked = check_settings(settings, "drawn.yaml", world_);
    ++counts_.drawn;
    if (checked.spec && is_small(*checked.spec)) {
      for (const auto& [path, value] : settings.items())
        ++outcomes_[setting_line(path, value)].second;
      return true;
    }
    ++counts_.refused;
    ++counts_.refused_by[checked.key];
    counts_.sentences[checked.key] =
        checked.spec ? "it is larger than cases that are drawn" : checked.sentence;
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
        i + 2 >= tries ? kLeastShare : 0.03 + 0.5 * static_cast<double>(random() % 100) / 100;
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

namespace {

// Bounds of a case, so that thousands run in an hour: multiplications of its model, and layers that
// its ranks compute, over all steps and microbatches.
// Below float64 a golden runs many times; a reference does on all of its ranks.
constexpr double kMostWork = 2e9, kMostLowWork = 3e8, kMostLayers = 160, kMostReferenceLayers = 120;

constexpr int64_t kReferenceRuns = 17;  // below float64: sim/run/reference_run.cpp

// Layers that the ranks of the reference compute.
double reference_layers(const CaseSpec& spec) {
  if (!spec.reference.is_set()) return 0;
  const int64_t ranks = reference_layout(spec.reference).world_size();
  const bool exact = spec.precision == Precision::kFloat64;
  return static_cast<double>(ranks * spec.steps * (exact ? 1 : kReferenceRuns)) *
         spec.model.value("num_hidden_layers", 1.0);
}

// Sizes of a model, and how often its ranks pass through its layers.
struct DrawnSizes {
  double width, heads, inner, experts, blocks, extra, passes;
};

DrawnSizes sizes_of(const CaseSpec& spec) {
  const auto size = [&](const char* name) { return spec.model.value(name, 1.0); };
  const double extra = spec.model.value("num_nextn_predict_layers", 0.0);
  return {.width = size("hidden_size"),
          .heads = size("num_attention_heads") * size("head_dim"),
          .inner = size("intermediate_size"),
          .experts =
              std::max({size("num_experts"), size("num_local_experts"), size("n_routed_experts")}),
          .blocks = size("num_hidden_layers") + extra,
          .extra = extra,
          .passes = static_cast<double>(
              std::max(spec.steps, spec.lives * static_cast<int64_t>(spec.stages.size())))};
}

// Multiplications of Muon on all ranks, each of which makes the whole of every matrix orthogonal:
// 15 products of m x n with its smaller side (optim/muon.h).
double muon_work(const CaseSpec& spec, const DrawnSizes& sizes) {
  if (spec.optimizer.kind != OptimizerKind::kMuon) return 0;
  const auto product = [&](double other) {
    return sizes.width * other * std::min(sizes.width, other);
  };
  const double layer = 4 * product(sizes.heads) + 3 * sizes.experts * product(sizes.inner);
  return 15 * sizes.passes * static_cast<double>(spec.parallel.world_size()) *
         (sizes.blocks * layer + sizes.extra * product(2 * sizes.width));
}

}  // namespace

bool is_small(const CaseSpec& spec) {
  if (spec.parallel.world_size() > kMostDrawnRanks) return false;
  if (!is_model_workload(spec.workload)) return true;
  const DrawnSizes sizes = sizes_of(spec);
  const auto samples = static_cast<double>(spec.data.batch_size);
  // The golden computes all experts for all tokens.
  const double layer = sizes.width * (3 * sizes.experts * sizes.inner + 4 * sizes.heads);
  const double work = 3 * samples * static_cast<double>(spec.data.seq_len) * sizes.passes *
                      (sizes.blocks * layer + sizes.width * spec.model.value("vocab_size", 1.0));
  const int64_t shares = spec.parallel.ranks(Share::kSamples);
  const double rows =
      spec.micro_batch_size > 0 ? samples / static_cast<double>(spec.micro_batch_size * shares) : 1;
  const double layers = static_cast<double>(spec.parallel.world_size()) * sizes.passes *
                        std::max(1.0, rows) * sizes.blocks;
  const bool exact = spec.precision == Precision::kFloat64;
  return work + muon_work(spec, sizes) <= (exact ? kMostWork : kMostLowWork) &&
         layers <= kMostLayers && reference_layers(spec) <= kMostReferenceLayers;
}

}  // namespace shardproof::sim::explore
