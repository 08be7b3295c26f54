// A case in memory: what a relation changes, and how a changed case becomes files again.
#pragma once

#include <map>
#include <string>

#include "model/batch.h"
#include "model/config.h"
#include "model/weights.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim::relations {

struct Variant {
  CaseSpec spec;           // spec.model is the config.json
  ModelConfig config;      // of spec.model
  WeightMap weights = {};  // full, float64
  Batch batch = {};        // every number is finite
};

// Throws Error(kBadInput) as the readers of config, weights and batch do.
Variant load_variant(const CaseSpec& spec);
// The case with what a relation can compare: one step, no faults, no noise, no comparison with a
// golden.
CaseSpec plain_run(CaseSpec spec);

// Sets a key of the decoder's part of config.json, and reads it again. Null removes the key.
void set_model_key(Variant& variant, const std::string& key, const nlohmann::json& value);
// Writes the rotary bases and scalings of `config` in one spelling, and reads them again.
void set_rope(Variant& variant, const ModelConfig& config);
// Sets the kind of each layer, with a window of `window` tokens in the sliding ones. The family
// must have windows.
void set_windows(Variant& variant, const std::vector<bool>& sliding, int64_t window);

// Writes the variant into `folder` as a case folder (docs/cases.md). Returns the case that reads
// weights and batch from there.
CaseSpec write_variant(const Variant& variant, const std::string& folder);

}  // namespace shardproof::sim::relations
