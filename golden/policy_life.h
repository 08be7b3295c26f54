// A policy's life on one device: the stages of workload policy, one after another.
//
//   moment m (sim/case/policy_stages.h)   observed
//   train           what training step m observes; in eval mode logprobs, loss and metrics; of one
//                   that fails nothing: it is as if it had not been asked for
//   score           the forward of all samples, then "scores" [B, S]
//   reference       the same with the first weights, then "reference_scores"
//   refit           "refit.<parameter>" as the receivers get it
//   draw            "draw.alike" [1, 1, 5] and "draw.parts" [tp, 1, 5] (observe/draw_log.h)
//   export          "param.<parameter>" as the folder holds it
//   load            parameters and optimizer state as they were saved; the schedule and float16's
//                   loss scale go on from there too
//
// Each life begins with the first weights.
#pragma once

#include "golden/single_device.h"

namespace shardproof::golden {

// Throws as run_single_device.
void run_policy_life(const sim::CaseSpec& spec, const CaseData& data, const RunOptions& options,
                     Probe& probe);

}  // namespace shardproof::golden
