#include "parallel/tp/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "parallel/tp/plan_check.h"

namespace shardproof {
namespace {

size_t literal_characters(const std::string& pattern) {
  return pattern.size() - static_cast<size_t>(std::ranges::count(pattern, '*'));
}

TpStyle style_from_name(const std::string& name) {
  if (const auto style = find_enum<TpStyle>(name)) return *style;
  const std::string near = nearest_name(name, names_of(TpStyle{}));
  throw_bad_input(fmt::format("unknown plan style '{}'", name),
                  near.empty()
                      ? fmt::format("known styles: {}", fmt::join(names_of(TpStyle{}), ", "))
                      : fmt::format("did you mean '{}'?", near));
}

struct PlanRow {
  std::string pattern;
  TpStyle style;
};

std::vector<PlanRow> custom_rows(const nlohmann::json& plan) {
  if (plan.is_null()) return {};
  if (!plan.is_object()) {
    throw_bad_input("the custom plan is not a table of slot patterns and styles",
                    R"(write it as {"*.mlp.down_proj": "RowParallel"})");
  }
  std::vector<PlanRow> rows;
  for (const auto& [pattern, style] : plan.items()) {
    if (!style.is_string()) {
      throw_bad_input(fmt::format("the custom plan's style for '{}' is not a name", pattern),
                      "give one of the style names, such as ColumnParallel");
    }
    rows.push_back({.pattern = pattern, .style = style_from_name(style.get<std::string>())});
  }
  return rows;
}

// The slots that a decoder of this config has, in forward order.
std::vector<SlotName> decoder_slots(const ModelConfig& config) {
  std::vector<SlotName> slots = {{"model.embed_tokens", SlotRole::kEmbedding}};
  for (int64_t i = 0; i < config.layers_with_heads(); ++i) {
    if (i == config.num_hidden_layers) slots.push_back({"model.norm", SlotRole::kStreamNorm});
    for (const auto& [part, role] : layer_slots(config, i)) {
      slots.push_back({fmt::format("model.layers.{}.{}", i, part), role});
    }
  }
  if (config.extra_heads == 0) slots.push_back({"model.norm", SlotRole::kStreamNorm});
  slots.push_back({"lm_head", SlotRole::kLmHead});
  return slots;
}

// The slots, and the patterns of all layers, with which a wrong pattern is compared.
std::vector<std::string> likely_patterns(const ModelConfig& config) {
  std::vector<std::string> likely;
  for (const SlotName& slot : decoder_slots(config)) likely.push_back(slot.name);
  for (int64_t i = 0; i < config.layers_with_heads(); ++i) {
    for (const auto& [part, role] : layer_slots(config, i)) {
      likely.push_back("*." + part);
      likely.push_back("model.layers.*." + part);
      likely.push_back("*." + part.substr(part.rfind('.') + 1));
    }
  }
  return likely;
}

void refuse_idle_patterns(const std::vector<PlanRow>& rows, const std::vector<SlotName>& slots,
                          const ModelConfig& config) {
  for (const PlanRow& row : rows) {
    const bool used = std::ranges::any_of(
        slots, [&](const SlotName& slot) { return matches_pattern(row.pattern, slot.name); });
    if (used) continue;
    const std::string near = nearest_name(row.pattern, likely_patterns(config));
    throw_bad_input(
        fmt::format("the custom plan's pattern '{}' matches no slot of the model", row.pattern),
        near.empty() ? "name slots as weights are named, without .weight"
                     : fmt::format("the nearest slot is '{}'", near));
  }
}

// The matching row with most literal characters; null: no row matches.
const PlanRow* longest_match(const std::vector<PlanRow>& rows, const std::string& slot) {
  const PlanRow* best = nullptr;
  for (const PlanRow& row : rows) {
    if (!matches_pattern(row.pattern, slot)) continue;
    const size_t length = literal_characters(row.pattern);
    if (best == nullptr || length > literal_characters(best->pattern)) {
      best = &row;
    } else if (length == literal_characters(best->pattern) && row.style != best->style) {
      throw_bad_input(fmt::format("'{}' and '{}' of the custom plan both match {} and give it "
                                  "different styles",
                                  best->pattern, row.pattern, slot),
                      "make one of the two patterns longer");
    }
  }
  return best;
}

}  // namespace

// Greedy; after a mismatch the last star takes one more character.
bool matches_pattern(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0, star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

TpStyle style_of(SlotRole role, bool sequence_parallel) {
  if (is_on_stream(role)) {
    if (!sequence_parallel) return TpStyle::kReplicate;
    return role == SlotRole::kResidual ? TpStyle::kSequenceResidual : TpStyle::kSequenceNorm;
  }
  switch (role) {
    case SlotRole::kEmbedding:
      return TpStyle::kVocabParallelEmbedding;
    case SlotRole::kQuery:
    case SlotRole::kKey:
    case SlotRole::kValue:
    case SlotRole::kKeyValueUp:
    case SlotRole::kGate:
    case SlotRole::kUp:
      return TpStyle::kColumnParallel;
    case SlotRole::kQueryNorm:
    case SlotRole::kKeyNorm:
      return TpStyle::kHeadParallelNorm;
    case SlotRole::kAttention:
      return TpStyle::kHeadParallelAttention;
    case SlotRole::kActivation:
      return TpStyle::kHiddenParallelActivation;
    case SlotRole::kAttentionOut:
    case SlotRole::kDown:
      return TpStyle::kRowParallel;
    case SlotRole::kRouter:
    case SlotRole::kSelection:
    case SlotRole::kRouteWeights:
    case SlotRole::kExperts:
    case SlotRole::kSharedGate:
    case SlotRole::kSharedSum:
      return sequence_parallel ? TpStyle::kSequenceExperts : TpStyle::kReplicate;
    case SlotRole::kQueryDown:
    case SlotRole::kLatentNorm:
    case SlotRole::kKeyValueDown:
    case SlotRole::kRotaryKey:
      return sequence_parallel ? TpStyle::kSequenceLatent : TpStyle::kReplicate;
    case SlotRole::kExtraJoin:
      return TpStyle::kColumnParallelGathered;
    case SlotRole::kLmHead:
      return TpStyle::kVocabParallelLmHead;
    default:
      break;
  }
  SHARDPROOF_ASSERT(false, "a role with a style");
}

std::vector<SlotStyle> resolve_plan(const ModelConfig& config,
                                    const TensorParallelOptions& options) {
  const std::vector<SlotName> slots = decoder_slots(config);
  const std::vector<PlanRow> custom = custom_rows(options.custom_plan);
  refuse_idle_patterns(custom, slots, config);
  std::vector<SlotStyle> styles;
  for (const auto& [name, role] : slots) {
    const PlanRow* row = longest_match(custom, name);
    const TpStyle style = row ? row->style : style_of(role, options.sequence_parallel);
    styles.push_back({.slot = name, .role = role, .style = style});
  }
  check_styles_fit(config, options.sequence_parallel, styles);
  return styles;
}

}  // namespace shardproof
