// The files of a Hugging Face tokenizer, which go where the weights go.
#pragma once

#include <string>
#include <vector>

namespace shardproof {

// Copies those that `from` has into `to`, which exists; gives their names. Nothing else is copied.
// Throws Error(kBadInput): a folder without any, or a file that cannot be copied.
std::vector<std::string> copy_tokenizer(const std::string& from, const std::string& to);

}  // namespace shardproof
