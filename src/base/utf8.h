// Checks text of other programs for UTF-8, and prepares it for messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shardproof {

// Offset of the first byte that is not valid UTF-8, or npos.
size_t invalid_utf8(std::string_view text);

// Whether the text is valid UTF-8 without control characters, fit for a terminal and for JSON.
bool is_printable(std::string_view text);

// All before the first line break.
std::string first_line(std::string_view text);

// The text with '?' for each control character and each byte that is not UTF-8. It is cut between
// two characters to at most `max_bytes`, with "..." at the cut.
std::string printable(std::string_view text, size_t max_bytes = std::string_view::npos);

}  // namespace shardproof
