// Sequence-parallel layers whose gathered inputs and gradients come from one reusable buffer.
//
//   y_kept   a plain product of a gathered x, which autograd keeps until its backward
//   y_layer  a column-parallel layer that gathers another input meanwhile, and in its backward
//            once more
//   z        a row-parallel layer behind it, whose backward gathers its gradient
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

Workload layers_in_flight_workload();

}  // namespace shardproof::sim
