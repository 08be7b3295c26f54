#include "parallel/tp/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/error.h"
#include "parallel/tp/plan_check.h"

namespace shardproof {
namespace {

constexpr std::array<std::pair<TpStyle, const char*>, 12> kStyleNames = {{
    {TpStyle::kReplicate, "Replicate"},
    {TpStyle::kColumnParallel, "ColumnParallel"},
    {TpStyle::kColumnParallelGathered, "ColumnParallelGathered"},
    {TpStyle::kRowParallel, "RowParallel"},
    {TpStyle::kRowParallelScattered, "RowParallelScattered"},
    {TpStyle::kVocabParallelEmbedding, "VocabParallelEmbedding"},
    {TpStyle::kVocabParallelLmHead, "VocabParallelLmHead"},
    {TpStyle::kHeadParallelAttention, "HeadParallelAttention"},
    {TpStyle::kHeadParallelNorm, "HeadParallelNorm"},
    {TpStyle::kHiddenParallelActivation, "HiddenParallelActivation"},
    {TpStyle::kSequenceNorm, "SequenceNorm"},
    {TpStyle::kSequenceResidual, "SequenceResidual"},
}};

size_t literal_characters(const std::string& pattern) {
  return pattern.size() - static_cast<size_t>(std::count(pattern.begin(), pattern.end(), '*'));
}

std::vector<PlanRow> custom_rows(const nlohmann::json& plan) {
  if (plan.is_null()) return {};
  if (!plan.is_object()) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = "the custom plan is not a table of slot patterns and styles",
                 .fix = R"(write it as {"*.mlp.down_proj": "RowParallel"})"});
  }
  std::vector<PlanRow> rows;
  for (const auto& [pattern, style] : plan.items()) {
    if (!style.is_string()) {
      throw Error({.kind = ErrorKind::kBadInput,
                   .what = fmt::format("the custom plan's style for '{}' is not a name", pattern),
                   .fix = "give one of the style names, such as ColumnParallel"});
    }
    rows.push_back({.pattern = pattern, .style = style_from_name(style.get<std::string>())});
  }
  return rows;
}

// The slots, and the patterns of all layers, with which a wrong pattern is compared.
std::vector<std::string> likely_patterns(const ModelConfig& config) {
  std::vector<std::string> likely = decoder_slot_names(config);
  for (const std::string& part : layer_slot_names(config.traits())) {
    likely.push_back("*." + part);
    likely.push_back("model.layers.*." + part);
    likely.push_back("*." + part.substr(part.rfind('.') + 1));
  }
  return likely;
}

void refuse_idle_patterns(const std::vector<PlanRow>& rows, const std::vector<std::string>& slots,
                          const ModelConfig& config) {
  for (const PlanRow& row : rows) {
    const bool used = std::any_of(slots.begin(), slots.end(), [&](const std::string& slot) {
      return matches_pattern(row.pattern, slot);
    });
    if (used) continue;
    const std::string near = nearest_name(row.pattern, likely_patterns(config));
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = fmt::format("the custom plan's pattern '{}' matches no slot of the model",
                                     row.pattern),
                 .fix = near.empty() ? "name slots as weights are named, without .weight"
                                     : fmt::format("the nearest slot is '{}'", near)});
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
      throw Error({.kind = ErrorKind::kBadInput,
                   .what = fmt::format("'{}' and '{}' of the custom plan both match {} and give it "
                                       "different styles",
                                       best->pattern, row.pattern, slot),
                   .fix = "make one of the two patterns longer"});
    }
  }
  return best;
}

}  // namespace

const char* style_name(TpStyle style) {
  for (const auto& [known, name] : kStyleNames) {
    if (known == style) return name;
  }
  return "?";
}

TpStyle style_from_name(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [style, known] : kStyleNames) {
    if (name == known) return style;
    names.emplace_back(known);
  }
  const std::string near = nearest_name(name, names);
  throw Error({.kind = ErrorKind::kBadInput,
               .what = fmt::format("unknown plan style '{}'", name),
               .fix = near.empty() ? fmt::format("known styles: {}", fmt::join(names, ", "))
                                   : fmt::format("did you mean '{}'?", near)});
}

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

std::vector<PlanRow> tensor_parallel_plan(const ModelConfig& config, bool sequence_parallel) {
  const TpStyle norm = sequence_parallel ? TpStyle::kSequenceNorm : TpStyle::kReplicate;
  const TpStyle residual = sequence_parallel ? TpStyle::kSequenceResidual : TpStyle::kReplicate;
  const std::vector<PlanRow> rows = {
      {"model.embed_tokens", TpStyle::kVocabParallelEmbedding},
      {"*.input_layernorm", norm},
      {"*.self_attn.q_proj", TpStyle::kColumnParallel},
      {"*.self_attn.k_proj", TpStyle::kColumnParallel},
      {"*.self_attn.v_proj", TpStyle::kColumnParallel},
      {"*.self_attn.q_norm", TpStyle::kHeadParallelNorm},
      {"*.self_attn.k_norm", TpStyle::kHeadParallelNorm},
      {"*.self_attn.attention", TpStyle::kHeadParallelAttention},
      {"*.self_attn.o_proj", TpStyle::kRowParallel},
      {"*.attention_residual", residual},
      {"*.post_attention_layernorm", norm},
      {"*.pre_feedforward_layernorm", norm},
      {"*.mlp.gate_proj", TpStyle::kColumnParallel},
      {"*.mlp.up_proj", TpStyle::kColumnParallel},
      {"*.mlp.activation", TpStyle::kHiddenParallelActivation},
      {"*.mlp.down_proj", TpStyle::kRowParallel},
      {"*.post_feedforward_layernorm", norm},
      {"*.mlp_residual", residual},
      {"model.norm", norm},
      {"lm_head", TpStyle::kVocabParallelLmHead},
  };
  const std::vector<std::string> slots = decoder_slot_names(config);
  std::vector<PlanRow> own;
  for (const PlanRow& row : rows) {
    const bool used = std::any_of(slots.begin(), slots.end(), [&](const std::string& slot) {
      return matches_pattern(row.pattern, slot);
    });
    if (used) own.push_back(row);
  }
  return own;
}

std::vector<std::string> decoder_slot_names(const ModelConfig& config) {
  std::vector<std::string> names = {"model.embed_tokens"};
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    for (const std::string& part : layer_slot_names(config.traits())) {
      names.push_back(fmt::format("model.layers.{}.{}", i, part));
    }
  }
  names.emplace_back("model.norm");
  names.emplace_back("lm_head");
  return names;
}

std::vector<SlotStyle> resolve_plan(const ModelConfig& config,
                                    const TensorParallelOptions& options) {
  const std::vector<std::string> slots = decoder_slot_names(config);
  const std::vector<PlanRow> custom = custom_rows(options.custom_plan);
  refuse_idle_patterns(custom, slots, config);
  const std::vector<PlanRow> own = tensor_parallel_plan(config, options.sequence_parallel);
  std::vector<SlotStyle> styles;
  for (const std::string& slot : slots) {
    const PlanRow* row = longest_match(custom, slot);
    if (row == nullptr) row = longest_match(own, slot);
    SHARDPROOF_ASSERT(row != nullptr, "the plan says nothing about " + slot);
    styles.push_back({.slot = slot, .style = row->style});
  }
  check_styles_fit(config, options.sequence_parallel, styles);
  return styles;
}

}  // namespace shardproof
