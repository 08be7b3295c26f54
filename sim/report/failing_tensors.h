// The tensors that failed first as a safetensors file: golden and actual of each rank that sent
// them.
//
//   rank1/grad.model.norm.weight/golden    F64 [the piece's dims]   times the declared scale
//   rank1/grad.model.norm.weight/actual    F64 [the piece's dims]
//   rank1/grad.model.norm.weight/index     I64 [the piece's dims]   flat index in the golden
//                                                                   tensor; -1 at padding
//
// A second microbatch of the same tensor is "rank1/<name>#1". Metadata: case, phase and step.
#pragma once

#include <string>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::report {

// The bytes of the file; "" when no rank sent tensors. Uses no LibTorch because the control process
// runs no tensor op.
std::string failing_tensors_file(const judge::CaseResult& result);

}  // namespace shardproof::sim::report
