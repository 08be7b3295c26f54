// A case as JSON, in which it travels between processes, and the key of its golden.
#include "sim/case/case_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "sim/case/policy_stages.h"
#include "sim/case/row.h"

namespace shardproof::sim {

using nlohmann::json;

namespace {

// "path:bytes:modification time in ns" of a file; "path:absent" when it does not exist.
std::string file_identity(const std::filesystem::path& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) return path.string() + ":absent";
  const auto modified = std::filesystem::last_write_time(path, error).time_since_epoch();
  const auto modified_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(modified).count();
  return fmt::format("{}:{}:{}", path.string(), bytes, modified_ns);
}

// Identities of the weight files of a folder, in the order of their names.
std::vector<std::string> weights_identity(const std::string& folder) {
  std::vector<std::string> identities;
  if (folder.empty()) return identities;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model")) identities.push_back(file_identity(entry.path()));
  }
  std::sort(identities.begin(), identities.end());
  return identities;
}

}  // namespace

json to_json(const CaseSpec& spec) { return value_of(spec, Extent::kAll); }

CaseSpec case_spec_from_json(const json& in) {
  CaseSpec spec;
  read_value(spec, in);
  return spec;
}

std::string golden_key(const CaseSpec& spec) {
  json key = value_of(spec, Extent::kGolden);
  key["weights"] = weights_identity(spec.weights_folder);
  if (draws_numbers(spec)) {  // of each tp rank
    for (const StageSpec& stage : spec.stages) key["draws_at_tp"].push_back(stage.parallel.tp);
  }
  if (spec.init == WeightInit::kOwnStream) key["init_at_tp"] = spec.parallel.tp;
  if (!spec.data.file.empty()) key["data"]["file"] = file_identity(spec.data.file);
  return key.dump();
}

}  // namespace shardproof::sim
