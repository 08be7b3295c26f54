// Reads back what a run left.
#include "sim/report/earlier_run.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/read_text.h"
#include "sim/report/escape.h"
#include "sim/report/journal.h"
#include "sim/report/results_json.h"

namespace shardproof::sim::report {
namespace {

constexpr const char* kJournalFormat = "shardproof-journal/1";

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw_bad_input(fmt::format("{}: {}", path, what),
                  "name the folder of an earlier run, for example runs/latest");
}

nlohmann::json case_of_head(const CaseSpec& spec) {
  return {{"name", valid_utf8(spec.name)},
          {"file", valid_utf8(spec.file)},
          {"backend", spec.world.backend}};
}

CaseSpec spec_of(const nlohmann::json& entry) {
  CaseSpec spec;
  spec.name = entry.at("name");
  spec.file = entry.at("file");
  spec.world.backend = entry.at("backend").get<Backend>();
  return spec;
}

// With the file of a run that was started in `directory`.
CaseSpec from_here(CaseSpec spec, const std::string& directory) {
  std::error_code error;
  const std::filesystem::path file = spec.file;
  if (file.is_relative() && !std::filesystem::equivalent(directory, ".", error)) {
    spec.file = (directory / file).string();
  }
  return spec;
}

// What the summary, the exit status and the totals read of a result.
judge::CaseResult result_of(const nlohmann::json& entry) {
  judge::CaseResult result;
  result.spec = spec_of(entry);
  result.spec.precision = entry.at("precision").get<Precision>();
  result.spec.judged = entry.value("judged", true);
  result.verdict = entry.at("verdict").get<Verdict>();
  result.kind = entry.at("kind").get<ResultKind>();
  result.seconds = entry.at("seconds").is_number() ? entry.at("seconds").get<double>() : 0;
  result.message = entry.at("message");
  result.as_expected = entry.at("as_expected");
  result.may_be_refused = entry.value("may_be_refused", false);
  result.unexpected = entry.at("unexpected");
  result.replay = entry.at("replay");
  const nlohmann::json grounds = entry.value("rests_on", nlohmann::json::object());
  result.account.grounds.trains = grounds.value("trains", false);
  result.account.grounds.gradients = grounds.value("gradients", int64_t{0});
  for (const nlohmann::json& one : entry.at("unresolved")) {
    result.account.unresolved.push_back({.tensor = one.at("tensor"), .reason = one.at("reason")});
  }
  if (const nlohmann::json& divergence = entry.at("divergence"); !divergence.is_null()) {
    result.divergence.emplace();
    result.divergence->tensor = divergence.at("tensor");
    result.divergence->pattern = divergence.at("pattern");
    result.divergence->likely = divergence.at("likely");
  }
  return result;
}

void read_head(const nlohmann::json& head, EarlierRun& run) {
  run.info.command = head.at("command");
  run.info.arguments = head.at("arguments");
  run.info.directory = head.at("directory");
  run.info.version = head.at("version");
  run.info.program = head.at("program");
  run.info.selection = head.value("selection", "");
  run.info.started = head.at("started");
  for (const nlohmann::json& entry : head.at("skipped")) {
    run.info.skipped.push_back(spec_of(entry));
    run.info.skipped.back().skip = entry.at("reason");
  }
  for (const nlohmann::json& entry : head.at("selected")) {
    run.selected.push_back(spec_of(entry));
    run.digests.push_back(entry.at("digest"));
  }
}

}  // namespace

std::string case_digest(const CaseSpec& spec) {
  return crc32_text(to_json(spec).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
                    golden_key(spec));
}

std::string journal_head(const RunInfo& info, const std::vector<CaseSpec>& selected) {
  nlohmann::json head = {{"format", kJournalFormat},
                         {"command", valid_utf8(info.command)},
                         {"arguments", nlohmann::json::array()},
                         {"directory", valid_utf8(info.directory)},
                         {"version", info.version},
                         {"program", info.program},
                         {"selection", info.selection},
                         {"started", info.started.empty() ? utc_now() : info.started},
                         {"skipped", nlohmann::json::array()},
                         {"selected", nlohmann::json::array()}};
  for (const std::string& word : info.arguments) head["arguments"].push_back(valid_utf8(word));
  for (const CaseSpec& spec : info.skipped) {
    nlohmann::json entry = case_of_head(spec);
    entry["reason"] = valid_utf8(spec.skip);
    head["skipped"].push_back(std::move(entry));
  }
  for (const CaseSpec& spec : selected) {
    nlohmann::json entry = case_of_head(spec);
    entry["digest"] = case_digest(spec);
    head["selected"].push_back(std::move(entry));
  }
  return head.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool holds_journal(const std::string& folder) {
  return std::filesystem::is_regular_file(journal_path(folder));
}

bool has_final_results(const std::string& folder) {
  const std::string path = folder + "/results.json";
  require_plain_file(path);
  std::ifstream stream(path, std::ios::binary);
  std::string head(size_t{1} << 16, '\0');
  stream.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(stream.gcount()));
  return !head.empty() && head.find("\"exit_status\":null") == head.npos;
}

EarlierRun read_earlier_run(const std::string& folder) {
  JournalReader journal(folder);
  if (!journal.is_there()) {
    refuse(folder, std::filesystem::exists(folder + "/results.json")
                       ? "nothing is left to run there"
                       : "there is no run that was ended early");
  }
  EarlierRun run;
  try {
    const nlohmann::json head = journal.json("head", 0);
    if (head.at("format") != kJournalFormat) {
      refuse(journal_path(folder), fmt::format("is not of the format {}", kJournalFormat));
    }
    read_head(head, run);
    for (const size_t number : journal.finished()) {
      if (number >= run.selected.size()) continue;
      run.finished[number] = result_of(journal.json("case", number));
    }
  } catch (const nlohmann::json::exception& error) {
    refuse(journal_path(folder),
           fmt::format("a record in it is not whole ({})", json_problem(error)));
  }
  return run;
}

std::vector<judge::CaseResult> EarlierRun::results() const {
  std::vector<judge::CaseResult> all;
  for (const auto& [place, result] : finished) all.push_back(result);
  return all;
}

std::vector<CaseSpec> EarlierRun::missing(const std::string& reason) const {
  std::vector<CaseSpec> cases;
  for (size_t place = 0; place < selected.size(); ++place) {
    if (finished.count(place) != 0) continue;
    cases.push_back(selected[place]);
    cases.back().skip = reason;
  }
  return cases;
}

UnexpectedCases unexpected_cases(const std::string& folder, bool no_unresolved) {
  const std::string path = folder + "/results.json";
  UnexpectedCases found;
  if (holds_journal(folder) && !has_final_results(folder)) {
    const EarlierRun run = read_earlier_run(folder);
    for (const judge::CaseResult& result : run.results()) {
      const bool is_open = no_unresolved && !result.account.unresolved.empty();
      if (result.as_expected && !is_open) continue;
      found.cases.push_back(from_here(result.spec, run.info.directory));
    }
    found.arguments = run.info.arguments;
    found.not_run = run.selected.size() - run.finished.size();
    return found;
  }
  const nlohmann::json results = read_json_object(path, kMaxResultsBytes);
  if (results.value("format", nlohmann::json()) != kResultsFormat) {
    refuse(path, fmt::format("is not of the format {}", kResultsFormat));
  }
  try {
    const nlohmann::json& run = results.at("run");
    for (const auto& entry : results.at("cases")) {
      const bool is_open = no_unresolved && !entry.at("unresolved").empty();
      if (entry.at("as_expected").get<bool>() && !is_open) continue;
      found.cases.push_back(from_here(spec_of(entry), run.value("directory", "")));
    }
    found.arguments = run.value("arguments", found.arguments);
    found.not_run = results.at("not_run").size();
  } catch (const nlohmann::json::exception& error) {
    refuse(path, fmt::format("a case in it is not whole ({})", json_problem(error)));
  }
  return found;
}

}  // namespace shardproof::sim::report
