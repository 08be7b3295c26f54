// The calls at which a planted fault can act, and the changes that it makes to their tensors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/case/case_spec.h"
#include "sim/world/calls/interceptor.h"

namespace shardproof::sim::world {

// True if the fault names this call (op, axis, label, step) and can act on this rank: a
// contribution can be dropped, changed or stale only if the rank has one, and doubled only in a
// sum; an output can be changed only if the rank has one.
bool concerns(const FaultSpec& fault, const Call& call, int64_t step);

// Whether `pattern` occurs in `text`; * matches any characters.
bool occurs_in(std::string_view text, std::string_view pattern);

// What the rank knows around a call.
struct Surroundings {
  Tensors before = {};        // the data of the previous matching call
  at::Tensor token_map = {};  // of the last on_tokens: -1 is padding
};

// Writes to `tensors`, whose elements are numbered through in row-major order, and returns a
// description of the change: "its 12 elements became zeros". Throws Error(kBadInput) when the fault
// cannot act on these tensors.
std::string spoil(const FaultSpec& fault, const Tensors& tensors, const Surroundings& around);

}  // namespace shardproof::sim::world
