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
//   lm_head                     VocabParallelLmHead
//
// A family has those rows that match one of its slots (layer_slot_names): q and k norms in Qwen3
// and Gemma3, feedforward norms in Gemma3 alone.
//
// A `*` stands for any text. A scenario's custom plan is the same table, {"pattern": "style"}, laid
// over the architecture's own: where several of its patterns match, the one with most literal
// characters counts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace shardproof {

enum class TpStyle {
  kReplicate,                 // whole on every tp rank
  kColumnParallel,            // linear, weight rows cut; the output's last dim stays cut
  kColumnParallelGathered,    // the same, and the output is gathered
  kRowParallel,               // linear, weight columns cut; the input's last dim is cut already
  kRowParallelScattered,      // the same, and the whole input is cut here
  kVocabParallelEmbedding,    // weight rows (tokens) cut
  kVocabParallelLmHead,       // weight rows (tokens) cut, logits stay cut
  kHeadParallelAttention,     // each rank attends with its own heads
  kHeadParallelNorm,          // of q or k, each rank's own heads
  kHiddenParallelActivation,  // elementwise on a cut last dim
  kSequenceNorm,              // on this rank's part of the sequence
  kSequenceResidual,          // on this rank's part of the sequence
};
const char* style_name(TpStyle style);             // "ColumnParallel"
TpStyle style_from_name(const std::string& name);  // Error(kBadInput) with the nearest name

struct PlanRow {
  std::string pattern;
  TpStyle style;
};

struct SlotStyle {
  std::string slot;
  TpStyle style;
};

struct TensorParallelOptions {
  // The residual stream between the linears is cut along the sequence over tp.
  bool sequence_parallel = false;
  // Column-parallel linears reduce the gradient of their input behind that of their weight
  // (async_linear.h).
  bool async_grad = false;
  // What linears gather along the sequence comes into one buffer (gather_buffer.h).
  bool gather_buffer = false;
  // {"pattern": "style"}; null: the architecture's own plan.
  nlohmann::json custom_plan = nullptr;
};

// The architecture's own plan: the rows above that match a slot of it.
std::vector<PlanRow> tensor_parallel_plan(const ModelConfig& config, bool sequence_parallel);

// The slots that a decoder of this config has, in forward order.
std::vector<std::string> decoder_slot_names(const ModelConfig& config);

// The style of every slot. Throws Error(kBadInput): a custom plan that is no {pattern: style}, an
// unknown style, a pattern that matches no slot, two equally long patterns that disagree;
// Error(kRefused): styles that do not fit their slot or each other.
std::vector<SlotStyle> resolve_plan(const ModelConfig& config,
                                    const TensorParallelOptions& options);

bool matches_pattern(std::string_view pattern, std::string_view name);

}  // namespace shardproof
