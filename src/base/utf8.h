// Text from outside: whether it is UTF-8, and how a message may show it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shardproof {

// Offset of the first byte that is no valid UTF-8, or npos.
size_t invalid_utf8(std::string_view text);

// Valid UTF-8 without control characters: fit for a terminal, and for JSON as it is.
bool is_printable(std::string_view text);

// The text with '?' for each control character and each byte that is no UTF-8; cut to at most
// `max_bytes` between two characters, "..." where something was cut.
std::string printable(std::string_view text, size_t max_bytes = std::string_view::npos);

}  // namespace shardproof
