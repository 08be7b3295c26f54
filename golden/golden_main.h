// The single-device run of one case, in a process of its own.
#pragma once

#include <string>

namespace shardproof::golden {

// `request` is a CaseSpec as JSON text; writes the golden blob (sim/record/golden_record.h) to
// `golden_fd`. Returns a small JSON: {"seconds": .., "tensors": .., "bytes": ..}. `dump_path` not
// empty: also writes the values under the names of expected.safetensors there.
std::string golden_main(const std::string& request, int golden_fd,
                        const std::string& dump_path = "");

}  // namespace shardproof::golden
