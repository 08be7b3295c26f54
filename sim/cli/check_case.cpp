#include "sim/cli/check_case.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "base/count_of.h"
#include "base/error.h"
#include "base/read_text.h"
#include "sim/case/option.h"
#include "sim/case/scenario/case_folder.h"
#include "sim/case/scenario/schema.h"
#include "sim/cli/outputs.h"
#include "sim/judge/verdict/replay.h"

namespace shardproof::sim::cli {
namespace {

void set_mesh(const CheckArguments& arguments, ParallelSpec& parallel) {
  const Mesh given = Mesh::parse(arguments.mesh);
  for (const auto& axis : kTrainingAxes) parallel.*axis.size = given.size(axis.name);
  for (const auto& part : kExpertParts) parallel.*part.size = given.size(part.name);
  const int64_t ulysses = arguments.ulysses.value_or(parallel.ulysses);
  if (parallel.ulysses != 1 && parallel.ulysses != ulysses) {
    throw_bad_input(
        fmt::format("--mesh says ulysses={}, --ulysses says {}", parallel.ulysses, ulysses),
        "give one of them");
  }
  parallel.ulysses = ulysses;
  const Mesh mesh = parallel.mesh();
  if (arguments.world_size && *arguments.world_size != mesh.world_size()) {
    throw_bad_input(fmt::format("--world-size is {}, but the mesh {} has {}", *arguments.world_size,
                                mesh.describe(), count_of(mesh.world_size(), "rank")),
                    "change --mesh or --world-size");
  }
}

// Sets how samples become microbatches: by number, in packed rows, or within a token budget.
void set_batching(const CheckArguments& arguments, CaseSpec& spec) {
  if (arguments.packed && arguments.dynamic_tokens) {
    throw_bad_input("--packed and --dynamic-batching are both given", "give one of them");
  }
  if ((arguments.packed || arguments.dynamic_tokens) && spec.micro_batch_size > 0) {
    throw_bad_input("--microbatch is given beside a token budget's batching",
                    "leave it out, or --packed and --dynamic-batching");
  }
  if (arguments.packed) spec.batching.kind = BatchingKind::kPacked;
  if (!arguments.dynamic_tokens) return;
  spec.batching.kind = BatchingKind::kDynamic;
  spec.batching.token_budget = *arguments.dynamic_tokens;
}

namespace fs = std::filesystem;

// A program with its own workloads replays its cases itself: `shardproof` does not know them.
std::string by_this_program(const std::string& command) {
  constexpr std::string_view kName = "shardproof";
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error || program.filename().string().starts_with(kName)) return command;
  const fs::path near = fs::proximate(program, error);
  const bool is_below = !error && !near.empty() && *near.begin() != "..";
  const std::string name = is_below && near.has_parent_path() ? near.string() : program.string();
  return judge::shell_word(name) + command.substr(kName.size());
}

}  // namespace

void set_flags(const CheckArguments& arguments, CaseSpec& spec) {
  for (const CaseOption& option : case_options()) {
    const std::string text = arguments.flag(option.flag_name());
    if (!text.empty()) option.set(spec, Schema::checked_flag(option, text));
  }
}

CaseSpec make_check_case(const CheckArguments& arguments) {
  CaseSpec spec = read_case_folder(arguments.case_path);
  set_mesh(arguments, spec.parallel);
  set_flags(arguments, spec);
  if (!arguments.flag("--seed").empty()) {  // it draws roundings and the rows of --sample-rows
    spec.idle_keys.push_back(fmt::format(
        "seed is {}, but weights and batch are the folder's: it has no effect on them", spec.seed));
  }
  if (!arguments.custom_plan.empty()) {
    spec.parallel.custom_plan = read_json_object(arguments.custom_plan);
  }
  spec.data.uneven = true;  // only scenarios refuse uneven shares
  set_batching(arguments, spec);
  auto inputs = inputs_of(spec);
  for (const std::string& file : {spec.expected_file, arguments.custom_plan}) {
    if (!file.empty()) inputs.emplace_back(file);
  }
  spec.dump_file = output_file("--dump", arguments.dump, inputs, arguments.force);
  spec.save_folder = output_folder("--save", arguments.save, inputs, arguments.force);
  require_apart("--dump", spec.dump_file, "--save", spec.save_folder);
  require_apart("--dump", spec.dump_file, "--out", arguments.out);
  require_apart("--save", spec.save_folder, "--out", arguments.out);
  return spec;
}

std::string with_replay_flags(const std::string& command, const RunArguments& arguments,
                              int64_t schedules) {
  if (command.empty()) return "";
  std::string flags;
  if (arguments.seed) flags += fmt::format(" --seed {}", *arguments.seed);
  if (arguments.sample_rows > 0) flags += fmt::format(" --sample-rows {}", arguments.sample_rows);
  if (arguments.schedules > 0 && schedules > 0) flags += fmt::format(" --schedules {}", schedules);
  if (arguments.schedules == runs::kAllSchedules) flags += " --schedules all";
  if (arguments.relations) flags += " --relations";
  return by_this_program(command) + flags;
}

std::string with_replay_flags(const std::string& command, const CheckArguments& arguments) {
  if (command.empty()) return "";
  std::string flags;
  for (const CaseOption& option : case_options()) {
    const std::string text = arguments.flag(option.flag_name());
    if (option.flag.replay != Flag::Replay::kWhenGiven || text.empty()) continue;
    flags += " " + option.flag_name() + " " + text;
  }
  const std::string& plan = arguments.custom_plan;
  return by_this_program(command) + flags +
         (plan.empty() ? "" : " --custom-plan " + judge::shell_word(plan));
}

}  // namespace shardproof::sim::cli
