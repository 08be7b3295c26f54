// The functions of this program's workloads. Each is described where it is defined, in <name>.cpp;
// the linear layers in linear_workloads.cpp. Their options are rows of built_in_rows.cpp.
#pragma once

#include "sim/uses/proofs/workload.h"

namespace shardproof::sim::proofs {

Workload broadcast_data_workload();
Workload checkpoint_workload();
Workload column_parallel_workload();
Workload context_logprob_workload();
Workload cross_entropy_workload();
Workload dropout_workload();
Workload fused_logprob_workload();
Workload logprob_workload();
Workload mapping_workload();
Workload refit_workload();
Workload row_parallel_workload();
Workload stream_init_workload();
Workload ulysses_inputs_workload();

}  // namespace shardproof::sim::proofs
