// Who spoils data: the host, rank or link that explains what all ranks found wrong.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "sim/uses/validate/exchange.h"
#include "sim/uses/validate/finding.h"
#include "sim/uses/validate/hosts.h"

namespace shardproof::sim::validate {

// The ranks that one wrong result may come from.
//
//   a moved element          its sender and its receiver
//   a known addend           its rank
//   an all_reduce that only some members have wrong    those
//   another reduction        every member
struct Suspicion {
  std::vector<int64_t> ranks;
  const WrongResult* evidence = nullptr;  // the first of them
};
// One for each call and, of moved elements, sender and receiver.
std::vector<Suspicion> suspicions_of(const std::vector<WrongResult>& evidence);

// One finding for each host or link that it takes to explain all of it, the one that explains most
// first. `messages_between` has, for two ranks with the smaller first, how many calls moved data
// directly between them.
std::vector<ValidationFinding> blame(Stage stage, int64_t round,
                                     const std::vector<WrongResult>& evidence, const Hosts& hosts);

}  // namespace shardproof::sim::validate
