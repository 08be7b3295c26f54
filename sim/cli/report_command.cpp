// report: runs the Python script that draws a run folder.
#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <vector>

#include "base/error.h"
#include "base/read_text.h"
#include "sim/cli/light_commands.h"
#include "sim/report/earlier_run.h"
#include "sim/report/results_json.h"

namespace shardproof::sim::cli {

namespace fs = std::filesystem;

namespace {

// Of a run that was ended: what the cases that had finished say.
void write_results_of_ended(const std::string& folder) {
  report::EarlierRun earlier = report::read_earlier_run(folder);
  if (report::is_being_written(folder)) {
    throw_bad_input(fmt::format("{}: the run is still going on, {} of {} cases have finished",
                                folder, earlier.finished.size(), earlier.selected.size()),
                    "wait until it has ended");
  }
  earlier.info.not_run = earlier.missing("the run ended before this case had");
  earlier.info.interrupted = true;
  earlier.info.exit_status = -1;
  report::write_results(folder, earlier.results(), earlier.info);
  std::cout << fmt::format(
      "{} of {} cases had run when the run was ended; shardproof run --resume {} goes on with it\n",
      earlier.finished.size(), earlier.selected.size(), folder);
  std::cout.flush();  // another program takes over
}

void check_folder(const std::string& folder) {
  if (report::holds_journal(folder) && !report::has_final_results(folder)) {
    write_results_of_ended(folder);
  } else if (!fs::exists(folder + "/results.json") && !fs::exists(folder + "/validation.json")) {
    throw_bad_input(fmt::format("{} holds no results.json", folder),
                    "name the folder of a run or of `validate`");
  }
  for (const char* name : {"/results.json", "/timeline.json", "/validation.json"}) {
    if (!fs::exists(folder + name)) continue;
    require_plain_file(folder + name);
    check_json_file(folder + name, report::kMaxResultsBytes);
  }
}

}  // namespace

int report_command(const ReportArguments& arguments) {
  std::vector<std::string> folders = arguments.folders;
  if (folders.empty()) folders.emplace_back("runs/latest");
  for (const std::string& folder : folders) check_folder(folder);
  const std::string script = script_of_repository("reports/report.py");
  std::vector<std::string> words = {python_beside(script), script};
  if (arguments.everything) words.emplace_back("--all");
  if (!arguments.out.empty()) words.insert(words.end(), {"--out", arguments.out});
  words.insert(words.end(), folders.begin(), folders.end());
  exec_program(std::move(words), "`shardproof doctor` says what is missing");
}

}  // namespace shardproof::sim::cli
