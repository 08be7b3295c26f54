// The comparison of two runs as text for people.
#include <fmt/format.h>

#include <algorithm>

#include "base/count_of.h"
#include "sim/report/compare_runs.h"

namespace shardproof::sim::report {

namespace {

constexpr size_t kShownTensors = 10;  // of a case

// "run both with\n    COMMAND" or "run\n    A: COMMAND\n    B: COMMAND".
std::string record_text(const std::vector<std::string>& commands, const std::string& options) {
  if (commands.size() == 1) return fmt::format("run both with\n    {}{}", commands[0], options);
  return fmt::format("run\n    A: {}{}\n    B: {}{}", commands.at(0), options, commands[1],
                     options);
}

// "smoke/llama on gloo"; a recorded run has no world.
std::string place_of(const CaseComparison& one) {
  return one.backend.empty() ? one.name : fmt::format("{} on {}", one.name, one.backend);
}

// `run` counts a parameter once, this what the optimizer made of the golden's gradients, too.
std::string tensors_text(const CaseComparison& one) {
  const std::string text = fmt::format("{} tensors", one.tensors - one.fed);
  if (one.fed == 0) return text;
  return text + fmt::format(" and {} parameters that the golden's gradients gave", one.fed);
}

std::string differences_text(const CaseComparison& one) {
  std::string text;
  if (!one.other.empty()) text += fmt::format("  case      {}\n", one.other);
  if (one.differing.empty()) return text;
  const DifferingTensor& first = one.differing.front();
  text += fmt::format("  first     {}\n  on        {}\n", first.title, first.where);
  if (!first.amount.empty()) text += fmt::format("  by        {}\n", first.amount);
  if (one.by_digests) {
    return text + fmt::format(
                      "  Of this case a run kept one digest for each phase of a step. Tensors: "
                      "{}\n  and compare the two folders.\n",
                      record_text(one.record, ""));
  }
  text += fmt::format("  in all    {} of {} tensors differ\n", one.differing.size(), one.tensors);
  size_t width = 0;
  const size_t shown = std::min(one.differing.size(), kShownTensors);
  for (size_t i = 0; i < shown; ++i) width = std::max(width, one.differing[i].title.size());
  bool lacks = false;
  for (size_t i = 0; i < shown; ++i) {
    const DifferingTensor& tensor = one.differing[i];
    const std::string ranks = tensor.where.substr(0, tensor.where.find(':'));
    lacks = lacks || tensor.amount.find("elements") == std::string::npos;
    text += fmt::format("    {:<{}}  {}{}\n", tensor.title, width, ranks,
                        tensor.amount.empty() ? "" : "; " + tensor.amount);
  }
  if (one.differing.size() > shown) {
    text += fmt::format("    {} more\n", one.differing.size() - shown);
  }
  if (!lacks || one.record.empty()) return text;
  return text + fmt::format(
                    "  A run's folder holds hashes of most tensors. Values: {}\n"
                    "  and compare the two files.\n",
                    record_text(one.record, " --dump FILE"));
}

}  // namespace

std::string comparison_text(const RunComparison& comparison) {
  std::string text = comparison.program.empty() ? "" : comparison.program + "\n";
  int64_t differing = 0, empty = 0;
  for (const CaseComparison& one : comparison.cases) {
    if (!one.other_seed.empty()) {
      ++differing;
      text += fmt::format("DIFFERS   {}   other seed ({}): nothing to compare\n", place_of(one),
                          one.other_seed);
      continue;
    }
    const bool nothing = one.tensors == 0 && !one.differs();
    differing += one.differs();
    empty += nothing;
    text += fmt::format("{:<8}  {}   {}\n",
                        nothing         ? "nothing"
                        : one.differs() ? "DIFFERS"
                                        : "same",
                        place_of(one), nothing ? "no tensors to compare" : tensors_text(one));
    for (const std::string& setting : one.settings) text += "  " + setting + "\n";
    text += differences_text(one);
  }
  for (const std::string& name : comparison.only_a) text += "only in A  " + name + "\n";
  for (const std::string& name : comparison.only_b) text += "only in B  " + name + "\n";
  const auto count = static_cast<int64_t>(comparison.cases.size());
  return text + fmt::format("{} in both runs: {} the same to the bit, {} differ{}\n",
                            count_of(count, "case"), count - differing - empty, differing,
                            empty > 0 ? fmt::format(", {} without tensors", empty) : "");
}

}  // namespace shardproof::sim::report
