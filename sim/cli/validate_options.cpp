// The options of `validate`.
#include <CLI/CLI.hpp>

#include "sim/case/names.h"
#include "sim/cli/command_options.h"

namespace shardproof::sim::cli {

// In place of run's.
constexpr const char* kValidateStatuses =
    "Exit status:\n"
    "  0: no findings\n"
    "  1: wrong values or digests\n"
    "  2: bad input\n"
    "  3: a rank died, hung or threw, with --slow a host or link is too slow, or a clock is off\n"
    "  5: a fault in shardproof itself\n"
    "  130: interrupted\n";

void add_validate_options(CLI::App& app, Arguments& arguments) {
  ValidateArguments& validate = arguments.validate;
  app.add_option("suite", validate.suite, "Suite file (docs/validate.md); default: all stages");
  app.add_option("--ranks", validate.ranks,
                 "Start so many ranks on this machine; without it a launcher has started them")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  app.add_option("--minutes", validate.minutes, "Go on with further rounds for so long")
      ->check(CLI::Range(0.01, 1e6));
  app.add_option("--slow", validate.slow,
                 "A host or link slower than so many medians is a finding (default: none is)")
      ->check(CLI::Range(1.01, 1e6));
  app.add_option("--backend", validate.backend,
                 "gloo, nccl, or with --ranks emulated (default: gloo; nccl with --device cuda)")
      ->check(CLI::IsMember(known_backends()));
  app.add_option("--device", validate.device, "cpu or cuda")->check(CLI::IsMember(known_devices()));
  app.add_option("--out", arguments.run.out,
                 "Folder for validation.json and junit.xml (default: runs/<time>)");
  app.add_flag("--no-cache", arguments.run.world.no_cache, "Compute every golden anew");
  app.footer(kValidateStatuses);
}

}  // namespace shardproof::sim::cli
