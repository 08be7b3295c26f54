// How all ranks of a group end together when one of them cannot go on.
#pragma once

#include <optional>
#include <string_view>

#include "comm/communicator.h"

namespace shardproof {

// Every rank calls it. Throws when a rank brings a failure: that rank throws its own, the others an
// Error(kBadInput) that refers to it.
//
// Communication   one all_reduce(max) of a number
void throw_together(Communicator& group, const std::optional<Error>& failure,
                    std::string_view label);

}  // namespace shardproof
