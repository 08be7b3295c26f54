// The line that describes a rank's next collective call, which the rank sends before it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/call.h"

namespace shardproof::sim::world {

struct CallLine : Call {
  bool waiting = false;  // the rank waits for this asynchronous call, which it made earlier
};

// A line as bytes. decode returns nothing for a malformed line.
std::string encode_line(const CallLine& line);
std::optional<CallLine> decode_line(std::string_view bytes);

}  // namespace shardproof::sim::world
