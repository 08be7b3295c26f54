// Text files, written whole or refused.
#pragma once

#include <string>

namespace shardproof {

// Writes `text` to the file, in place of what it held. Throws Error(kBadInput): a file that cannot
// be made, or a disk that did not take all of it; what is there then is not to be used.
void write_text_file(const std::string& path, const std::string& text);

}  // namespace shardproof
