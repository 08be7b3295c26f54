// The labels of collective calls, for messages about one that no call has.
#pragma once

#include <string>
#include <vector>

namespace shardproof::sim::judge {

// The label in describe(call): "all_reduce(sum) tp[0,1] [4] float64 'norm forward'" has "norm
// forward".
std::string label_of(const std::string& described);

// "'norm forward', 'norm backward' and 5 more": each label once, the nearest to `wanted` first. A
// label is as near as the piece of it that `wanted` resembles most.
std::string nearest_labels(const std::string& wanted, const std::vector<std::string>& labels);

}  // namespace shardproof::sim::judge
