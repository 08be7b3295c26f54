#include "sim/uses/validate/outputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "base/count_of.h"
#include "sim/report/escape.h"
#include "sim/report/summary.h"

namespace shardproof::sim::validate {
namespace {

std::string where_of(const ValidationFinding& finding) {
  if (!finding.link.empty()) return "link " + finding.link;
  if (finding.hosts.empty()) return "no host";
  std::string text;
  for (const std::string& name : finding.hosts)
    text += (text.empty() ? "" : ", ") + Hosts::call(name);
  return text;
}

std::string finding_line(const ValidationFinding& finding) {
  return fmt::format("  FINDING {} ({}): {}\n", finding.kind, where_of(finding), finding.message);
}

// "validate: 4 ranks on 2 hosts, no findings in 0.8 s; exit status 0"
std::string counts_text(const ValidationResult& result) {
  const int64_t count = std::ssize(result.findings);
  const std::string what = result.interrupted ? "interrupted"
                           : count == 0       ? "no findings"
                                              : count_of(count, "finding");
  return fmt::format("validate: {} on {}, {} in {:.1f} s; exit status {}",
                     count_of(result.world_size, "rank"), count_of(result.hosts.count(), "host"),
                     what, result.seconds, result.exit_status);
}

const char* verdict_of(const StageResult& stage) {
  return stage.is_empty() ? "nothing" : stage.findings == 0 ? "ok" : "findings";
}

nlohmann::ordered_json stages_json(const ValidationResult& result) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const StageResult& stage : result.stages) {
    stages.push_back({{"stage", name_of(stage.stage)},
                      {"round", stage.round},
                      {"verdict", verdict_of(stage)},
                      {"seconds", stage.seconds},
                      {"checks", stage.checks},
                      {"elements", stage.elements},
                      {"findings", stage.findings},
                      {"without", stage.without},
                      {"note", stage.note}});
  }
  return stages;
}

// At the end of the run, of no host.
ValidationFinding bad_input_of(const ValidationResult& result, std::string message) {
  const StageResult& last = result.stages.back();
  return {.stage = last.stage,
          .kind = FindingKind::kBadInput,
          .round = last.round,
          .message = std::move(message),
          .at_end = true};
}

}  // namespace

std::optional<ValidationFinding> nothing_compared(const ValidationResult& result) {
  std::set<std::string> empty;
  for (const StageResult& stage : result.stages) {
    if (stage.checks > 0) return std::nullopt;
    if (stage.is_empty()) empty.insert(name_of(stage.stage));
  }
  if (empty.empty()) return std::nullopt;
  return bad_input_of(
      result, fmt::format("nothing was compared: {} had nothing to do on {}; start more ranks, or "
                          "name other ops",
                          fmt::join(empty, ", "), count_of(result.world_size, "rank")));
}

std::optional<ValidationFinding> idle_fault(const ValidationResult& result, const Suite& suite,
                                            const std::set<size_t>& acted) {
  for (size_t i = 0; i < suite.faults.size(); ++i) {
    if (acted.contains(i)) continue;
    return bad_input_of(
        result,
        fmt::format("faults[{}], {}, never acted: no call of the stages that ran was one "
                    "at which it acts; see its stage, at_call (5 without the key) and probability",
                    i, suite.faults[i].kind));
  }
  return std::nullopt;
}

nlohmann::ordered_json validation_json(const ValidationResult& result, const ValidateRun& run) {
  nlohmann::ordered_json hosts = nlohmann::ordered_json::array();
  for (int64_t host = 0; host < result.hosts.count(); ++host) {
    hosts.push_back({{"name", result.hosts.name(host)}, {"ranks", result.hosts.ranks_of(host)}});
  }
  const nlohmann::ordered_json findings = nlohmann::json(result.findings);
  return {{"format", "shardproof-validation/1"},
          {"command", report::valid_utf8(run.command)},
          {"version", run.version},
          {"started", run.started},
          {"seconds", result.seconds},
          {"suite", report::valid_utf8(run.suite)},
          {"backend", name_of(run.settings.backend)},
          {"device", name_of(run.settings.device)},
          {"world_size", result.world_size},
          {"slow_factor", run.settings.slow_factor},
          {"interrupted", result.interrupted},
          {"exit_status", result.exit_status},
          {"hosts", hosts},
          {"stages", stages_json(result)},
          {"findings", report::json_finite(findings)},
          {"environment", report::json_finite(result.environment)},
          {"times", report::json_finite(result.times)},
          {"training", result.training},
          {"left_out", result.left_out}};
}

std::string validation_junit(const ValidationResult& result, const ValidateRun& run) {
  std::string body;
  int64_t failures = 0, skipped = 0;
  for (const StageResult& stage : result.stages) {
    body += fmt::format("    <testcase classname=\"validate\" name=\"{} round {}\" time=\"{:.3f}\"",
                        stage.stage, stage.round, stage.seconds);
    std::string inside;
    for (const ValidationFinding& finding : result.findings) {
      // Equal findings of later rounds are left out of the list.
      const bool is_earlier = finding.round < stage.round && stage.findings > 0;
      if (finding.stage != stage.stage || (finding.round != stage.round && !is_earlier)) continue;
      const std::string since = is_earlier ? fmt::format(" (round {})", finding.round) : "";
      inside += fmt::format("      <failure type=\"{}\" message=\"{}{}\"/>\n", finding.kind,
                            report::xml_text(finding.message), since);
    }
    failures += inside.empty() ? 0 : 1;
    skipped += stage.is_empty();
    if (stage.is_empty()) inside = "      <skipped message=\"nothing was compared\"/>\n";
    body += inside.empty() ? "/>\n" : ">\n" + inside + "    </testcase>\n";
  }
  const std::string counts =
      fmt::format("tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{}\" time=\"{:.3f}\"",
                  result.stages.size(), failures, skipped, result.seconds);
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"shardproof\" {0}>\n"
      "  <testsuite name=\"validate\" {0} timestamp=\"{1}\">\n{2}  </testsuite>\n</testsuites>\n",
      counts, report::xml_text(run.started), body);
}

std::string stage_text(const StageResult& stage, const std::vector<ValidationFinding>& findings) {
  std::string text =
      fmt::format("{:<12} round {:<3} {:<8} {:>7.2f} s   {}\n", name_of(stage.stage), stage.round,
                  stage.findings == 0 ? verdict_of(stage) : "FINDINGS", stage.seconds, stage.note);
  if (stage.went_on) {
    text += fmt::format("  went on without {}\n", fmt::join(stage.without, ", "));
  }
  for (const ValidationFinding& finding : findings) text += finding_line(finding);
  return text;
}

std::string verdict_text(const ValidationResult& result) {
  std::string text;
  if (result.environment.contains("hosts")) {
    for (const auto& host : result.environment.at("hosts")) {
      for (const auto& odd : host.at("odd")) {
        text += fmt::format("odd: {} of {} is '{}', the usual one is '{}'\n",
                            odd.at("fact").get<std::string>(),
                            Hosts::call(host.at("name").get<std::string>()),
                            odd.at("value").get<std::string>(), odd.at("usual").get<std::string>());
      }
    }
  }
  for (const ValidationFinding& finding : result.findings) {
    if (finding.at_end) text += finding_line(finding);
  }
  return text + counts_text(result) + '\n';
}

std::string validation_section(const ValidationResult& result, const std::string& folder) {
  std::vector<report::JobFinding> findings;
  for (const ValidationFinding& finding : result.findings) {
    findings.push_back({where_of(finding), fmt::format("{}: {}", finding.kind, finding.message)});
  }
  return report::job_section("shardproof validate", counts_text(result), "hosts", findings,
                             folder + "/validation.json");
}

}  // namespace shardproof::sim::validate
