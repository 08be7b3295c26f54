// list: prints one line for each case that `run` would run.
#include <fmt/format.h>

#include <iostream>

#include "base/count_of.h"
#include "sim/case/scenario/schema.h"
#include "sim/cli/commands.h"
#include "sim/cli/selection.h"
#include "sim/report/summary.h"

namespace shardproof::sim::cli {

namespace {

void print_case(const CaseSpec& spec) {
  std::string tags;
  for (const std::string& tag : spec.tags) tags += (tags.empty() ? "" : " ") + tag;
  std::cout << fmt::format("{:<9} {:>9}  {}{}{}\n", spec.world.backend,
                           count_of(spec.parallel.world_size(), "rank"), spec.name,
                           tags.empty() ? "" : "   " + tags,
                           spec.skip.empty() ? "" : "   skipped: " + spec.skip);
}

}  // namespace

int list_command(const RunArguments& arguments) {
  if (arguments.keys) {
    std::cout << fmt::format("{}", case_schema().describe_keys());
    return 0;
  }
  const Selection selection = select_cases(as_they_ran(arguments));
  for (const CaseSpec& spec : selection.cases) print_case(spec);
  for (const CaseSpec& spec : selection.skipped) print_case(spec);
  std::cout << fmt::format("{}, {} skipped\n", count_of(std::ssize(selection.cases), "case"),
                           selection.skipped.size());
  if (selection.slow > 0) std::cout << "left out " << report::slow_text(selection.slow) << '\n';
  if (!selection.empty_share.empty()) std::cout << selection.empty_share << '\n';
  const bool none = selection.cases.empty() && selection.skipped.empty();
  return none && selection.empty_share.empty() ? 2 : 0;
}

int schema_command(const RunArguments& arguments) {
  const nlohmann::json printed =
      arguments.known ? workload_table(arguments.workloads) : case_schema().json_schema();
  std::cout << printed.dump(2) << '\n';
  return 0;
}

}  // namespace shardproof::sim::cli
