// A case from another program: a folder that any framework can write.
//
//   config.json           Hugging Face          case.json              loss, optimizer, steps
//   model.safetensors     or an index           batch.safetensors      ids, lengths, masks
//   expected.safetensors  optional: answers of another framework
#pragma once

#include <string>

#include "sim/case/case_spec.h"

namespace shardproof::sim {

// Reads the parts of the case that need no tensors: the list of files, case.json and config.json.
// The processes that use the safetensors files read them later. The case has one rank and float64.
// Throws Error(kBadInput) for a missing file, invalid JSON, a constant of the wrong type or out of
// range, and an unknown loss or optimizer (with the nearest known one).
CaseSpec read_case_folder(const std::string& folder);

// Takes the extra heads out of a config.json of deepseek_v3, which Hugging Face leaves out too.
void leave_out_extra_heads(nlohmann::json& config);

// True when `path` is a folder that holds case.json or config.json.
bool looks_like_case_folder(const std::string& path);

}  // namespace shardproof::sim
