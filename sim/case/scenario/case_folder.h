// A case from outside: a folder that any framework can write.
//
//   config.json           Hugging Face          case.json              loss, optimizer, steps
//   model.safetensors     or an index           batch.safetensors      ids, lengths, masks
//   expected.safetensors  optional: another framework's answers
#pragma once

#include <string>

#include "sim/case/case_spec.h"

namespace shardproof::sim {

// The case as far as it can be read without tensors: which files there are, case.json and
// config.json. The safetensors files are read later, by the processes that use them. One rank,
// float64. Throws Error(kBadInput): a missing file, no JSON, a constant of the wrong type or out of
// range, an unknown loss or optimizer (with the nearest known one).
CaseSpec read_case_folder(const std::string& folder);

// True when `path` is a folder that holds case.json or config.json.
bool looks_like_case_folder(const std::string& path);

}  // namespace shardproof::sim
