// Plain text with the most important parts first.
#include "sim/report/rank_log.h"

#include <fmt/format.h>

#include "sim/report/escape.h"

namespace shardproof::sim::report {
namespace {

std::string coordinates(const Mesh& mesh, int64_t rank) {
  if (rank >= mesh.world_size()) return " outside of the mesh";
  std::string text;
  for (const std::string& axis : mesh.names()) {
    text += fmt::format(" {}={}", axis, mesh.coordinate(axis, rank));
  }
  return text;
}

std::string what_is_wrong(const judge::ResultRow& row) {
  if (!row.problem.empty()) return row.problem;
  if (!row.reason.empty())
    return fmt::format("{}: {}", judge::outcome_name(row.outcome), row.reason);
  return fmt::format("{} of {} elements, worst error {:.3g} of {:.3g} allowed", row.bad_count,
                     row.count, row.worst_error, row.allowance);
}

std::string wrong_rows(const judge::RankReport& report) {
  std::string text;
  for (const auto& row : report.rows) {
    if (row.outcome == judge::Outcome::kMatch) continue;
    text += fmt::format("  {} step {} {}: {}\n", phase_name(row.phase), row.step, row.name,
                        what_is_wrong(row));
  }
  return text;
}

}  // namespace

std::string rank_log(const judge::CaseResult& result, int64_t rank, const RankEnding* ending,
                     const judge::RankReport* report) {
  const Mesh mesh = result.spec.parallel.mesh();
  std::string text = fmt::format("case    {}\nrank    {} of {}{}\nending  {}\n", result.spec.name,
                                 rank, result.spec.parallel.world_size(), coordinates(mesh, rank),
                                 ending ? ending->kind : ResultKind::kFinished);
  if (ending != nullptr && !ending->message.empty()) text += ending->message + "\n";
  if (ending != nullptr && !ending->last_call.empty()) {
    text += fmt::format("last call entered: {}\n", ending->last_call);
  }
  if (ending != nullptr && !ending->printed.empty()) {
    text += "\nthe last lines that its process printed\n" + ending->printed + "\n";
  }
  if (report == nullptr) return valid_utf8(text + "\nThis rank sent no report.\n");
  text += fmt::format("time    {:.3f} s, of it {:.3f} s comparing; peak {} tensor bytes\n",
                      report->seconds, report->compare_seconds, report->peak_tensor_bytes);
  if (!report->metrics.empty()) {
    text += "metrics " +
            report->metrics.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  for (const auto& warning : report->warnings) text += "warning  " + warning + "\n";
  const std::string wrong = wrong_rows(*report);
  if (!wrong.empty()) text += "\nwrong or not decided\n" + wrong;
  text += fmt::format("\n{} collective calls\n", report->calls.size());
  for (size_t i = 0; i < report->calls.size(); ++i) {
    text += fmt::format("{:6}  {}\n", i, report->calls[i]);
  }
  return valid_utf8(text);
}

}  // namespace shardproof::sim::report
