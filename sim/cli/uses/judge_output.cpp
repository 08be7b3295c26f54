#include "sim/cli/uses/judge_output.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string_view>

#include "base/elapsed.h"
#include "sim/cli/outputs.h"
#include "sim/cli/version.h"
#include "sim/report/run_folder.h"
#include "sim/report/summary.h"

namespace shardproof::sim::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kBetweenWords{2};

std::string command_of(const CheckArguments& arguments) {
  std::string text =
      fmt::format("shardproof judge {} --golden {}", arguments.case_path, arguments.golden);
  if (arguments.reference) text += " --reference";
  if (arguments.no_unresolved) text += " --no-unresolved";
  return text;
}

// The axes of the run, where the names of all are those of a case's; else one axis of all ranks.
void name_axes(const Mesh& mesh, ParallelSpec& parallel) {
  ParallelSpec named;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.name == "dp") named.dp = axis.size;
    if (axis.name == "tp") named.tp = axis.size;
    if (axis.name == "cp") named.cp = axis.size;
  }
  const Mesh of_case = named.mesh();
  if (of_case.world_size() != mesh.world_size()) return;
  for (const MeshAxis& axis : mesh.axes()) {
    for (int64_t rank = 0; axis.size > 1 && rank < mesh.world_size(); ++rank) {
      if (of_case.coordinate(axis.name, rank) != mesh.coordinate(axis.name, rank)) return;
    }
  }
  parallel = named;
}

judge::CaseResult result_of(const recorded::RecordedJudgement& judgement) {
  judge::CaseResult result = judgement.result;
  result.spec.file = (fs::path(result.spec.name) / "run.json").string();
  result.spec.line = 1;
  name_axes(judgement.mesh, result.spec.parallel);
  return result;
}

}  // namespace

WaitNote::WaitNote(std::function<std::string(double)> line, std::chrono::seconds first,
                   std::chrono::seconds then)
    : thread_([this, line = std::move(line), first, then] {
        const auto start = std::chrono::steady_clock::now();
        const Lock lock(mutex_);
        auto next = start + first;
        while (!is_over_) {
          if (ended_.wait_until(mutex_, next)) continue;
          // Not by std::cerr, which first writes out std::cout and so may wait for its reader.
          std::fputs(("shardproof: " + line(seconds_since(start)) + "\n").c_str(), stderr);
          next += then;
        }
      }) {}

WaitNote::WaitNote(const std::string& what)
    : WaitNote([what](double seconds) { return fmt::format("{}, {:.0f} s so far", what, seconds); },
               std::chrono::seconds(1), std::chrono::seconds(10)) {}

WaitNote::~WaitNote() {
  {
    const Lock lock(mutex_);
    is_over_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

std::string make_judge_folder(const CheckArguments& arguments) {
  if (arguments.out.empty()) return "";
  const report::JobSummary can_be_written;
  return results_folder(arguments.out, {arguments.case_path, arguments.golden}, arguments.force);
}

void write_judge_folder(const std::string& folder, const CheckArguments& arguments,
                        const recorded::RecordedJudgement& judgement, double seconds,
                        int exit_status) {
  if (folder.empty()) return;
  judge::CaseResult result = result_of(judgement);
  result.seconds = seconds;
  result.replay = command_of(arguments);
  report::RunInfo info;
  info.command = result.replay;
  info.directory = fs::current_path().string();
  info.version = version_text();
  info.seconds = seconds;
  info.exit_status = exit_status;
  info.no_unresolved = arguments.no_unresolved;
  info.recorded = recorded::describe_judgement(judgement, false);
  report::write_run_files(folder, {result}, info);
  report::JobSummary().add(report::job_section({.results = {result},
                                                .skipped = {},
                                                .not_run = {},
                                                .seconds = seconds,
                                                .exit_status = exit_status,
                                                .run_folder = folder}));
}

void annotate(const recorded::RecordedJudgement& judgement) {
  const char* github = std::getenv("GITHUB_ACTIONS");
  if (!github || std::string_view(github) != "true" || judgement.result.as_expected) return;
  std::cout << report::annotation(result_of(judgement)) << '\n';
}

Ticker::Ticker()
    : note_([this](double seconds) { return line(seconds); }, kBetweenWords, kBetweenWords) {}

std::string Ticker::line(double seconds) const {
  const int64_t all = all_;
  return fmt::format("{:.0f} s: {}{}", seconds, stage_.load(),
                     all > 0 ? fmt::format(", {} of {} tensors", done_.load(), all) : "");
}

}  // namespace shardproof::sim::cli
