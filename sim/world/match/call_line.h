// The line that a rank sends before each collective call: what it is about to call, as plain text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "comm/call.h"

namespace shardproof::sim {

struct CallLine : Call {
  bool waiting = false;  // not a new call: the rank now waits for this asynchronous one
};

// One line of text without a newline, and back. decode gives nothing for a malformed line.
std::string encode_line(const CallLine& line);
std::optional<CallLine> decode_line(std::string_view text);

}  // namespace shardproof::sim
