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
// What a reader of a result must know of the comparison: "against tp2, not against one device: ..";
// "" of a case without a reference.
std::string reference_note(const CaseSpec& spec);
// The run that makes the reference: the same model, data and optimizer on the other layout, without
// faults and expectations. Its ranks put their pieces into `folder`.
CaseSpec reference_case(const CaseSpec& spec, const std::string& folder);
// Cases with equal texts, and equal golden_key, have the same reference.
std::string reference_key(const CaseSpec& spec);

}  // namespace shardproof::sim
