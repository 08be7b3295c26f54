// What the ranks of a registered workload would refuse: sizes that the mesh cannot cut, and options
// that exclude each other.
#include <algorithm>
#include <map>

#include "sim/uses/explore/fitted_settings.h"

namespace shardproof::sim::explore {

using nlohmann::json;

namespace {

// A size of which each rank of an axis holds an equal part, if `with` has this value.
struct CutSize {
  const char *workload, *option, *axis;
  const char *with = nullptr, *value = "true";
};
constexpr CutSize kCutSizes[] = {
    {"broadcast_data", "samples", kDp, "axis", "\"tp\""},
    {"broadcast_data", "samples", kTp, "axis", "\"dp\""},
    {"checkpointed_block", "hidden", kTp},
    {"checkpointed_block", "samples", kDp},
    {"column_parallel_linear", "samples", kDp},
    {"column_parallel_linear", "tokens", kTp, "sequence_parallel"},
    {"context_logprob", "vocab_size", kTp},
    {"dropout_regions", "samples", kDp},
    {"dropout_regions", "tokens", kTp, "sequence_parallel"},
    {"dropout_regions", "width", kTp},
    {"fused_logprob", "rows", kDp},
    {"fused_logprob", "vocab_size", kTp},
    {"row_parallel_linear", "in_features", kTp},
    {"row_parallel_linear", "samples", kDp},
    {"row_parallel_linear", "tokens", kTp, "sequence_parallel"},
    {"vocab_parallel_cross_entropy", "samples", kDp},
    {"vocab_parallel_cross_entropy", "vocab_size", kTp, "padded_vocab", "0"},
    {"vocab_parallel_logprob", "rows", kDp},
    {"vocab_parallel_logprob", "vocab_size", kTp},
};

class WorkloadFit : private FittedSettings {
 public:
  WorkloadFit(CaseSettings& settings, const std::set<std::string>& fixed, const json& usual)
      : FittedSettings(settings, fixed),
        workload_(setting_of(settings, "workload")),
        usual_(usual),
        options_(settings["options"]) {
    if (options_.is_null()) options_ = json::object();
  }
  ~WorkloadFit() {
    if (options_.empty()) settings_.erase("options");
  }
  WorkloadFit(const WorkloadFit&) = delete;
  WorkloadFit& operator=(const WorkloadFit&) = delete;

  void exclude() {
    // Ranks refuse the second, which has no meaning beside this value of the first. The pair may
    // need the second: then the first gives way.
    constexpr const char *rows = "rows", *contiguous = "contiguous";
    if (workload_ == "context_logprob" && value(rows) == "indexed" &&
        options_.contains(contiguous) && options_[contiguous] != usual(contiguous)) {
      const bool keeps = is_fixed(path_of(contiguous)) && !is_fixed(path_of(rows));
      options_.erase(keeps ? rows : contiguous);
    }
    if (workload_ == "row_parallel_linear" && value("expert") == true && value("bias") == true) {
      options_[is_fixed(path_of("bias")) ? "expert" : "bias"] = false;
    }
  }

  void cut_sizes() {
    for (const CutSize& one : kCutSizes) {
      if (workload_ != one.workload) continue;
      if (one.with != nullptr && value(one.with) != json::parse(one.value)) continue;
      const json given = value(one.option);
      const int64_t ranks = size(one.axis, 1);
      if (!given.is_number_integer()) continue;
      const auto whole = given.get<int64_t>();
      if (whole <= 0 || whole % ranks == 0) continue;
      if (!is_fixed(path_of(one.option))) {
        options_[one.option] = multiple(whole, ranks);
        continue;
      }
      int64_t fewer = ranks;
      while (whole % fewer != 0) --fewer;
      set(one.axis, fewer);
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
    std::map<std::string, std::string> axes;
    for (const TrainingAxis& one : kTrainingAxes) axes[one.name] = path_of_size(one);
    const json axis = value("axis");
    const std::map<std::string, std::string> repeats = {
        {"ranks", axis.is_string() ? axis.get<std::string>() : "tp"},
        {"tp_ranks", "tp"},
        {"dp_ranks", "dp"}};
    for (const auto& [name, of] : repeats) {
      const auto path = axes.find(of);
      if (value(name.c_str()).is_null() || path == axes.end()) continue;
      const int64_t ranks = size(path->second, 1);
      if (value(name.c_str()) != ranks) options_[name] = ranks;
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
  std::string path_of(const char* option) const { return "options." + workload_ + "." + option; }
  json usual(const char* option) const { return usual_.value(option, json()); }
  json value(const char* option) const { return options_.value(option, usual(option)); }

  const std::string workload_;
  const json& usual_;
  json& options_;
};

}  // namespace

void fit_workload(CaseSettings& settings, const std::set<std::string>& fixed, const json& usual) {
  WorkloadFit fit(settings, fixed, usual);
  fit.exclude();
  fit.cut_sizes();
  fit.shapes();
  fit.repeat_mesh();
  fit.receivers();
}

}  // namespace shardproof::sim::explore
