// A judgement of a recorded run as text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "base/count_of.h"
#include "sim/uses/recorded/recorded_judgement.h"

namespace shardproof::sim::recorded {
namespace {

std::string field(const char* label, const std::string& text) {
  return text.empty() ? "" : fmt::format("\n  {:<9} {}", label, text);
}

std::string bracketed(const std::vector<int64_t>& values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

std::string coordinates(const Mesh& mesh, int64_t rank) {
  std::string text;
  for (const std::string& axis : mesh.names()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", axis, mesh.coordinate(axis, rank));
  }
  return text;
}

std::string when(const judge::Divergence& found) {
  return found.step == 0 ? "at the start" : fmt::format("of step {}", found.step);
}

std::string tensor_line(const judge::Divergence& found) {
  std::string text = found.tensor;
  if (!found.worst.global_shape.empty()) text += "   " + bracketed(found.worst.global_shape);
  text += "   " + when(found);
  if (!found.worst.layout.empty()) text += "   " + found.worst.layout;
  return text;
}

std::string worst_line(const judge::Divergence& found, const Mesh& mesh) {
  const judge::ResultRow& row = found.worst;
  if (row.bad_count == 0) return "";
  std::string text =
      row.worst_global_index.empty() ? "" : bracketed(row.worst_global_index) + "   ";
  text += fmt::format("reference {:.12g}   here {:.12g}   error {:.2g}, allowed {:.2g}",
                      row.golden_value, row.actual_value, row.worst_error, row.allowance);
  text += fmt::format("; on rank {}", row.rank);
  const std::string place = coordinates(mesh, row.rank);
  if (!place.empty()) text += " (" + place + ")";
  if (row.count > 1) text += fmt::format(", {} of its {} elements", row.bad_count, row.count);
  return text;
}

std::string matched_line(const RecordedJudgement& judgement) {
  const judge::CaseResult& result = judgement.result;
  std::string text = fmt::format("{}, {}", count_of(result.tensors_compared, "tensor"),
                                 count_of(result.elements_compared, "element"));
  const judge::Grounds& grounds = result.account.grounds;
  if (grounds.gradients_not_zero < grounds.gradients) {
    text += fmt::format(", {} of {} gradients not all zero", grounds.gradients_not_zero,
                        grounds.gradients);
  }
  if (!result.worst_tensor.empty()) {
    text += fmt::format(", at most {:.3g}% of an allowance used ({})", 100 * result.worst_ratio,
                        result.worst_tensor);
  }
  return text;
}

// What is unresolved, by reason: "param.w of step 1 and 3 more: ..".
std::vector<std::string> unresolved_lines(const judge::Account& account) {
  constexpr size_t kListed = 4;
  struct Group {
    const judge::UnjudgedTensor* first;
    int64_t more = 0;
  };
  std::map<std::string, Group> groups;  // by the reason without the name of its tensor
  std::vector<const Group*> in_order;
  for (const judge::UnjudgedTensor& one : account.unresolved) {
    const bool named = one.reason.starts_with(one.tensor);
    const std::string reason = one.reason.substr(named ? one.tensor.size() : 0);
    const auto [group, added] = groups.emplace(reason, Group{&one});
    if (added) in_order.push_back(&group->second);
    if (!added) ++group->second.more;
  }
  std::vector<std::string> lines;
  for (const Group* group : in_order) {
    if (lines.size() == kListed) break;
    const judge::UnjudgedTensor& first = *group->first;
    lines.push_back(fmt::format("{} of step {}{}: {}", first.tensor, first.step,
                                group->more > 0 ? fmt::format(" and {} more", group->more) : "",
                                first.reason));
  }
  if (in_order.size() > kListed) {
    lines.push_back(fmt::format("and for {} more reasons", in_order.size() - kListed));
  }
  return lines;
}

}  // namespace

std::string describe_judgement(const RecordedJudgement& judgement, bool color) {
  const judge::CaseResult& result = judgement.result;
  const bool match = result.verdict == Verdict::kMatch;
  const bool refused = result.verdict == Verdict::kRefused;
  const char* paint = match ? "32" : refused ? "33" : "31;1";
  const bool internal = result.verdict == Verdict::kInternal;
  const std::string word = match                                  ? "MATCH"
                           : refused                              ? "REFUSED"
                           : internal                             ? "INTERNAL"
                           : result.verdict == Verdict::kBadInput ? "BAD INPUT"
                                                                  : "MISMATCH";
  const size_t unresolved = result.account.unresolved.size();
  std::string text = match && unresolved > 0 ? fmt::format("{}, {} of {} not judged  ", word,
                                                           unresolved, result.account.all_tensors)
                                             : fmt::format("{:<9}", word);
  if (color) text = fmt::format("\033[{}m{}\033[0m", paint, text);
  text += " " + result.spec.name;
  if (judgement.mesh.world_size() > 1) text += "   " + judgement.mesh.describe();
  if (match) {
    text += "   " + matched_line(judgement);
    for (const std::string& line : unresolved_lines(result.account))
      text += field("unresolved", line);
  } else if (!result.divergence) {
    text += field("what", result.message);
  } else {
    const judge::Divergence& found = *result.divergence;
    text += "   " + name_of(found.kind);
    text += field("tensor", tensor_line(found));
    text += field("worst", worst_line(found, judgement.mesh));
    text += field("pattern", found.pattern);
    text += field("likely", found.likely);
    text += field("also", judgement.also);
    if (!found.last_good.empty())
      text += field("before", found.last_good + " was right on that rank");
  }
  text += field("against", judgement.against);
  return text + field("note", judgement.note);
}

}  // namespace shardproof::sim::recorded
