// Who computes the golden of a case. The harness includes nothing of golden/:
// golden/golden_main.cpp defines this function, and the program links it. A test program may link
// another.
#pragma once

#include <string>

namespace shardproof::golden {

// `request` is a CaseSpec as JSON text; writes the golden blob (sim/case/record/golden_record.h) to
// `golden_fd`. Returns a small JSON: {"seconds": .., "tensors": .., "bytes": ..}. `dump_path` not
// empty: also writes the values under the names of expected.safetensors there.
std::string golden_main(const std::string& request, int golden_fd,
                        const std::string& dump_path = "");

}  // namespace shardproof::golden
