#include "parallel/tp/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace shardproof {
namespace {

constexpr const char* kTp = "tp";

Cut even_or_chunk(int64_t dim, int64_t global_size, int64_t tp_size) {
  return global_size % tp_size == 0 ? Cut::even(dim, kTp) : Cut::chunk(dim, kTp);
}

Cut vocab_cut(int64_t dim, int64_t vocab_size, int64_t tp_size) {
  return vocab_size % tp_size == 0 ? Cut::even(dim, kTp)
                                   : Cut::padded(dim, kTp, round_up(vocab_size, tp_size));
}

Cut kv_head_cut(int64_t dim, int64_t kv_heads, int64_t tp_size) {
  return kv_heads % tp_size == 0 ? Cut::even(dim, kTp) : Cut::repeated(dim, kTp, kv_heads);
}

bool heads_fit(const ModelConfig& config, int64_t tp_size) {
  const int64_t kv_heads = config.num_key_value_heads;
  return config.num_attention_heads % tp_size == 0 &&
         (kv_heads % tp_size == 0 || tp_size % kv_heads == 0);
}

void refuse_heads_that_do_not_fit(const ModelConfig& config, int64_t tp_size) {
  if (heads_fit(config, tp_size)) return;
  std::vector<int64_t> working;
  for (int64_t size = 1; size <= config.num_attention_heads; ++size) {
    if (heads_fit(config, size)) working.push_back(size);
  }
  const std::string what =
      config.num_attention_heads % tp_size != 0
          ? fmt::format("num_attention_heads={} does not divide by tp={}",
                        config.num_attention_heads, tp_size)
          : fmt::format("num_key_value_heads={} neither divides by tp={} nor divides it",
                        config.num_key_value_heads, tp_size);
  throw_refused(what, fmt::format("tp = {} would work", fmt::join(working, ", ")));
}

// The size of the cut dim of a projection: query heads, kv heads, or the MLP's inner size.
struct Width {
  int64_t size;
  bool is_kv;
};

Width width_of(const ModelConfig& config, const SlotStyle& slot) {
  switch (slot.role) {
    case SlotRole::kKey:
    case SlotRole::kValue:
      return {config.num_key_value_heads * config.head_dim, true};
    case SlotRole::kQuery:
      return {config.num_attention_heads * config.head_dim, false};
    case SlotRole::kKeyValueUp:
      return {config.num_attention_heads * (config.latent.nope + config.latent.value), false};
    case SlotRole::kAttentionOut:
      return {config.num_attention_heads * config.value_dim(), false};
    case SlotRole::kExtraJoin:
      return {config.hidden_size, false};
    default:
      return {config.mlp_width(slot.slot), false};
  }
}

bool has_heads(SlotRole role) {
  return role == SlotRole::kQuery || role == SlotRole::kKey || role == SlotRole::kValue ||
         role == SlotRole::kKeyValueUp;
}

// Whether a linear's input is the residual stream: q, k, v, gate and up projections, lm_head.
bool reads_stream(SlotRole role) {
  return has_heads(role) || role == SlotRole::kGate || role == SlotRole::kUp ||
         role == SlotRole::kLmHead;
}

struct Placer {
  const ModelConfig& config;
  int64_t tp_size;
  bool sequence_parallel;

  // The layout of the residual stream: whole, or cut along the sequence over tp.
  Layout stream() const { return sequence_parallel ? Layout({Cut::even(1, kTp)}) : Layout(); }
  // A parameter that every rank holds whole and, with SP, applies to its own tokens only.
  ParameterPlacement on_stream() const {
    ParameterPlacement placement;
    if (sequence_parallel) placement.sum_grad_over = {kTp};
    return placement;
  }

  // The neighbors that hold the same part of a repeated cut, as an axis.
  std::vector<std::string> sharers_of(const Cut& cut) const {
    if (cut.kind != Cut::Kind::kRepeated) return {};
    return {fmt::format("{}%{}", kTp, tp_size / cut.parts)};
  }

  SlotPlacement column_parallel(const SlotStyle& slot) const {
    if (has_heads(slot.role)) refuse_heads_that_do_not_fit(config, tp_size);
    const Width width = width_of(config, slot);
    const auto cut = [&](int64_t dim) {
      return width.is_kv ? kv_head_cut(dim, config.num_key_value_heads, tp_size)
                         : even_or_chunk(dim, width.size, tp_size);
    };
    const ParameterPlacement rows{.layout = Layout({cut(0)}), .sum_grad_over = sharers_of(cut(0))};
    return {.inputs = {stream()}, .output = Layout({cut(-1)}), .weight = rows, .bias = rows};
  }

  // The output is gathered, so a cut may split heads. That of an extra head's join is the stream.
  SlotPlacement column_parallel_gathered(const SlotStyle& slot) const {
    const ParameterPlacement rows{
        .layout = Layout({even_or_chunk(0, width_of(config, slot).size, tp_size)})};
    const bool joins = slot.role == SlotRole::kExtraJoin;
    return {
        .inputs = {stream()}, .output = joins ? stream() : Layout(), .weight = rows, .bias = rows};
  }

  SlotPlacement row_parallel(const SlotStyle& slot, bool input_is_cut) const {
    const int64_t width = width_of(config, slot).size;
    return {.inputs = {input_is_cut ? Layout({even_or_chunk(-1, width, tp_size)}) : Layout()},
            .output = stream(),
            .weight = {.layout = Layout({even_or_chunk(1, width, tp_size)})},
            .bias = on_stream()};
  }

  SlotPlacement vocab_parallel_embedding() const {
    return {.output = stream(),
            .weight = {.layout = Layout({vocab_cut(0, config.vocab_size, tp_size)})}};
  }

  SlotPlacement vocab_parallel_lm_head() const {
    return {.inputs = {stream()},
            .output = Layout({vocab_cut(-1, config.vocab_size, tp_size)}),
            .weight = {.layout = Layout({vocab_cut(0, config.vocab_size, tp_size)})}};
  }

  SlotPlacement head_parallel_attention() const {
    refuse_heads_that_do_not_fit(config, tp_size);
    const Layout q({Cut::even(2, kTp)});
    const Cut kv = kv_head_cut(2, config.num_key_value_heads, tp_size);
    std::vector<std::string> kv_partial;
    if (kv.kind == Cut::Kind::kRepeated) kv_partial = {kTp};
    return {.inputs = {q, Layout({kv}), Layout({kv})},
            .input_partial_axes = {{}, kv_partial, kv_partial},
            .output = Layout({Cut::even(-1, kTp)}),
            .weight = {.layout = Layout({Cut::even(0, kTp)})}};  // of sinks
  }

  // All heads share one weight, and each rank has the addend of its own heads, also when ranks
  // share a kv head.
  SlotPlacement head_parallel_norm(SlotRole role) const {
    refuse_heads_that_do_not_fit(config, tp_size);
    const bool is_kv = role == SlotRole::kKeyNorm;
    const Cut cut = is_kv ? kv_head_cut(2, config.num_key_value_heads, tp_size) : Cut::even(2, kTp);
    const Layout heads({cut});
    std::vector<std::string> partial;
    if (cut.kind == Cut::Kind::kRepeated) partial = {kTp};
    return {.inputs = {heads},
            .input_partial_axes = {partial},
            .output = heads,
            .weight = {.sum_grad_over = {kTp}}};
  }

  SlotPlacement hidden_parallel_activation(const SlotStyle& slot) const {
    const Layout cut({even_or_chunk(-1, config.mlp_width(slot.slot), tp_size)});
    return {.inputs = {cut, cut}, .output = cut};
  }

  SlotPlacement on_sequence() const {
    return {.inputs = {stream()}, .output = stream(), .weight = on_stream()};
  }

  SlotPlacement of_latent(SlotRole role) const {
    if (role == SlotRole::kRotaryKey) return {.inputs = {stream()}};  // gathered
    return on_sequence();
  }

  SlotPlacement replicate(SlotRole role) const {
    if (opens_stream(role)) return {.output = stream()};
    if (reads_stream(role)) return {.inputs = {stream()}};
    return {};
  }
};

}  // namespace

bool opens_stream(SlotRole role) {
  return role == SlotRole::kEmbedding || role == SlotRole::kAttentionOut || role == SlotRole::kDown;
}

std::vector<int64_t> tp_parts(int64_t global_size, int64_t tp_size) {
  const int64_t part = ceil_divide(global_size, tp_size);
  std::vector<int64_t> parts;
  for (int64_t rank = 0; rank < tp_size; ++rank) {
    parts.push_back(std::clamp<int64_t>(global_size - rank * part, 0, part));
  }
  return parts;
}

SlotPlacement place_slot(const ModelConfig& config, int64_t tp_size, bool sequence_parallel,
                         const SlotStyle& slot) {
  if (tp_size == 1) return {};
  if (slot.role == SlotRole::kExperts && !sequence_parallel) {
    throw_refused(fmt::format("without sequence_parallel all {} ranks of tp have the same tokens, "
                              "and each would send them to {}",
                              tp_size, slot.slot),
                  "set tp = 1, or sequence_parallel: true");
  }
  if (slot.role == SlotRole::kRotaryKey && !sequence_parallel) {
    throw_refused(
        fmt::format("without sequence_parallel {} is the same on all {} ranks of tp, which "
                    "is not supported",
                    slot.slot, tp_size),
        "set tp = 1, or sequence_parallel: true");
  }
  const Placer placer{config, tp_size, sequence_parallel};
  switch (slot.style) {
    case TpStyle::kReplicate:
      return placer.replicate(slot.role);
    case TpStyle::kColumnParallel:
      return placer.column_parallel(slot);
    case TpStyle::kColumnParallelGathered:
      return placer.column_parallel_gathered(slot);
    case TpStyle::kRowParallel:
      return placer.row_parallel(slot, true);
    case TpStyle::kRowParallelScattered:
      return placer.row_parallel(slot, false);
    case TpStyle::kVocabParallelEmbedding:
      return placer.vocab_parallel_embedding();
    case TpStyle::kVocabParallelLmHead:
      return placer.vocab_parallel_lm_head();
    case TpStyle::kHeadParallelAttention:
      return placer.head_parallel_attention();
    case TpStyle::kHeadParallelNorm:
      return placer.head_parallel_norm(slot.role);
    case TpStyle::kHiddenParallelActivation:
      return placer.hidden_parallel_activation(slot);
    case TpStyle::kSequenceLatent:
      return placer.of_latent(slot.role);
    case TpStyle::kSequenceNorm:
    case TpStyle::kSequenceResidual:
    case TpStyle::kSequenceExperts:
      return placer.on_sequence();
  }
  SHARDPROOF_ASSERT(false, "unknown style");
  return {};
}

}  // namespace shardproof
