// The rotary settings of a Hugging Face config, in both spellings. No LibTorch here.
#pragma once

#include "model/config.h"
#include "model/config_fields.h"

namespace shardproof {

// Fills the rope fields of `model`, whose family is known.
//
//   transformers 4   rope_theta, rope_scaling; Gemma3: rope_local_base_freq, and the scaling
//                    counts for the layers without a sliding window
//   transformers 5   rope_parameters: {rope_theta, rope_type, ..}; Gemma3: one such object for
//                    "full_attention" and one for "sliding_attention"
//
// Throws Error(kBadInput): both spellings that differ, a constant that is missing; kRefused: a kind
// of scaling that is not supported.
void read_rope(const ConfigFields& config, ModelConfig& model);

}  // namespace shardproof
