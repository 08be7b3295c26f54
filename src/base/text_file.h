// Writes whole text files.
#pragma once

#include <string>

namespace shardproof {

// Replaces the contents of the file by `text`. Throws Error(kBadInput) when the file cannot be made
// or the disk is full; do not use the file then.
void write_text_file(const std::string& path, const std::string& text);

}  // namespace shardproof
