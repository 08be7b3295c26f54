#include "parallel/tp/plan_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace shardproof {
namespace {

void demand(const SlotStyle& slot, const std::vector<TpStyle>& fitting,
            const std::string& because) {
  if (std::find(fitting.begin(), fitting.end(), slot.style) != fitting.end()) return;
  throw_refused(
      fmt::format("the plan gives {} the style {}, but {}", slot.slot, slot.style, because),
      fmt::format("give it {}", fmt::join(fitting, " or ")));
}

bool leaves_cut(const SlotStyle& slot) { return slot.style == TpStyle::kColumnParallel; }

// The slots of one layer, or of the parts outside of all layers.
class SlotStyles {
 public:
  void add(const SlotStyle& slot) { slots_.push_back(&slot); }
  const std::vector<const SlotStyle*>& all() const { return slots_; }
  const SlotStyle* find(SlotRole role) const {
    const auto found = std::find_if(slots_.begin(), slots_.end(),
                                    [&](const SlotStyle* slot) { return slot->role == role; });
    return found == slots_.end() ? nullptr : *found;
  }
  const SlotStyle& at(SlotRole role) const {
    SHARDPROOF_ASSERT(find(role) != nullptr, "every layer has this slot");
    return *find(role);
  }

 private:
  std::vector<const SlotStyle*> slots_;
};

// A region: `openers` project the residual stream, `core` computes, `closer` projects back.
void check_region(const SlotStyles& styles, const std::vector<SlotRole>& openers, SlotRole core,
                  TpStyle cut_core, SlotRole closer) {
  for (const SlotRole opener : openers) {
    demand(styles.at(opener),
           {TpStyle::kColumnParallel, TpStyle::kColumnParallelGathered, TpStyle::kReplicate},
           "it projects the residual stream");
  }
  const SlotStyle& first = styles.at(openers.front());
  const bool cut = leaves_cut(first);
  for (const SlotRole opener : openers) {
    if (leaves_cut(styles.at(opener)) == cut) continue;
    const std::vector<TpStyle> fitting =
        cut ? std::vector{TpStyle::kColumnParallel}
            : std::vector{TpStyle::kColumnParallelGathered, TpStyle::kReplicate};
    demand(styles.at(opener), fitting,
           fmt::format("{} leaves its output {}", first.slot, cut ? "cut" : "whole"));
  }
  const std::string given =
      fmt::format("{} leaves its output {}", first.slot, cut ? "cut over tp" : "whole");
  demand(styles.at(core), {cut ? cut_core : TpStyle::kReplicate}, given);
  demand(styles.at(closer),
         cut ? std::vector{TpStyle::kRowParallel}
             : std::vector{TpStyle::kRowParallelScattered, TpStyle::kReplicate},
         given);
}

void check_stream(const SlotStyle& slot, bool sequence_parallel) {
  if (!is_on_stream(slot.role)) return;
  demand(slot, {style_of(slot.role, sequence_parallel)},
         sequence_parallel ? "with sequence_parallel it sees only its rank's tokens"
                           : "without sequence_parallel it sees all tokens");
}

void check_layer(const SlotStyles& styles, bool sequence_parallel) {
  using Role = SlotRole;
  for (const SlotStyle* slot : styles.all()) check_stream(*slot, sequence_parallel);
  const bool latent = styles.find(Role::kKeyValueUp) != nullptr;
  for (const SlotStyle* slot : styles.all()) {
    const bool of_latent = slot->role == Role::kQuery || slot->role == Role::kKeyValueUp ||
                           slot->role == Role::kQueryDown || slot->role == Role::kKeyValueDown ||
                           slot->role == Role::kLatentNorm || slot->role == Role::kRotaryKey;
    if (!latent || !of_latent) continue;
    demand(*slot, {style_of(slot->role, sequence_parallel)},
           "attention over latents is cut along its heads alone");
  }
  if (styles.find(Role::kExtraJoin) != nullptr) {
    demand(styles.at(Role::kExtraJoin), {TpStyle::kColumnParallelGathered},
           "it joins two streams into one");
  }
  const std::vector<Role> openers = latent ? std::vector{Role::kQuery, Role::kKeyValueUp}
                                           : std::vector{Role::kQuery, Role::kKey, Role::kValue};
  check_region(styles, openers, Role::kAttention, TpStyle::kHeadParallelAttention,
               Role::kAttentionOut);
  const bool cut = leaves_cut(styles.at(Role::kQuery));
  for (const Role role : {Role::kQueryNorm, Role::kKeyNorm}) {
    if (styles.find(role) == nullptr) continue;
    demand(styles.at(role), {cut ? TpStyle::kHeadParallelNorm : TpStyle::kReplicate},
           fmt::format("it sees {} heads", cut ? "its rank's" : "all"));
  }
  if (styles.find(Role::kExperts) != nullptr) {
    for (const Role role : {Role::kRouter, Role::kSelection, Role::kRouteWeights, Role::kExperts,
                            Role::kSharedGate, Role::kSharedSum}) {
      if (styles.find(role) == nullptr) continue;
      demand(styles.at(role), {style_of(role, sequence_parallel)},
             "a router and its experts are not cut over tp");
    }
    if (styles.find(Role::kGate) == nullptr) return;
  }
  check_region(styles, {Role::kGate, Role::kUp}, Role::kActivation,
               TpStyle::kHiddenParallelActivation, Role::kDown);
}

// "model.layers.3." of a slot in a layer; "" outside of all layers.
std::string layer_of(const std::string& slot) {
  if (!slot.starts_with("model.layers.")) return "";
  return slot.substr(0, slot.find('.', std::string_view("model.layers.").size()) + 1);
}

}  // namespace

void check_styles_fit(const ModelConfig& config, bool sequence_parallel,
                      const std::vector<SlotStyle>& slot_styles) {
  SlotStyles outside;
  std::vector<std::pair<std::string, SlotStyles>> layers;  // in forward order
  for (const SlotStyle& slot : slot_styles) {
    const std::string layer = layer_of(slot.slot);
    if (!layer.empty() && (layers.empty() || layers.back().first != layer)) {
      layers.emplace_back(layer, SlotStyles());
    }
    (layer.empty() ? outside : layers.back().second).add(slot);
  }
  demand(outside.at(SlotRole::kEmbedding), {TpStyle::kVocabParallelEmbedding, TpStyle::kReplicate},
         "it looks up tokens");
  for (const auto& [name, styles] : layers) check_layer(styles, sequence_parallel);
  for (const SlotStyle* slot : outside.all()) check_stream(*slot, sequence_parallel);
  const SlotStyle& head = outside.at(SlotRole::kLmHead);
  demand(head, {TpStyle::kVocabParallelLmHead, TpStyle::kReplicate}, "it gives the logits");
  for (const auto& [name, styles] : layers) {
    for (const SlotRole role : {SlotRole::kEmbedding, SlotRole::kLmHead}) {
      const SlotStyle* shared = styles.find(role);
      if (shared == nullptr) continue;
      demand(*shared, {outside.at(role).style},
             fmt::format("its weight is that of {}", outside.at(role).slot));
    }
  }
  if (!config.tie_word_embeddings) return;
  const SlotStyle& embedding = outside.at(SlotRole::kEmbedding);
  const bool cut = embedding.style == TpStyle::kVocabParallelEmbedding;
  demand(head, {cut ? TpStyle::kVocabParallelLmHead : TpStyle::kReplicate},
         fmt::format("its weight is tied to {}, which is {}", embedding.slot,
                     cut ? "cut over tp" : "whole"));
}

}  // namespace shardproof
