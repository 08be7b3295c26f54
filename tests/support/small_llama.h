// The case of a small Llama, for tests of what a rank takes.
#pragma once

#include "sim/case/inputs/case_data.h"

namespace shardproof::sim {

inline CaseSpec small_llama_case(int64_t layers) {
  CaseSpec spec;
  spec.model = {{"architectures", {"LlamaForCausalLM"}},
                {"vocab_size", 96},
                {"hidden_size", 48},
                {"intermediate_size", 96},
                {"num_attention_heads", 4},
                {"num_key_value_heads", 2},
                {"num_hidden_layers", layers},
                {"rms_norm_eps", 1e-6}};
  return spec;
}

}  // namespace shardproof::sim
