// What the ranks of a registered workload would refuse: sizes that the mesh cannot cut, and options
// that exclude each other.
#include <algorithm>

#include "sim/uses/explore/fitted_settings.h"

namespace shardproof::sim::explore {

using nlohmann::json;

namespace {

class WorkloadFit : private FittedSettings {
 public:
  WorkloadFit(CaseSettings& settings, const std::set<std::string>& fixed,
              const WorkloadOptions& rows)
      : FittedSettings(settings, fixed),
        workload_(setting_of(settings, "workload")),
        rows_(rows),
        usual_(usual_values(rows)),
        options_(settings["options"]) {
    if (options_.is_null()) options_ = json::object();
  }
  ~WorkloadFit() {
    if (options_.empty()) settings_.erase("options");
  }
  WorkloadFit(const WorkloadFit&) = delete;
  WorkloadFit& operator=(const WorkloadFit&) = delete;

  // Ranks refuse such a value beside the other option's. The pair may need the first: then the
  // other one gives way.
  void exclude() {
    for (const WorkloadOption& row : rows_) {
      for (const NotBeside& beside : row.excludes) {
        if (value(row.path) != beside.own || value(beside.other) != beside.is) continue;
        const bool keeps = is_fixed(path_of(row.path)) && !is_fixed(path_of(beside.other));
        give_way(keeps ? beside.other : row.path, keeps ? beside.is : beside.own);
      }
    }
  }

  void cut_sizes() {
    for (const WorkloadOption& row : rows_) {
      for (const CutOver& cut : row.cuts) {
        if (cut.where.empty() || value(cut.where) == cut.is) cut_size(row.path, size_of(cut.axis));
      }
    }
    const int64_t padded =
        value("padded_vocab").is_null() ? 0 : value("padded_vocab").get<int64_t>();
    const int64_t vocab = padded > 0 ? value("vocab_size").get<int64_t>() : 0;
    if (padded > 0 && (padded < vocab || padded % size(kTp, 1) != 0)) {
      options_["padded_vocab"] = multiple(std::max(padded, vocab), size(kTp, 1));
    }
  }

  // The shape of a mapping has the dim that is cut, and rows of tokens have no third one.
  void shapes() {
    const json shape = value("shape"), mapping = value("mapping"), dim = value("dim");
    if (workload_ != "mapping" || !mapping.is_string() || !shape.is_array()) return;
    const bool rows = mapping.get<std::string>().find("hidden") != std::string::npos;
    if (rows && shape.size() != 2) options_.erase(is_fixed(path_of("shape")) ? "mapping" : "shape");
    if (rows || !dim.is_number() || dim.get<int64_t>() < std::ssize(shape)) return;
    if (is_fixed(path_of("dim"))) {
      options_["shape"] = {4, 2, 5};
    } else {
      options_.erase("dim");
    }
  }

  // Options that repeat the sizes of the mesh.
  void repeat_mesh() {
    for (const WorkloadOption& row : rows_) {
      for (const CountsRanks& of : row.counts) {
        const std::string axis = of.named_by.empty() ? of.axis : std::string(value(of.named_by));
        const int64_t ranks = size(size_of(axis), 1);
        if (value(row.path) != ranks) options_[row.path] = ranks;
      }
    }
  }

  // A world that holds a trainer and its receivers beside each other.
  void receivers() {
    constexpr int64_t kCopies = 2;  // of a hybrid trainer
    if (workload_ != "refit") return;
    for (const char* axis : {kCp, kUlysses}) drop(axis);
    const auto of = [&](const char* name, int64_t otherwise) {
      return options_.value(name, otherwise);
    };
    if (options_.value("data_parallel", "") == "hybrid" && of("trainer_dp", 2) % kCopies != 0) {
      options_["trainer_dp"] = kCopies;
    }
    const int64_t tp = size(kTp, 1);
    for (const char* smaller : {"replicas", "trainer_cp", "trainer_tp", "trainer_dp"}) {
      const int64_t ranks =
          of("trainer_dp", 2) * of("trainer_cp", 1) * of("trainer_tp", 2) + of("replicas", 1) * tp;
      const int64_t dp = multiple(ranks, tp) / tp;
      if (dp * tp <= kMostDrawnRanks) {
        if (size(kDp, 1) < dp) set(kDp, dp);
        return;
      }
      const bool hybrid = options_.value("data_parallel", "") == "hybrid";
      options_[smaller] = hybrid && smaller == std::string("trainer_dp") ? kCopies : 1;
    }
  }

 private:
  std::string path_of(const std::string& option) const {
    return "options." + workload_ + "." + option;
  }
  json value(const std::string& option) const {
    return options_.value(option, usual_.value(option, json()));
  }
  // The key of an axis's size.
  static std::string size_of(const std::string& axis) {
    return path_of_size(*std::ranges::find(kTrainingAxes, axis, &TrainingAxis::name));
  }

  void give_way(const std::string& option, const json& excluded) {
    const json usual = usual_.value(option, json());
    if (usual == excluded && usual.is_boolean()) {
      options_[option] = !usual.get<bool>();
    } else {
      options_.erase(option);
    }
  }

  // Each rank of the axis holds an equal part of the option, or the axis has fewer ranks.
  void cut_size(const std::string& option, const std::string& axis) {
    const json given = value(option);
    const int64_t ranks = size(axis, 1);
    if (!given.is_number_integer()) return;
    const auto whole = given.get<int64_t>();
    if (whole <= 0 || whole % ranks == 0) return;
    if (!is_fixed(path_of(option))) {
      options_[option] = multiple(whole, ranks);
      return;
    }
    int64_t fewer = ranks;
    while (whole % fewer != 0) --fewer;
    set(axis, fewer);
  }

  const std::string workload_;
  const WorkloadOptions& rows_;
  const json usual_;
  json& options_;
};

}  // namespace

void fit_workload(CaseSettings& settings, const std::set<std::string>& fixed,
                  const WorkloadOptions& options) {
  WorkloadFit fit(settings, fixed, options);
  fit.exclude();
  fit.cut_sizes();
  fit.shapes();
  fit.repeat_mesh();
  fit.receivers();
}

}  // namespace shardproof::sim::explore
