// The layout that a case is compared with instead of one device.
#pragma once

#include <string>

#include "sim/case/case_spec.h"

namespace shardproof::sim {

// The mesh and sharding of the reference. All that the scenario does not name is at its default, so
// that an option of the case is not shared by both sides.
ParallelSpec reference_layout(const ReferenceSpec& reference);
// "tp2", "fsdp4 tp2 with sequence_parallel"; "one rank".
std::string reference_name(const ReferenceSpec& reference);
// "against tp2, not against one device"; "" of a case without a reference.
std::string against_text(const CaseSpec& spec);
// What a match of the case does not claim: one line for its reference, one for rows that it does
// not compare; "" of a case that is compared whole with one device.
std::string match_limits(const CaseSpec& spec);
// "on 4 rows of each tensor"; "" where all are compared.
std::string sampled_text(const CaseSpec& spec);
// The runs that make a reference: the first in float64, whose values the case is compared with. In
// a lower precision, and in float64 where a case fails by little, there are others in the case's
// precision, which show how far roundings carry this layout: run 0 as it is, the further ones moved
// by roundings (sim/world/rank/member_noise.h).
inline constexpr int64_t kExactRun = -1;
// The folder of a run's pieces below that of the reference, and the run of such a folder.
std::string folder_of_run(const std::string& folder, int64_t run);
int64_t run_of_folder(const std::string& folder);
// A run that makes the reference: the same model, data and optimizer on the other layout, without
// faults and expectations. Its ranks put their pieces into folder_of_run(folder, run).
CaseSpec reference_case(const CaseSpec& spec, const std::string& folder, int64_t run = kExactRun);
// Cases with equal texts, and equal golden_key, have the same reference.
std::string reference_key(const CaseSpec& spec);

}  // namespace shardproof::sim
