#include "sim/uses/validate/finding.h"

#include <algorithm>

namespace shardproof::sim::validate {

nlohmann::json to_json(const ValidationFinding& finding) {
  return {{"stage", finding.stage},     {"kind", finding.kind},      {"round", finding.round},
          {"hosts", finding.hosts},     {"ranks", finding.ranks},    {"link", finding.link},
          {"pattern", finding.pattern}, {"message", finding.message}};
}

int exit_status_of(const std::vector<ValidationFinding>& findings) {
  const auto any = [&](std::initializer_list<FindingKind> kinds) {
    return std::any_of(findings.begin(), findings.end(), [&](const ValidationFinding& finding) {
      return std::find(kinds.begin(), kinds.end(), finding.kind) != kinds.end();
    });
  };
  if (any({FindingKind::kBadInput})) return 2;
  if (any({FindingKind::kDied, FindingKind::kHung, FindingKind::kThrew, FindingKind::kSlow,
           FindingKind::kClock})) {
    return 3;
  }
  return any({FindingKind::kValues, FindingKind::kDigest}) ? 1 : 0;
}

}  // namespace shardproof::sim::validate
