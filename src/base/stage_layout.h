// The text of a layout: which parts of a model the stages of a pipeline hold.
#pragma once

#include <string>
#include <vector>

namespace shardproof {

// The entries of a layout with repetitions written out: "Et|(t|)*2L" is {"Et", "t", "t", "L"}.
// Throws Error(kBadInput) with the position if the text cannot be read.
std::vector<std::string> read_layout(const std::string& layout);

}  // namespace shardproof
