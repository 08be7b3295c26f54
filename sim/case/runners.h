// The function that computes the golden of a case. The harness includes nothing of golden/:
// golden/golden_main.cpp defines this function, and the program links it. A test program may link
// another definition.
#pragma once

#include <string>

#include "sim/case/case_spec.h"

namespace shardproof::golden {

// The members of an ensemble (sim/case/record/magnitude.h) that a golden runs.
enum class Members {
  kDue,       // all below float64, none in float64
  kFew,       // below float64 kFewMembers are enough
  kMeasured,  // all, in float64 too: they show how far this case carries a rounding
};

// What a golden took and holds.
struct GoldenSize {
  double seconds = 0;
  int64_t tensors = 0, bytes = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GoldenSize, seconds, tensors, bytes)

// Writes the golden blob (sim/case/record/golden_record.h) to `golden_fd`, and to `dump_path`,
// unless empty, the values under the names of expected.safetensors.
GoldenSize golden_main(const sim::CaseSpec& spec, Members members, int golden_fd,
                       const std::string& dump_path = "");

}  // namespace shardproof::golden
