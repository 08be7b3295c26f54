#include "sim/cli/help.h"

#include <algorithm>
#include <vector>

#include "sim/report/summary.h"

namespace shardproof::sim::cli {

namespace {

struct HelpGroup {
  const char* heading;
  std::vector<std::string> commands;
};

const HelpGroup kGroups[] = {
    {"Run scenarios", {"run", "rank", "list", "lint", "describe", "calls"}},
    {"Look at results", {"report", "compare-runs"}},
    {"Judge other programs", {"judge", "check", "golden", "logprobs", "score"}},
    {"Search for bugs", {"fuzz", "shrink", "mutants"}},
    {"Check machines", {"validate", "doctor"}},
};

constexpr const char* kExamples =
    "Examples:\n"
    "  shardproof run scenarios/smoke --backend emulated\n"
    "  shardproof judge recorded/tp2 --golden recorded/one   (docs/recorded_runs.md)\n"
    "  shardproof validate --ranks 4\n";

}  // namespace

std::string group_of(const std::string& command) {
  for (const HelpGroup& group : kGroups) {
    const auto& names = group.commands;
    if (std::find(names.begin(), names.end(), command) != names.end()) return group.heading;
  }
  return "Other";
}

std::string examples_and_statuses() {
  std::string text = std::string(kExamples) + "\nExit status:\n";
  for (const int status : {0, 1, 2, 3, 4, 5, 130}) {
    text += "  " + report::exit_status_text(status) + "\n";
  }
  return text;
}

}  // namespace shardproof::sim::cli
