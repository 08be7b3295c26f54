#include "parallel/tp/plan_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"

namespace shardproof {
namespace {

using Styles = std::map<std::string, TpStyle>;

std::string names_of(const std::vector<TpStyle>& styles) {
  std::vector<std::string> names;
  for (const TpStyle style : styles) names.emplace_back(style_name(style));
  return fmt::format("{}", fmt::join(names, " or "));
}

void demand(const Styles& styles, const std::string& slot, const std::vector<TpStyle>& fitting,
            const std::string& because) {
  const TpStyle style = styles.at(slot);
  if (std::find(fitting.begin(), fitting.end(), style) != fitting.end()) return;
  throw Error({.kind = ErrorKind::kRefused,
               .what = fmt::format("the plan gives {} the style {}, but {}", slot,
                                   style_name(style), because),
               .fix = fmt::format("give it {}", names_of(fitting))});
}

bool leaves_cut(TpStyle style) { return style == TpStyle::kColumnParallel; }

// A region: `openers` project the residual stream, `core` computes, `closer` projects back.
void check_region(const Styles& styles, const std::vector<std::string>& openers,
                  const std::string& core, TpStyle cut_core, const std::string& closer) {
  for (const std::string& opener : openers) {
    demand(styles, opener,
           {TpStyle::kColumnParallel, TpStyle::kColumnParallelGathered, TpStyle::kReplicate},
           "it projects the residual stream");
  }
  const bool cut = leaves_cut(styles.at(openers.front()));
  for (const std::string& opener : openers) {
    if (leaves_cut(styles.at(opener)) == cut) continue;
    const std::vector<TpStyle> fitting =
        cut ? std::vector{TpStyle::kColumnParallel}
            : std::vector{TpStyle::kColumnParallelGathered, TpStyle::kReplicate};
    demand(styles, opener, fitting,
           fmt::format("{} leaves its output {}", openers.front(), cut ? "cut" : "whole"));
  }
  const std::string given =
      fmt::format("{} leaves its output {}", openers.front(), cut ? "cut over tp" : "whole");
  demand(styles, core, {cut ? cut_core : TpStyle::kReplicate}, given);
  demand(styles, closer,
         cut ? std::vector{TpStyle::kRowParallel}
             : std::vector{TpStyle::kRowParallelScattered, TpStyle::kReplicate},
         given);
}

// The styles of norms and residual additions on the residual stream, and the reason.
struct StreamStyles {
  TpStyle norm, residual;
  std::string because;
};

void check_layer(const Styles& styles, const std::string& layer, const ModelConfig& config,
                 const StreamStyles& stream) {
  for (const std::string& part : layer_slot_names(config.traits())) {
    if (part.ends_with("layernorm")) demand(styles, layer + part, {stream.norm}, stream.because);
    if (part.ends_with("_residual")) {
      demand(styles, layer + part, {stream.residual}, stream.because);
    }
  }
  const std::string attention = layer + "self_attn.";
  check_region(styles, {attention + "q_proj", attention + "k_proj", attention + "v_proj"},
               attention + "attention", TpStyle::kHeadParallelAttention, attention + "o_proj");
  if (config.traits().qk_norm) {
    const bool cut = leaves_cut(styles.at(attention + "q_proj"));
    for (const char* norm : {"q_norm", "k_norm"}) {
      demand(styles, attention + norm, {cut ? TpStyle::kHeadParallelNorm : TpStyle::kReplicate},
             fmt::format("it sees {} heads", cut ? "its rank's" : "all"));
    }
  }
  check_region(styles, {layer + "mlp.gate_proj", layer + "mlp.up_proj"}, layer + "mlp.activation",
               TpStyle::kHiddenParallelActivation, layer + "mlp.down_proj");
}

}  // namespace

void check_styles_fit(const ModelConfig& config, bool sequence_parallel,
                      const std::vector<SlotStyle>& slot_styles) {
  Styles styles;
  for (const SlotStyle& slot : slot_styles) styles[slot.slot] = slot.style;
  const StreamStyles stream{
      .norm = sequence_parallel ? TpStyle::kSequenceNorm : TpStyle::kReplicate,
      .residual = sequence_parallel ? TpStyle::kSequenceResidual : TpStyle::kReplicate,
      .because = sequence_parallel ? "with sequence_parallel it sees only its rank's tokens"
                                   : "without sequence_parallel it sees all tokens"};
  demand(styles, "model.embed_tokens", {TpStyle::kVocabParallelEmbedding, TpStyle::kReplicate},
         "it looks up tokens");
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    check_layer(styles, fmt::format("model.layers.{}.", i), config, stream);
  }
  demand(styles, "model.norm", {stream.norm}, stream.because);
  demand(styles, "lm_head", {TpStyle::kVocabParallelLmHead, TpStyle::kReplicate},
         "it gives the logits");
  if (!config.tie_word_embeddings) return;
  const bool cut = styles.at("model.embed_tokens") == TpStyle::kVocabParallelEmbedding;
  demand(styles, "lm_head", {cut ? TpStyle::kVocabParallelLmHead : TpStyle::kReplicate},
         fmt::format("its weight is tied to model.embed_tokens, which is {}",
                     cut ? "cut over tp" : "whole"));
}

}  // namespace shardproof
