#include "sim/cli/check_case.h"

#include <fmt/format.h>

#include "base/count_of.h"
#include "base/error.h"
#include "base/read_text.h"
#include "sim/case/option.h"
#include "sim/case/scenario/case_folder.h"
#include "sim/case/scenario/schema.h"
#include "sim/cli/outputs.h"

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
  if (arguments.packed) spec.batching.kind = BatchingKind::kPacked;
  if (!arguments.dynamic_tokens) return;
  spec.batching.kind = BatchingKind::kDynamic;
  spec.batching.token_budget = *arguments.dynamic_tokens;
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

}  // namespace shardproof::sim::cli
