#include "sim/judge/verdict/expectations.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "sim/judge/verdict/fault_effect.h"

namespace shardproof::sim {
namespace {

// "all_reduce(sum) tp[0,1] [4,16] float64 label" is an all_reduce along tp.
std::pair<std::string, std::string> axis_and_op(const std::string& call) {
  const size_t op_end = call.find_first_of("( ");
  const size_t space = call.find(' ');
  if (space == std::string::npos) return {"", call.substr(0, op_end)};
  const size_t axis_end = call.find('[', space);
  if (axis_end == std::string::npos) return {"", call.substr(0, op_end)};
  return {call.substr(space + 1, axis_end - space - 1), call.substr(0, op_end)};
}

}  // namespace

std::string unexpected_collectives(const CaseSpec& spec, const std::vector<RankReport>& reports) {
  if (!spec.expect.collectives.is_object()) return "";
  const auto first = std::find_if(reports.begin(), reports.end(),
                                  [](const RankReport& report) { return report.rank == 0; });
  if (first == reports.end()) return "there is no report of rank 0 to count collectives in";
  std::map<std::pair<std::string, std::string>, int64_t> counts;
  for (const std::string& call : first->calls) ++counts[axis_and_op(call)];
  std::string text;
  for (const auto& [axis, ops] : spec.expect.collectives.items()) {
    if (!ops.is_object()) continue;
    for (const auto& [op, count] : ops.items()) {
      const int64_t actual = counts[{axis, op}];
      if (count.is_number_integer() && count.get<int64_t>() == actual) continue;
      text += fmt::format("{}rank 0 made {} {} along {}, the scenario expects {}",
                          text.empty() ? "" : "\n", actual, op, axis, count.dump());
    }
  }
  return text;
}

void compare_with_expectation(CaseResult& result) {
  const ExpectSpec& expect = result.spec.expect;
  const std::string came =
      result.kind.empty() ? result.verdict : result.verdict + " (" + result.kind + ")";
  result.unexpected.clear();
  if (result.verdict != expect.verdict) {
    result.unexpected = fmt::format("expected {}, came {}", expect.verdict, came);
  } else if (!expect.kind.empty() && expect.kind != result.kind) {
    result.unexpected = fmt::format("expected {} ({}), came {}", expect.verdict, expect.kind, came);
  } else if (!expect.tensor.empty() &&
             (!result.divergence || result.divergence->tensor != expect.tensor)) {
    result.unexpected =
        fmt::format("expected {} first in {}, came {}", expect.verdict, expect.tensor,
                    result.divergence ? result.divergence->tensor : std::string("no tensor"));
  } else if (!expect.detector.empty() && expect.detector != first_detector(result.outcome)) {
    result.unexpected = fmt::format("expected {} seen first by {}, came {}", expect.verdict,
                                    expect.detector, detectors_text(result.outcome));
  }
  if (result.unexpected.empty()) result.unexpected = faults_that_never_fired(result);
  result.as_expected = result.unexpected.empty();
}

}  // namespace shardproof::sim
