// logprobs: two files of per-token logprobs of the same batch, and the cause of their difference.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text_file.h"
#include "sim/cli/outputs.h"
#include "sim/cli/uses/file_commands.h"
#include "sim/report/color.h"
#include "sim/uses/logprobs/compare.h"

namespace shardproof::sim::cli {
namespace {

namespace fs = std::filesystem;
using logprobs::Finding;

// The names of the safetensors files in a folder, in order.
std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.ends_with(".safetensors") && !logprobs::is_routes_file(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The pairs of files: A and B, or those of the same name in the folders A and B.
std::vector<std::pair<std::string, std::string>> pairs_of(const std::string& a,
                                                          const std::string& b) {
  if (!fs::is_directory(a) || !fs::is_directory(b)) return {{a, b}};
  const std::vector<std::string> names = files_in(a), others = files_in(b);
  if (names != others || names.empty()) {
    throw_bad_input(fmt::format("{} has {} safetensors files, {} has {}, and they must have "
                                "the same names",
                                a, names.size(), b, others.size()),
                    "name two files, or folders of files with the same names");
  }
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& name : names) pairs.emplace_back(fs::path(a) / name, fs::path(b) / name);
  return pairs;
}

// Whether --json of an earlier comparison wrote this file.
bool holds_findings(const fs::path& path) {
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  return json.is_array() && !json.empty() &&
         std::all_of(json.begin(), json.end(), [](const nlohmann::json& one) {
           return one.is_object() && one.contains("files") && one.contains("verdict");
         });
}

constexpr OwnFile kOwnFindings = {"findings that logprobs wrote", holds_findings};

std::string findings_file(const LogprobsArguments& arguments,
                          const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::vector<fs::path> inputs;
  for (const auto& [a, b] : pairs) inputs.insert(inputs.end(), {a, b});
  return output_file("--json", arguments.json, inputs, arguments.force, kOwnFindings);
}

// Of several pairs, one that cannot be compared does not keep the others from it.
Finding finding_of(const std::string& a, const std::string& b, bool is_alone) {
  try {
    return logprobs::compare(logprobs::read_pair(a, b));
  } catch (const Error& error) {
    if (is_alone || error.kind() != ErrorKind::kBadInput) throw;
    Finding finding;
    finding.name = a + " and " + b;
    finding.verdict = logprobs::Verdict::kNotCompared;
    finding.problem = error.what();
    return finding;
  }
}

}  // namespace

int logprobs_command(const LogprobsArguments& arguments) {
  std::vector<Finding> findings;
  int status = 0;
  const auto pairs = pairs_of(arguments.a, arguments.b);
  for (const auto& [a, b] : pairs) require_two(a, b);
  const bool prints_json = arguments.json == "-";
  const std::string json = prints_json ? "" : findings_file(arguments, pairs);
  std::ostream& text = prints_json ? std::cerr : std::cout;
  for (const auto& [a, b] : pairs) {
    findings.push_back(finding_of(a, b, pairs.size() == 1));
    status = std::max(status, findings.back().exit_status());
    text << logprobs::describe(findings.back(), report::wants_color() && !prints_json) << '\n';
  }
  if (prints_json) std::cout << logprobs::to_json(findings);
  if (!json.empty()) write_text_file(json, logprobs::to_json(findings));
  return status;
}

}  // namespace shardproof::sim::cli
