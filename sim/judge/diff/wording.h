// Turns evidence into text.
#pragma once

#include <string>

#include "sim/judge/diff/evidence.h"

namespace shardproof::sim::judge {

// For example "equals the golden of step 1: stale, it was not updated".
std::string text_of(const Evidence& evidence);

}  // namespace shardproof::sim::judge
