// A case as JSON, in which it travels between processes, and the key of its golden.
#include "sim/case/case_spec.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/weight_files.h"
#include "sim/case/policy_stages.h"
#include "sim/case/row.h"

namespace shardproof::sim {

using nlohmann::json;

namespace {

// "path:bytes:inode:times" of a file; "path:absent" when it does not exist. A copy may keep the
// time of the last write, but nobody sets that of the last change.
std::string file_identity(const std::filesystem::path& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) return path.string() + ":absent";
  const auto time = [](const timespec& at) { return fmt::format("{}.{}", at.tv_sec, at.tv_nsec); };
  return fmt::format("{}:{}:{}:{}:{}", path.string(), facts.st_size, facts.st_ino,
                     time(facts.st_mtim), time(facts.st_ctim));
}

// Identities of the files that hold the weights of a folder; none where no model is there, which
// whoever reads it says.
std::vector<std::string> weights_identity(const std::string& folder) {
  std::vector<std::string> identities;
  if (folder.empty()) return identities;
  try {
    for (const std::string& path : weight_files(folder)) identities.push_back(file_identity(path));
  } catch (const Error&) {
  }
  return identities;
}

}  // namespace

SideLossOptions side_losses_of(const CaseSpec& spec) {
  SideLossOptions losses = spec.side_losses;
  if (losses.balance >= 0) return losses;
  losses.balance = 0;
  losses.form = BalancingForm::kPerLayer;
  const json& config = spec.model;
  const bool has_labels = spec.is(ModelWorkload::kTrain) && spec.loss.kind == LossKind::kNll;
  if (!has_labels || !config.is_object() || !config.contains("output_router_logits") ||
      config["output_router_logits"] != true) {
    return losses;
  }
  constexpr double kDefault = 0.001;  // of mixtral and qwen3_moe in transformers
  const json given = config.value("router_aux_loss_coef", json(kDefault));
  if (given.is_number()) losses.balance = given.get<double>();
  losses.form = BalancingForm::kPooled;
  return losses;
}

json to_json(const CaseSpec& spec) { return value_of(spec, Extent::kAll); }

CaseSpec case_spec_from_json(const json& in) {
  CaseSpec spec;
  read_value(spec, in);
  return spec;
}

bool has_stages(const CaseSpec& spec) {
  return spec.parallel.pp > 1 ||
         std::any_of(spec.stages.begin(), spec.stages.end(),
                     [](const StageSpec& stage) { return stage.parallel.pp > 1; });
}

bool has_initial(const CaseSpec& spec) { return has_stages(spec) && spec.stages.empty(); }

std::string golden_key(const CaseSpec& spec) {
  json key = value_of(spec, Extent::kGolden);
  key["weights"] = weights_identity(spec.weights_folder);
  if (draws_numbers(spec)) {  // of each rank of a stage and of tp
    key["draws_at"] = {{spec.parallel.pp, spec.parallel.tp}};
    for (const StageSpec& stage : spec.stages) {
      key["draws_at"].push_back({stage.parallel.pp, stage.parallel.tp});
    }
  }
  // The groups of microbatches are those of the samples that a rank gets at once.
  const SideLossOptions losses = side_losses_of(spec);
  const bool by_microbatch = losses.any() && losses.groups != LossGroups::kSequence;
  const bool by_rank = spec.capacity.factor != 0 && spec.capacity.scope == CapacityScope::kRank;
  if (by_microbatch || by_rank) {
    key["dealt"] = {spec.parallel.ranks(Share::kSamples), spec.micro_batch_size};
  }
  if (by_rank) {
    const ParallelSpec& cuts = spec.parallel;
    key["positions_on"] = {cuts.cp, name_of(cuts.context_layout), cuts.ulysses,
                           cuts.sequence_parallel ? cuts.tp : 1};
  }
  if (spec.init == WeightInit::kOwnStream) key["init_at_tp"] = spec.parallel.tp;
  if (has_stages(spec)) key["boundaries"] = true;  // which the golden then has
  if (!spec.data.file.empty()) key["data"]["file"] = file_identity(spec.data.file);
  return key.dump();
}

}  // namespace shardproof::sim
