// The function that computes the golden of a case. The harness includes nothing of golden/:
// golden/golden_main.cpp defines this function, and the program links it. A test program may link
// another definition.
#pragma once

#include <string>

namespace shardproof::golden {

// A key of a request beside those of the CaseSpec: in float64 too, members show how far this case
// carries a rounding (sim/run/case_runner.cpp).
inline constexpr const char* kMeasured = "measured";
// Another: only the first kFewMembers run (sim/case/record/magnitude.h), where the precision is
// below float64.
inline constexpr const char* kFew = "few_members";

// `request` is a CaseSpec as JSON text. Writes the golden blob (sim/case/record/golden_record.h) to
// `golden_fd`, and to `dump_path`, unless empty, the values under the names of
// expected.safetensors. Returns a small JSON: {"seconds": .., "tensors": .., "bytes": ..}.
std::string golden_main(const std::string& request, int golden_fd,
                        const std::string& dump_path = "");

}  // namespace shardproof::golden
