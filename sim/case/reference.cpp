#include "sim/case/reference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/count_of.h"

namespace shardproof::sim {

ParallelSpec reference_layout(const ReferenceSpec& reference) {
  ParallelSpec layout;
  for (const auto& [name, size, key, share] : kTrainingAxes) {
    layout.*size = std::max<int64_t>(reference.mesh.*size, 1);
  }
  for (const ExpertPart& part : kExpertParts) layout.*part.size = reference.mesh.*part.size;
  layout.sequence_parallel = reference.sequence_parallel;
  layout.data_parallel = reference.data_parallel;
  return layout;
}

std::string reference_name(const ReferenceSpec& reference) {
  const bool sharded = reference.data_parallel == DataParallelKind::kFsdp;
  std::vector<std::string> parts;
  for (const auto& [name, size, key, share] : kTrainingAxes) {
    const int64_t ranks = reference.mesh.*size;
    const char* shown = sharded && size == &AxisSizes::dp ? "fsdp" : name;
    if (ranks > 1) parts.push_back(fmt::format("{}{}", shown, ranks));
  }
  for (const ExpertPart& part : kExpertParts) {
    const int64_t ranks = reference.mesh.*part.size;
    if (ranks > 1) parts.push_back(fmt::format("{}{}", part.name, ranks));
  }
  if (parts.empty()) return "one rank";
  return fmt::format("{}{}", fmt::join(parts, " "),
                     reference.sequence_parallel ? " with sequence_parallel" : "");
}

std::string against_text(const CaseSpec& spec) {
  if (!spec.reference.is_set()) return "";
  return fmt::format("against {}, not against one device", reference_name(spec.reference));
}

std::string sampled_text(const CaseSpec& spec) {
  if (spec.sample_rows == 0) return "";
  return fmt::format("on {} of each tensor", count_of(spec.sample_rows, "row"));
}

std::string match_limits(const CaseSpec& spec) {
  std::string note = against_text(spec), sampled = sampled_text(spec);
  if (!note.empty()) note += ": an error that both layouts make is not seen";
  if (sampled.empty()) return note;
  return fmt::format("{}{}{}: an error outside of them is not seen", note, note.empty() ? "" : "\n",
                     sampled);
}

std::string folder_of_run(const std::string& folder, int64_t run) {
  return fmt::format("{}/run {}", folder, run);
}

int64_t run_of_folder(const std::string& folder) {
  const size_t space = folder.rfind(' ');
  return space == std::string::npos ? kExactRun : std::stoll(folder.substr(space + 1));
}

CaseSpec reference_case(const CaseSpec& spec, const std::string& folder, int64_t run) {
  CaseSpec made = spec;
  made.name = fmt::format("{} (reference {})", spec.name, reference_name(spec.reference));
  if (run == kExactRun) {
    made.precision = Precision::kFloat64;
  } else {
    made.name += fmt::format(", run {}", run);
  }
  made.parallel = reference_layout(spec.reference);
  made.reference = {.folder = folder_of_run(folder, run)};
  made.batching = {};  // whole rows, so that every token that the case may hold is there
  made.judged = false;
  made.faults.clear();
  made.expect = {};
  made.dump_file.clear();
  made.save_folder.clear();
  made.world = WorldSpec();
  made.world.backend = spec.world.backend;
  made.world.device = spec.world.device;
  made.world.hang_s = spec.world.hang_s;
  made.world.deadline_s = spec.world.deadline_s;
  return made;
}

std::string reference_key(const CaseSpec& spec) {
  CaseSpec made = reference_case(spec, "");  // golden_key has the precision
  made.name.clear();
  made.tags.clear();
  made.file.clear();
  made.line = 0;
  return to_json(made).dump();
}

}  // namespace shardproof::sim
