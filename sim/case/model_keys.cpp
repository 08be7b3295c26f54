// The keys of `model`: those of a small config.json, or the folder of a whole one.
#include "sim/case/needs.h"

namespace shardproof::sim {

OptionRows<CaseSpec> model_keys() {
  constexpr auto key = [](auto&&... about) { return sim::key<CaseSpec>(about...); };
  using enum KeyType;
  constexpr Range size{1, kMaxSize};
  constexpr std::nullptr_t none = nullptr;
  std::string families;
  for (const FamilyTraits& family : all_families()) {
    families += (families.empty() ? "Architecture: " : ", ") + std::string(family.name);
  }
  const auto of_window = [](WindowRule rule) {
    return in_families([=](const FamilyTraits& family) { return family.window == rule; });
  };
  const Needs scaled =
      in_families([](const FamilyTraits& family) { return family.own_score_scale; });
  const Needs local = in_families([](const FamilyTraits& family) { return family.local_rope; });
  const Needed slides{"model.use_sliding_window", true};
  const Needs windows = either(either(all_of(slides), of_window(WindowRule::kPattern)),
                               of_window(WindowRule::kInTurn));
  const Needs of_heads =
      in_families([](const FamilyTraits& family) { return family.extra_heads.has_value(); },
                  any_of(workload(ModelWorkload::kTrain), workload(ModelWorkload::kPolicy)));
  return {
      key("model.folder", kText, none,
          "Hugging Face folder with config.json and weights, instead of sizes; relative to the "
          "scenario",
          NotDrawn{"it needs files"}),
      key("model.family", kText, "llama", families.c_str(), ShortName{"family"}),
      key("model.vocab_size", kInteger, 96, "V, tokens of the vocabulary", size),
      key("model.hidden_size", kInteger, 48, "E, width of the model", size),
      key("model.intermediate_size", kInteger, 96, "Width of the MLP", size),
      key("model.num_hidden_layers", kInteger, 2, "Number of layers", Range{1, 10000}),
      key("model.num_attention_heads", kInteger, 4, "Number of query heads", size),
      key("model.num_key_value_heads", kInteger, none,
          "Number of key and value heads; default: the number of query heads", size,
          ShortName{"kv_heads"}),
      key("model.head_dim", kInteger, none,
          "Dim of a head; default: hidden_size / num_attention_heads", size),
      key("model.max_position_embeddings", kInteger, none, "Number of positions, as in config.json",
          Range{1, 1e9}),
      key("model.rms_norm_eps", kNumber, 1e-6,
          "Constant that is added to the mean square of a norm", Range{0, 1}),
      key("model.rope_theta", kNumber, none,
          "Base of the rotary frequencies (gemma3 1e6, others 10000)", Range{1e-6, 1e12}),
      key("model.rope_scaling", kMap, none,
          "Rotary scaling in the spelling of transformers 4: rope_type linear, llama3 or "
          "yarn, factor, ..",
          Null::kAllowed),
      key("model.rope_parameters", kMap, none,
          "Rotary base and scaling in the spelling of transformers 5", Null::kAllowed,
          NotPaired{"another spelling of model.rope_scaling"}),
      key("model.tie_word_embeddings", kBool, none,
          "lm_head uses the embedding's weight (gemma3 true, others false)", ShortName{"tied"}),
      key("model.attention_bias", kBool, false, "Biases of q, k, v and o"),
      key("model.mlp_bias", kBool, false, "Biases of gate, up and down"),
      key("model.hidden_act", kText, none,
          "Activation of the MLP: silu, or gelu_pytorch_tanh for gemma3"),
      key("model.pad_token_id", kInteger, none,
          "Row of the embedding that gets no gradient (gemma3 0, others none)", Range{0, kMaxSize},
          Null::kAllowed),
      key("model.query_pre_attn_scalar", kNumber, none,
          "gemma3: scores are divided by its square root; default: head_dim", Range{1e-6, kMaxSize},
          scaled),
      key("model.use_sliding_window", kBool, none,
          "qwen2, qwen3: give the layers from max_window_layers on a window (false)",
          of_window(WindowRule::kLastLayers)),
      key("model.sliding_window", kInteger, none,
          "Tokens that a query of a sliding layer sees, including its own (4096)", size,
          Null::kAllowed, ShortName{"window"}, windows),
      key("model.sliding_window_pattern", kInteger, none,
          "gemma3: every layer has a window, except each n-th one (6)", Range{1, 10000},
          of_window(WindowRule::kPattern)),
      key("model.max_window_layers", kInteger, none,
          "qwen2, qwen3: number of layers without a window (28)", Range{0, 10000}, all_of(slides)),
      key("model.layer_types", kTexts, none,
          "full_attention or sliding_attention for each layer, instead of the family's rule"),
      key("model.num_nextn_predict_layers", kInteger, none,
          "llama_mtp (1), deepseek_v3 (0): number of extra heads, each of which predicts one token "
          "further; also beside model.folder",
          Range{0, 100}, ShortName{"heads"}, of_heads),
      key("model.mtp_loss_scaling_factor", kNumber, none,
          "Weight of the mean of the losses of extra heads, beside the loss (0.1); also beside "
          "model.folder",
          Range{0, kMaxConstant}, ShortName{"mtp_weight"}, of_heads),
      key("model.mtp_use_repeated_layer", kBool, none,
          "All extra heads have the weights of the first one (false); also beside model.folder",
          ShortName{"repeated"},
          NotPaired{"of models with extra heads alone: scenarios/mtp, and `fuzz`"},
          with(Needed{"model.num_nextn_predict_layers", none}, of_heads)),
      key("model.rope_local_base_freq", kNumber, none,
          "gemma3: base of the rotary frequencies of sliding layers (10000)", Range{1e-6, 1e12},
          local),
      key("model.config", kMap, none,
          "Further keys of config.json, as those of experts: {num_experts: 6, "
          "moe_intermediate_size: 8, ..}",
          with_experts()),
  };
}

}  // namespace shardproof::sim
