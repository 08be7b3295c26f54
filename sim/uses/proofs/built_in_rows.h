// The built-in workloads and the rows of their options, for programs that cannot run them too.
#pragma once

#include <vector>

#include "sim/case/scenario/known_workload.h"

namespace shardproof::sim::proofs {

const std::vector<KnownWorkload>& built_in_rows();

// An option of every workload, of own ones too.
inline constexpr const char* kStridedInputs = "strided_inputs";
inline WorkloadOption strided_inputs_option() {
  return {
      kStridedInputs, false,
      "The sharded function's inputs, and the gradients of its outputs, lie transposed in memory"};
}

}  // namespace shardproof::sim::proofs
