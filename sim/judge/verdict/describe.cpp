// One result as text: one line for a match; otherwise the position, size and ranks of the error,
// its likely cause, and the command that replays it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/count_of.h"
#include "sim/case/policy_stages.h"
#include "sim/case/reference.h"
#include "sim/judge/explain/diagnose.h"
#include "sim/judge/explain/wording.h"
#include "sim/judge/verdict/fault_effect.h"
#include "sim/judge/verdict/history.h"
#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::judge {
namespace {

constexpr size_t kListedCollectives = 6;

std::string in_color(const std::string& text, const char* code, bool color) {
  return color ? fmt::format("\033[{}m{}\033[0m", code, text) : text;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return c == '_' ? ' ' : std::toupper(c); });
  return text;
}

std::string place(const CaseSpec& spec) {
  if (spec.file.empty()) return spec.name;
  const std::string where = spec.line > 0 ? fmt::format("{}:{}", spec.file, spec.line) : spec.file;
  return spec.name.empty() ? where : where + "   " + spec.name;
}

// "  worst     ..": continuation lines of `text` are aligned with its first one.
std::string field(const std::string& label, const std::string& text) {
  if (text.empty()) return "";
  std::string out = fmt::format("\n  {:<9} ", label);
  for (const char c : text) out += c == '\n' ? std::string("\n            ") : std::string(1, c);
  return out;
}

std::string bracketed(const std::vector<int64_t>& values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

std::string tensor_line(const CaseSpec& spec, const Divergence& found) {
  std::string text = found.tensor;
  if (!found.worst.global_shape.empty()) {
    text += "   global " + bracketed(found.worst.global_shape);
  }
  if (!found.worst.layout.empty()) text += "   " + found.worst.layout;
  text += fmt::format("   {}", phase_name(found.phase));
  const std::string stage = stage_text(spec, found.step);
  if (!stage.empty()) return text + " of " + stage;
  if (found.step > 0) text += fmt::format(" of step {}", found.step);
  return text;
}

std::string worst_line(const CaseResult& result) {
  const Divergence& found = *result.divergence;
  const ResultRow& row = found.worst;
  if (row.bad_count == 0) return "";
  std::string text;
  if (!row.worst_global_index.empty()) text = bracketed(row.worst_global_index) + "   ";
  text += fmt::format("golden {:.12g}   actual {:.12g}   error {:.2g}, allowed {:.2g}",
                      row.golden_value, row.actual_value, row.worst_error, row.allowance);
  text += fmt::format("\nheld by rank {}", row.rank);
  if (result.spec.parallel.world_size() > 1) {
    const Mesh mesh = parallel_at(result.spec, found.step).mesh();
    text += " (" + mesh.describe() + ":";
    for (const std::string& axis : mesh.names()) {
      if (row.rank >= mesh.world_size()) break;
      text += fmt::format(" {} {}", axis, mesh.coordinate(axis, row.rank));
    }
    text += ")";
  }
  const std::string site = site_text(row);
  if (!site.empty()) text += site + ",";
  if (!row.worst_local_index.empty()) text += " at local " + bracketed(row.worst_local_index);
  if (row.count == 1) return text;
  return text + fmt::format("; {} of its {} elements are wrong", row.bad_count, row.count);
}

// All calls, or of many those whose label names the tensor, then the latest.
std::string listed_calls(const Divergence& found) {
  const std::vector<std::string>& calls = found.collectives;
  const auto names_it = [&](const std::string& call) { return names_tensor(call, found.tensor); };
  std::vector<size_t> listed;
  for (const bool naming : {true, false}) {
    for (size_t i = calls.size(); i-- > 0 && listed.size() < kListedCollectives;) {
      if (names_it(calls[i]) == naming) listed.push_back(i);
    }
  }
  std::sort(listed.begin(), listed.end());
  std::stable_partition(listed.begin(), listed.end(), [&](size_t i) { return names_it(calls[i]); });
  const size_t skipped = calls.size() - listed.size();
  std::string text;
  if (skipped > 0) text += fmt::format("\n.. {} others", skipped);
  for (const size_t i : listed) text += "\n" + calls[i];
  return text;
}

std::string history_line(const Divergence& found) {
  if (found.last_good.empty() && found.collectives.empty()) return "";
  std::string text = found.last_good.empty() ? "nothing before it was right"
                                             : found.last_good + " was right on that rank";
  text += found.collectives.empty() ? "; no collective since"
          : found.collectives.size() == 1
              ? "; since then one collective:"
              : fmt::format("; since then {} collectives:", found.collectives.size());
  text += listed_calls(found);
  if (found.earlier.empty()) return text;
  const std::string& last = found.earlier.back();
  return text +
         (names_tensor(last, found.tensor) ? "\nearlier in this step, with the tensor's name:\n"
                                           : "\nearlier in this step, of tensors around it:\n") +
         last;
}

std::string rounding_line(const CaseResult& result) {
  const Divergence& found = *result.divergence;
  if (found.kind != ResultKind::kValues || !may_be_rounding(found.worst)) return "";
  return rounding_note(result.spec.precision);
}

std::string divergence_text(const CaseResult& result) {
  const Divergence& found = *result.divergence;
  std::string text = field("tensor", tensor_line(result.spec, found));
  text += field("worst", worst_line(result));
  text += field("pattern", found.pattern);
  text += field("likely", found.likely);
  text += field("note", rounding_line(result));
  text += field("golden", match_limits(result.spec));
  return text + field("after", history_line(found));
}

std::string matched_line(const CaseResult& result) {
  std::string text = result.spec.judged
                         ? fmt::format("{}, {}", count_of(result.tensors_compared, "tensor"),
                                       count_of(result.elements_compared, "element"))
                         : std::string("not judged");
  const std::string grounds = grounds_text(result.account.grounds);
  if (!grounds.empty()) text += ", " + grounds;
  const std::string unresolved = unresolved_text(result.account, result.spec.precision);
  if (!unresolved.empty()) text += ", " + unresolved;
  if (!result.worst_tensor.empty()) {
    text += fmt::format(", at most {:.3g}% of an allowance used ({})", 100 * result.worst_ratio,
                        result.worst_tensor);
  }
  return text;
}

}  // namespace

std::string site_text(const ResultRow& row) {
  if (row.site.empty()) return "";
  return fmt::format(", {} in microbatch {}", row.site, row.microbatch);
}

std::string describe_result(const CaseResult& result, bool color) {
  const bool good = result.as_expected;
  const char* paint = good ? "32" : result.verdict == Verdict::kRefused ? "33" : "31;1";
  const std::string title =
      in_color(fmt::format("{:<9}", upper(name_of(result.verdict))), paint, color);
  std::string text = title + " " + place(result.spec);
  if (result.verdict == Verdict::kMatch) {
    text += "   " + matched_line(result);
    text += field("note", result.message);
    text += field("match", match_limits(result.spec));
    text += field("faults", faults_text(result));
    if (!good) text += field("expected", result.unexpected);
    return good ? text : text + field("replay", result.replay);
  }
  const std::string kind = name_of(result.kind);
  if (!kind.empty() && kind != name_of(result.verdict)) text += "   " + kind;
  text += result.divergence ? divergence_text(result) : field("what", result.message);
  text += field("faults", faults_text(result));
  const bool other_expected = result.spec.expect.verdict != Verdict::kMatch && !good;
  if (other_expected) text += field("expected", result.unexpected);
  return text + field("replay", result.replay);
}

}  // namespace shardproof::sim::judge
