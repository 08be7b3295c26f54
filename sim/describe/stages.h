// What each rank of pp holds and does in a step, and which part of each parameter a rank holds.
#pragma once

#include <string>

#include "model/batch.h"
#include "model/config.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim::describe {

// "" without a pipeline. Throws Error(kRefused) as the styles do.
//
//   stages
//     pp 0          embedding, layers 0-1
//     pp 1          layers 2-3, norm, head
//   1f1b of 3 microbatches: F forward, B backward
//     pp 0          F0 F1 B0 F2 B1 B2     holds at most 2 microbatches
//     pp 1          F0 B0 F1 B1 F2 B2     holds at most 1 microbatch
//     idle          25.0% of a step in which a backward takes as long as two forwards
std::string stage_tables(const CaseSpec& spec, const ModelConfig& config, const Batch& batch);

// describe_plan() of the case, where the lines of experts are those of ep, etp and edp. Throws
// Error(kRefused) as the styles do.
std::string plan_table(const CaseSpec& spec, const ModelConfig& config);

}  // namespace shardproof::sim::describe
