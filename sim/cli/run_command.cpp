// run: runs the selected cases on worlds that this program starts.
#include <fmt/format.h>

#include "base/error.h"
#include "sim/case/names.h"
#include "sim/cli/check_case.h"
#include "sim/cli/commands.h"
#include "sim/cli/run_cases.h"

namespace shardproof::sim {

namespace {

// One file holds the tensors of one case.
void set_dump(const std::string& file, Selection& selection) {
  if (selection.cases.size() != 1) {
    throw Error(
        {.kind = ErrorKind::kBadInput,
         .what = fmt::format("--dump writes one case, {} were selected", selection.cases.size()),
         .fix = "choose one with --only, and its world with --backend"});
  }
  CaseSpec& spec = selection.cases.front();
  if (!is_model_workload(spec.workload)) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = fmt::format("workload {} has no model to dump", spec.workload),
                 .fix = "dump a case that trains or scores one"});
  }
  spec.dump_file = writable_path("--dump", file);
}

}  // namespace

int run_command(const RunArguments& arguments, const std::string& command_line, WorldPool& pool) {
  Selection selection = select_cases(arguments);
  if (!arguments.dump.empty()) set_dump(arguments.dump, selection);
  return run_cases(arguments, command_line, std::move(selection), pool);
}

}  // namespace shardproof::sim
