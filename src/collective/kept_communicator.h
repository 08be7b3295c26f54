// Keeps a communicator among the data that an autograd function saves for its backward.
#pragma once

#include "comm/communicator.h"

namespace c10 {
struct IValue;
}

namespace shardproof {

c10::IValue keep_communicator(Communicator& communicator);
// Throws Error(kBadInput) when it has ended.
Communicator& kept_communicator(const c10::IValue& kept);

}  // namespace shardproof
