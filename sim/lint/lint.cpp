#include "sim/lint/lint.h"

#include <fmt/format.h>

#include <iostream>

#include "base/count_of.h"
#include "sim/lint/case_reader.h"
#include "sim/run/case_check.h"

namespace shardproof::sim::lint {

int lint(const std::vector<std::string>& paths, const std::vector<KnownWorkload>& workloads) {
  const std::vector<std::string> files = find_scenario_files(paths);
  // Errors do not depend on the world.
  const auto cases = read_cases(
      files, {.backends = {Backend::kEmulated}, .replaces_backend = true, .workloads = workloads});
  std::cout << run::unread_keys_notes(cases);
  std::cout << fmt::format("{}, {}: no errors\n", count_of(std::ssize(files), "file"),
                           count_of(std::ssize(cases), "case"));
  return 0;
}

}  // namespace shardproof::sim::lint
