// Which build of the program runs.
#pragma once

#include <string>

namespace shardproof {

// 16 hexadecimal digits of this program's file, which is read once: equal on hosts that run the
// same build.
const std::string& program_digest();

}  // namespace shardproof
