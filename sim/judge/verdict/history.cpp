#include "sim/judge/verdict/history.h"

#include <algorithm>
#include <cctype>

#include "sim/judge/verdict/call_labels.h"

namespace shardproof::sim::judge {
namespace {

bool same_observation(const ResultRow& a, const ResultRow& b) {
  return a.order == b.order && a.phase == b.phase && a.step == b.step &&
         a.microbatch == b.microbatch && a.name == b.name;
}

// Whether the call moved a bucket, "first .. last", of tensors among which this one lies: all of
// them are of the row's step and phase.
bool is_of_bucket(const RankReport& report, const std::string& call, const ResultRow& row) {
  const std::string label = label_of(call);
  const size_t dots = label.find(" .. ");
  if (dots == label.npos) return false;
  const auto order_of = [&](const std::string& name) {
    for (const ResultRow& other : report.rows) {
      const bool is_beside = other.step == row.step && other.phase == row.phase;
      if (is_beside && other.name == name) return other.order;
    }
    return int64_t{-1};
  };
  const int64_t first = order_of(label.substr(0, dots)), last = order_of(label.substr(dots + 4));
  return std::min(first, last) >= 0 && std::min(first, last) < row.order &&
         row.order < std::max(first, last);
}

}  // namespace

bool names_tensor(const std::string& call, const std::string& tensor) {
  const std::string label = label_of(call);
  const auto goes_on = [&](size_t at) {  // a longer word, of which `tensor` is a part
    return at < label.size() &&
           (std::isalnum(static_cast<unsigned char>(label[at])) != 0 || label[at] == '_');
  };
  for (size_t at = label.find(tensor); at != label.npos; at = label.find(tensor, at + 1)) {
    if (!goes_on(at - 1) && !goes_on(at + tensor.size())) return true;
  }
  return false;
}

void add_history(const std::vector<RankReport>& reports, Divergence& found) {
  for (const RankReport& report : reports) {
    if (report.rank != found.worst.rank) continue;
    int64_t from = 0, begin = 0;  // of the calls since the last right one, and of the step's
    for (const ResultRow& row : report.rows) {
      if (same_observation(row, found.worst)) break;
      if (row.step != found.step) begin = std::max(begin, row.calls_before);
      if (row.outcome != Outcome::kMatch || row.partial) continue;
      found.last_good = row.name;
      from = row.calls_before;
    }
    const auto size = static_cast<int64_t>(report.calls.size());
    const int64_t end = std::min(found.worst.calls_before, size);
    for (int64_t i = std::clamp<int64_t>(from, 0, begin); i < end; ++i) {
      const std::string& call = report.calls[static_cast<size_t>(i)];
      if (i >= from) {
        found.collectives.push_back(call);
      } else if (names_tensor(call, found.tensor) || is_of_bucket(report, call, found.worst)) {
        found.earlier.push_back(call);
      }
    }
    return;
  }
}

}  // namespace shardproof::sim::judge
