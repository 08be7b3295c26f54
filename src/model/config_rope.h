// The rotary settings of a Hugging Face config, in both spellings. No LibTorch here.
#pragma once

#include "model/config.h"
#include "model/config_fields.h"

namespace shardproof {

// Fills the rope fields of `model`, whose family is known.
//
//   transformers 4   rope_theta, rope_scaling; Gemma3: rope_local_base_freq, and rope_scaling
//                    applies only to layers without a sliding window
//   transformers 5   rope_parameters: {rope_theta, rope_type, ..}; Gemma3: one such object for
//                    "full_attention" and one for "sliding_attention"
//
// Throws a ConfigProblem: bad input when both spellings are present and differ, and for a missing
// constant; a refusal of an unsupported kind of scaling.
void read_rope(const ConfigFields& config, ModelConfig& model);

}  // namespace shardproof
