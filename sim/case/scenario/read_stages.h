// What a policy is asked to do, stage by stage, as a scenario file says it.
//
//   train       optimizer steps, one for each global batch in the data; one of the scheduler
//   score       the policy's logprobs, which are the prev_logprobs of what follows
//   reference   the first weights' logprobs, the reference_logprobs of what follows
//   refit       the policy's weights to inference ranks outside of the mesh
//   offload     parameters and optimizer to the host, and back where the next stage needs them
//   save, load  a checkpoint; onto another mesh, where a load names one
//   draw        numbers from two of the random streams that the policy keeps
//   export      the policy's weights to a Hugging Face folder, always the same, and read back
#pragma once

#include "sim/case/case_spec.h"
#include "sim/case/scenario/settings.h"

namespace shardproof::sim {

bool has_stages(const Settings& settings);  // its workload is policy

// Sets stages and lives, from what `spec` has of mesh, batch and microbatches already. Throws
// Error(kBadInput) at the place in the file: no stages, or stages of another workload; sizes that
// do not fit the batch or the world; a key of another kind of stage; a load before a save.
void read_stages(const Settings& settings, CaseSpec& spec);

}  // namespace shardproof::sim
