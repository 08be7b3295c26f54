#include "sim/run/case_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "base/error.h"
#include "base/read_text.h"
#include "base/utf8.h"
#include "model/config.h"
#include "model/config_keys.h"
#include "parallel/tp/plan.h"
#include "sim/case/names.h"
#include "sim/case/scenario/problems.h"

namespace shardproof::sim::run {

namespace {

void check_plan(const CaseSpec& spec, const ModelConfig& config) {
  try {
    resolve_plan(config, {.sequence_parallel = spec.parallel.sequence_parallel,
                          .custom_plan = spec.parallel.custom_plan});
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kRefused) throw;  // the ranks will refuse it
  }
}

std::string config_file(const CaseSpec& spec) { return spec.weights_folder + "/config.json"; }

[[noreturn]] void throw_placed(const std::string& file, const ConfigError& error) {
  const JsonPlaces places(file, read_text_file(file, kMaxJsonBytes));
  std::vector<PlacedError> placed;
  for (const ConfigProblem& problem : error.problems) {
    std::vector<std::string> keys;
    nlohmann::json::json_pointer at(problem.keys.empty() ? "" : problem.keys.front());
    for (; !at.empty(); at.pop_back()) keys.insert(keys.begin(), at.back());
    placed.push_back(places.error(keys, problem.fact(), problem.fix(), problem.kind()));
  }
  throw_all(std::move(placed));
  throw error;  // there is always a problem
}

ModelConfig config_of(const CaseSpec& spec) {
  try {
    return ModelConfig::from_json(spec.model);
  } catch (const ConfigError& error) {
    if (spec.weights_folder.empty()) throw;
    throw_placed(config_file(spec), error);
  }
}

// A scenario's model.config has keys for nothing else than the model.
void check_further_keys(const CaseSpec& spec) {
  if (!spec.weights_folder.empty()) return;
  const std::vector<std::string> keys = unread_config_keys(spec.model);
  if (keys.empty()) return;
  throw_bad_input(fmt::format("nothing reads {} of model.config in family {}",
                              fmt::join(keys, ", "), spec.model.value("model_type", "")),
                  "remove it");
}

constexpr size_t kMaxNote = 300;  // bytes of the names that come from the file

}  // namespace

std::string unread_keys_note(const CaseSpec& spec) {
  if (spec.weights_folder.empty()) return "";
  const std::vector<std::string> keys = unread_config_keys(spec.model);
  if (keys.empty()) return "";
  return fmt::format("note: {}: nothing reads {}\n", config_file(spec),
                     printable(fmt::format("{}", fmt::join(keys, ", ")), kMaxNote));
}

std::string unread_keys_notes(const std::vector<CaseSpec>& cases) {
  std::set<std::string> notes;
  std::string text;
  for (const CaseSpec& spec : cases) {
    const std::string note = unread_keys_note(spec);
    if (notes.insert(note).second) text += note;
  }
  return text;
}

void check_case(const CaseSpec& spec) {
  spec.parallel.mesh();
  // Its options were checked when the scenario was read.
  if (!is_model_workload(spec.workload)) return;
  const ModelConfig config = config_of(spec);
  check_further_keys(spec);
  check_plan(spec, config);
  for (const StageSpec& stage : spec.stages) stage.parallel.mesh();
}

}  // namespace shardproof::sim::run
