// How a case failed, without what changes when the case shrinks: numbers, ranks, layer numbers.
#pragma once

#include <string>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::explore {

// Equal for two cases that fail the same way: verdict, kind, first wrong tensor up to its layer
// number, and pattern or cause up to its numbers. "" for a match.
std::string failure_signature(const judge::CaseResult& result);

// A signature without its pattern or cause.
std::string without_cause(const std::string& signature);

// "mismatch (values): grad.model.layers.0.mlp.down_proj.weight of step 1: <pattern>; <cause>"
std::string failure_text(const judge::CaseResult& result);

}  // namespace shardproof::sim::explore
