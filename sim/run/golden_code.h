// Which code goldens come from.
#pragma once

namespace shardproof::sim {

// A digest of every source file of ours that a golden's values depend on, and of the compiler and
// its flags; made by the build (cmake/golden_code.cmake). Two programs that give the same text
// compute the same goldens, whatever else differs in them.
const char* golden_code();

}  // namespace shardproof::sim
