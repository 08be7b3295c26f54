// The skipped cases of a scenario, each with its reason.
//
//   skip: NCCL has no integer averages                       the whole scenario
//   skip: {reason: .., when: {world.backend: nccl}}          cases for which every condition holds
//   skip: [{reason: .., when: {..}}, {..}]                   a condition may also be a list of
//   values
#pragma once

#include <string>
#include <vector>

#include "sim/case/scenario/scenario.h"
#include "sim/case/scenario/settings.h"

namespace shardproof::sim {

struct SkipCondition {
  std::string path;
  nlohmann::json values;  // an array; any of them matches
};

struct SkipRule {
  std::string reason;
  std::vector<SkipCondition> when;  // all must hold; empty: always
};

// Without `skip`, returns no rules. Throws Error(kBadInput) for a missing reason, an unknown key
// and an ill-typed value.
std::vector<SkipRule> read_skip(const Schema& schema, const std::string& file,
                                const YamlNode* skip);

// The reason of the first rule that holds; "" when none does.
std::string skip_reason(const std::vector<SkipRule>& rules, const Settings& settings,
                        const WorldChoice& world);

}  // namespace shardproof::sim
