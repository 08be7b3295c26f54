// The files of a Hugging Face tokenizer, which are saved with the weights.
#pragma once

#include <string>
#include <vector>

namespace shardproof {

// Copies the tokenizer files of `from` to the existing folder `to` and returns their names. Copies
// nothing else. Throws Error(kBadInput) for a folder without any, or a file that cannot be copied.
std::vector<std::string> copy_tokenizer(const std::string& from, const std::string& to);

}  // namespace shardproof
