// The families of decoders and their differences. No LibTorch here.
//
//                              llama      qwen2        qwen3        gemma3
//   biases of q, k and v       option     always       option       option
//   bias of o                  option     never        option       option
//   biases of the MLP          option     never        never        never
//   q and k normalized         -          -            per head     per head
//   norms multiply by          weight     weight       weight       1 + weight
//   norms of the outputs of
//   attention and MLP          -          -            -            before the residual sum
//   embedding                  as it is   as it is     as it is     times sqrt(hidden_size)
//   scores times               D^-0.5     D^-0.5       D^-0.5       query_pre_attn_scalar^-0.5
//   sliding window             -          last layers  last layers  all but every sixth layer
//   rope base                  one        one          one          another where the window slides
//
// mixtral is a llama without biases, qwen2_moe a qwen2 and qwen3_moe a qwen3, with experts in place
// of the MLP of all layers, or of those that decoder_sparse_step and mlp_only_layers leave
// (model/experts.h). qwen2_moe has a shared MLP beside them, times the sigmoid of one number per
// token; its biases of q, k and v are an option. None of them has windows here. gpt_oss has windows
// in every other layer, biases wherever there is a product, a sink for each head of attention, and
// experts with a clamped gate, whose weights are transposed. deepseek_v3 attends over a latent of
// keys and values (LatentSizes of model/config.h), and has groups of experts with a selection bias
// in its last layers, beside a shared MLP without a gate. llama_mtp is a llama with extra heads,
// each of which predicts one token further. Everything else has one definition (model/decoder.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardproof {

enum class WindowRule {
  kNone,        // every layer sees all tokens
  kLastLayers,  // with use_sliding_window: the layers from max_window_layers on
  kPattern,     // all but every sliding_window_pattern-th layer
  kInTurn,      // the first, the third, ..
};

enum class ExpertLayers {
  kNone,
  kAll,
  kBySteps,  // every decoder_sparse_step-th layer that mlp_only_layers does not name
  kLast,     // from layer first_k_dense_replace on
};

// How the logits of a router become scores (model/moe/router_rule.h).
enum class RouterScores {
  kSoftmaxOfChosen,  // the K largest logits; their softmax is the weights (gpt_oss, mixtral)
  kSoftmaxOfAll,     // softmax over N; the K largest (qwen3_moe, deepseek_v2)
  kSigmoid,          // sigmoid of each logit; the K largest (deepseek_v3)
};
constexpr std::array<const char*, 3> names_of(RouterScores) {
  return {"softmax_of_chosen", "softmax_of_all", "sigmoid"};
}

struct FamilyTraits {
  const char* name;  // "qwen2"
  bool attention_bias_option = false, mlp_bias_option = false;
  bool attention_bias = false;   // what the option is if it is left out
  bool qkv_bias = false;         // for q, k and v, never for o
  bool qkv_bias_option = false;  // the key qkv_bias may take them away
  bool qk_norm = false;
  bool unit_offset_norm = false;
  bool output_norms = false;
  bool scaled_embedding = false;
  bool own_score_scale = false;  // query_pre_attn_scalar
  bool local_rope = false;
  WindowRule window = WindowRule::kNone;
  // Hugging Face's values for keys that a config.json leaves out. 0: no default.
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  bool tied = false;
  int64_t pad_token_id = -1;  // -1: none
  int64_t vocab_size = 0, num_attention_heads = 0;
  int64_t num_key_value_heads = 0;  // 0: equal to the number of query heads
  int64_t head_dim = 0;             // 0: hidden_size / num_attention_heads
  double rope_theta = 10000.0;
  double rms_norm_eps = 1e-6;
  ExpertLayers experts = ExpertLayers::kNone;
  bool has_experts() const { return experts != ExpertLayers::kNone; }
  RouterScores scores = RouterScores::kSoftmaxOfChosen;
  int64_t num_experts = 0, num_experts_per_tok = 0;
  const char* router = "mlp.gate";  // the name of its slot
  bool router_bias = false;
  const char* shared_expert = "mlp.shared_expert";  // the slots of the shared MLP begin with it
  bool shared_gate = true;
  bool shared_by_count =
      false;  // n_shared_experts times the width of an expert is the shared MLP's
  bool latent_attention = false;  // ModelConfig::latent
  bool sinks = false;             // a logit of each head in the denominator of its softmax
  bool clamped_experts = false;   // ExpertForm: kClampedSwiglu, and columns in turn with biases
  std::optional<int64_t> extra_heads = std::nullopt;  // by default; empty: it cannot have any
  bool yarn_by_default = false;       // 32 times 4096 positions, with a ramp that is not truncated
  int64_t moe_intermediate_size = 0;  // 0: experts are as wide as other MLPs
  int64_t shared_expert_intermediate_size = 0;  // 0: no shared MLP with a width of its own
  // The family that equals this one when all experts of a layer are equal; null: there is none.
  const char* with_equal_experts = nullptr;
};

// All of them, in the order of the table.
const std::vector<FamilyTraits>& all_families();
// The row of a family; asserts that it exists.
const FamilyTraits& family_traits(const std::string& name);
// The same; null when there is no such family.
const FamilyTraits* find_family(const std::string& name);

// A name of a family in config.json. With `text_inside` its decoder is described in "text_config".
struct Architecture {
  const char* name;  // "Gemma3ForCausalLM"
  const char* model_type;
  const char* family;
  bool text_inside = false;
};
std::vector<Architecture> known_architectures();

}  // namespace shardproof
