// What the experts of a layer tell of a difference.
#pragma once

#include <string>

#include "sim/judge/verdict/verdict.h"
#include "sim/uses/recorded/gradients.h"

namespace shardproof::sim::recorded {

// Experts are rows of a stacked tensor, [.., experts, rows, columns] with "experts" in its name, or
// tensors of their own, whose names have a number after "experts.".
//
// Where the wrong tensor is of experts: says in found.pattern which of them hold the reference's
// values of other experts, and in found.likely why, and returns true; else appends to the pattern
// which experts are wrong, if others are right.
bool explain_experts(const RecordedRun& run, const Reference& reference, judge::Divergence& found);

// Where a value of the forward pass is wrong: experts whose gradients are far from the reference's
// while those of other experts, or of all that is not an expert, are near: these experts computed
// with other weights, on other tokens, or not at all. "" where none are.
std::string clue_of_experts(const RecordedRun& run, const std::vector<Gradient>& gradients);

}  // namespace shardproof::sim::recorded
