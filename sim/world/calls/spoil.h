// Changes that planted faults make to the tensors of a call.
#pragma once

#include <string>

#include "sim/case/case_spec.h"
#include "sim/world/calls/interceptor.h"

namespace shardproof::sim {

// Whether the fault can act at the call on this rank. Faults that change no tensor can act at every
// call.
bool can_spoil(const FaultSpec& fault, const Call& call);

// Writes to `tensors`, whose elements are numbered through in row-major order, and returns a
// description of the change: "its 12 elements became zeros". `before` are the data of the previous
// matching call. Throws Error(kBadInput) when the fault cannot act on these tensors.
std::string spoil(const FaultSpec& fault, const Tensors& tensors, const Tensors& before);

}  // namespace shardproof::sim
