// The stages of workload policy on one device, in order.
//
//   moment m (sim/case/policy_stages.h)   observed
//   train           the observations of training step m; in eval mode logprobs, loss and metrics;
//                   nothing for a stage that fails
//   score           the forward of all samples, then "scores" [B, S]
//   reference       the same with the first weights, then "reference_scores"
//   refit           "refit.<parameter>" as the receivers get it
//   draw            "draw.alike" [1, 1, 5] and "draw.parts" [tp, 1, 5] (observe/draw_log.h)
//   export          "param.<parameter>" as the folder holds it
//   load            the saved parameters and optimizer state; the schedule and the loss scale of
//                   float16 continue from the saved ones
//
// The stages run `lives` times; each time starts with the first weights.
#pragma once

#include "golden/single_device.h"

namespace shardproof::golden {

// Throws as run_single_device does.
void run_policy_life(const sim::CaseSpec& spec, const CaseData& data, const RunOptions& options,
                     Probe& probe);

}  // namespace shardproof::golden
