// The tensor-parallel plan: a table from slot names to styles.
//
//   pattern                     style                    with sequence parallelism
//   model.embed_tokens          VocabParallelEmbedding
//   *.input_layernorm           Replicate                SequenceNorm
//   *.self_attn.[qkv]_proj      ColumnParallel
//   *.self_attn.[qk]_norm       HeadParallelNorm
//   *.self_attn.attention       HeadParallelAttention
//   *.self_attn.o_proj          RowParallel
//   *.attention_residual        Replicate                SequenceResidual
//   *.post_attention_layernorm  Replicate                SequenceNorm
//   *.*_feedforward_layernorm   Replicate                SequenceNorm
//   *.mlp.{gate,up}_proj        ColumnParallel
//   *.mlp.activation            HiddenParallelActivation
//   *.mlp.down_proj             RowParallel
//   *.mlp_residual              Replicate                SequenceResidual
//   model.norm                  Replicate                SequenceNorm
//   *.mlp.{gate,experts}        Replicate                SequenceExperts
//   *.self_attn.*_a_*           Replicate                SequenceLatent
//   *.self_attn.rotary_key      Replicate                SequenceLatent
//   *.eh_proj                   ColumnParallelGathered   the same, output cut along the sequence
//   lm_head                     VocabParallelLmHead
//
// The architecture's plan goes by the slots' roles (model/slot_role.h): Qwen3 and Gemma3 have q and
// k norms, and only Gemma3 has feedforward norms.
//
// A scenario's custom plan, {"pattern": "style"}, overrides it; a `*` matches any text. If several
// of its patterns match, the one with most literal characters counts.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum_names.h"
#include "base/training_choices.h"
#include "model/config.h"

namespace shardproof {

enum class TpStyle {
  kReplicate,                 // whole on every tp rank
  kColumnParallel,            // linear, weight rows cut; the output's last dim stays cut
  kColumnParallelGathered,    // ColumnParallel with a gathered output
  kRowParallel,               // linear, weight columns cut; the input's last dim is already cut
  kRowParallelScattered,      // RowParallel that cuts the whole input
  kVocabParallelEmbedding,    // weight rows (tokens) cut
  kVocabParallelLmHead,       // weight rows (tokens) cut, logits stay cut
  kHeadParallelAttention,     // each rank attends with its own heads
  kHeadParallelNorm,          // of q or k, each rank's own heads
  kHiddenParallelActivation,  // elementwise on a cut last dim
  kSequenceNorm,              // on this rank's part of the sequence
  kSequenceResidual,          // on this rank's part of the sequence
  kSequenceExperts,           // a router or experts, on this rank's part of the sequence
  kSequenceLatent,            // latents of attention, on this rank's part of the sequence
};
constexpr std::array<const char*, 14> names_of(TpStyle) {
  return {"Replicate",
          "ColumnParallel",
          "ColumnParallelGathered",
          "RowParallel",
          "RowParallelScattered",
          "VocabParallelEmbedding",
          "VocabParallelLmHead",
          "HeadParallelAttention",
          "HeadParallelNorm",
          "HiddenParallelActivation",
          "SequenceNorm",
          "SequenceResidual",
          "SequenceExperts",
          "SequenceLatent"};
}

struct SlotStyle {
  std::string slot;
  SlotRole role;
  TpStyle style;
};

struct TensorParallelOptions {
  // Cuts the residual stream between the linears along the sequence over tp.
  bool sequence_parallel = false;
  // Column-parallel linears reduce the gradient of their input while that of their weight is
  // computed (async_linear.h).
  bool async_grad = false;
  // Linears gather along the sequence into one shared buffer (gather_buffer.h).
  bool gather_buffer = false;
  // Microbatches whose weight gradients of column-parallel linears are computed after the last
  // backward (deferred_gradients.h); 0: none.
  int64_t deferred_wgrad = 0;
  // kAfter: column-parallel and row-parallel linears leave their bias to BiasAfter, except those
  // that gather their output.
  BiasPlace bias = BiasPlace::kInLayer;
  // A checkpoint of a region keeps its input spread over tp (spread_activation.h). Not with
  // sequence_parallel, which cuts the residual stream itself.
  bool spread_checkpoints = false;
  // Residuals and the norms behind them run in one pass (fused_norms.h); for scoring alone.
  bool fused_norms = false;
  // Each rank draws the first values of its parts of matrices from its own stream of this seed
  // (stream_init.h); none: the parts of one master weight.
  std::optional<int64_t> own_stream_seed = {};
  // {"pattern": "style"}; null: the architecture's plan without changes.
  nlohmann::json custom_plan = nullptr;
};

// The style of a role in the architecture's plan.
TpStyle style_of(SlotRole role, bool sequence_parallel);

// The style of every slot. Throws Error(kBadInput) when a custom plan is not a {pattern: style},
// names an unknown style, has a pattern that matches no slot, or two that count equally and
// disagree; Error(kRefused) when styles do not fit their slots or each other.
std::vector<SlotStyle> resolve_plan(const ModelConfig& config,
                                    const TensorParallelOptions& options);

bool matches_pattern(std::string_view pattern, std::string_view name);

}  // namespace shardproof
