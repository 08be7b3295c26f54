// The plan as a table: patterns, custom plans, refusals, and its description.
#include <catch2/catch.hpp>
#include <map>

#include "model/decoder.h"
#include "parallel/tp/describe.h"
#include "parallel/tp/placement.h"
#include "parallel/tp/plan.h"
#include "parallel/tp/style.h"
#include "tests/support/said_by.h"

namespace shardproof::tests {
namespace {

ModelConfig llama(int64_t heads = 6, int64_t kv_heads = 3) {
  ModelConfig config;
  config.vocab_size = 10;
  config.hidden_size = 8;
  config.intermediate_size = 7;
  config.num_hidden_layers = 2;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.head_dim = 2;
  config.attention_bias = true;
  return config;
}

std::string said_of_plan(const nlohmann::json& plan, bool sp = false, bool tied = false) {
  ModelConfig config = llama();
  config.tie_word_embeddings = tied;
  return said_by([&] { resolve_plan(config, {.sequence_parallel = sp, .custom_plan = plan}); });
}

TEST_CASE("a star stands for any text, also none", "[plan][MP-1]") {
  CHECK(matches_pattern("lm_head", "lm_head"));
  CHECK_FALSE(matches_pattern("lm_head", "lm_head.weight"));
  CHECK(matches_pattern("*.q_proj", "model.layers.0.self_attn.q_proj"));
  CHECK(matches_pattern("model.layers.*.mlp.*_proj", "model.layers.11.mlp.gate_proj"));
  CHECK_FALSE(matches_pattern("model.layers.*.mlp.*_proj", "model.layers.1.self_attn.q_proj"));
  CHECK(matches_pattern("*", "x"));
  CHECK(matches_pattern("a*b*c", "aXbXbXc"));
  CHECK(matches_pattern("a**c", "ac"));
  CHECK_FALSE(matches_pattern("a*b", "a"));
  CHECK_FALSE(matches_pattern("", "a"));
}

TEST_CASE("every slot of a decoder has a style, under the decoder's own names", "[plan][MP-1]") {
  ModelConfig config = llama();
  config.family = GENERATE("llama", "llama_mtp", "qwen2", "qwen3", "gemma3");
  if (config.family == "llama_mtp") config.extra_heads = 2;
  config.attention_bias = false;
  Decoder model(config, seeded_weights(config, 1));
  for (const bool sp : {false, true}) {
    const auto styles = resolve_plan(config, {.sequence_parallel = sp});
    const auto slots = model.slots();
    REQUIRE(styles.size() == slots.size());
    for (size_t i = 0; i < slots.size(); ++i) CHECK(styles[i].slot == slots[i]->name);
  }
}

TEST_CASE("a family's plan has its own slots, with the roles of their names", "[plan][MP-1]") {
  const std::map<std::string, SlotRole> roles = {{"embed_tokens", SlotRole::kEmbedding},
                                                 {"q_proj", SlotRole::kQuery},
                                                 {"k_proj", SlotRole::kKey},
                                                 {"v_proj", SlotRole::kValue},
                                                 {"q_norm", SlotRole::kQueryNorm},
                                                 {"k_norm", SlotRole::kKeyNorm},
                                                 {"attention", SlotRole::kAttention},
                                                 {"o_proj", SlotRole::kAttentionOut},
                                                 {"gate_proj", SlotRole::kGate},
                                                 {"up_proj", SlotRole::kUp},
                                                 {"activation", SlotRole::kActivation},
                                                 {"down_proj", SlotRole::kDown},
                                                 {"lm_head", SlotRole::kLmHead}};
  const auto count_of = [&](const char* family) {
    ModelConfig config = llama();
    config.family = family;
    config.num_hidden_layers = 1;
    const std::vector<SlotStyle> styles = resolve_plan(config, {});
    for (const SlotStyle& slot : styles) {
      INFO(slot.slot);
      const std::string last = slot.slot.substr(slot.slot.rfind('.') + 1);
      const auto found = roles.find(last);
      const SlotRole other =
          last.ends_with("residual") ? SlotRole::kResidual : SlotRole::kStreamNorm;
      CHECK((slot.role == (found == roles.end() ? other : found->second)));
    }
    return styles.size();
  };
  CHECK(count_of("llama") == 16);
  CHECK(count_of("qwen2") == 16);
  CHECK(count_of("qwen3") == 18);
  CHECK(count_of("gemma3") == 20);
}

TEST_CASE("extra heads are cut as the parts of the model that they share", "[plan][PP-29]") {
  ModelConfig config = llama();
  config.family = "llama_mtp";
  config.extra_heads = 1;
  const auto said = [&](const nlohmann::json& plan) {
    return said_by([&] { resolve_plan(config, {.custom_plan = plan}); });
  };
  CHECK(said({{"*embed_tokens", "Replicate"}, {"*head", "Replicate"}}).empty());
  CHECK_THAT(said({{"lm_head", "Replicate"}}), Catch::Contains("its weight is that of lm_head"));
  CHECK_THAT(said({{"model.embed_tokens", "Replicate"}}),
             Catch::Contains("its weight is that of model.embed_tokens"));
  CHECK_THAT(said({{"*.eh_proj", "Replicate"}}), Catch::Contains("ColumnParallelGathered"));
}

TEST_CASE("a router and its experts are whole on every tp rank, with their own tokens alone",
          "[plan][FM-1][EP-7]") {
  ModelConfig config = llama();
  config.family = "mixtral";
  config.attention_bias = false;
  config.router = {.num_experts = 4, .num_chosen = 2};
  config.expert_width = 6;
  config.expert_layers.assign(static_cast<size_t>(config.num_hidden_layers), true);
  for (const SlotStyle& slot : resolve_plan(config, {})) {
    const bool whole = slot.slot.find(".mlp.") != std::string::npos;
    CHECK((slot.style == TpStyle::kReplicate || !whole));
  }
  for (const SlotStyle& slot : resolve_plan(config, {.sequence_parallel = true})) {
    const bool routes = slot.slot.find(".mlp.") != std::string::npos;
    CHECK((slot.style == TpStyle::kSequenceExperts) == routes);
    if (!routes) continue;
    const SlotPlacement placed = place_slot(config, 3, /*sequence_parallel=*/true, slot);
    CHECK(placed.output.describe() == "S(1)tp");
    CHECK(placed.weight.layout.replicated());
    CHECK(placed.weight.sum_grad_over == std::vector<std::string>{"tp"});
  }
  const auto lines = plan_lines(config, Mesh(), {});
  for (const char* part : {"gate.weight", "experts.gate_up_proj", "experts.down_proj"}) {
    const std::string name = std::string("model.layers.0.mlp.") + part;
    CHECK(std::count_if(lines.begin(), lines.end(),
                        [&](const PlanLine& line) { return line.parameter == name; }) == 1);
  }
  config.family = "qwen2_moe";
  config.shared_width = 8;
  for (const SlotStyle& slot : resolve_plan(config, {.sequence_parallel = true})) {
    const SlotPlacement placed = place_slot(config, 3, /*sequence_parallel=*/true, slot);
    if (slot.role == SlotRole::kUp) {
      CHECK(placed.weight.layout.local_shape({8, 12}, Mesh({{"tp", 3}}), 2)[0] == 2);
    }
    if (slot.role != SlotRole::kSharedGate) continue;
    CHECK(placed.weight.layout.replicated());
    CHECK(placed.weight.sum_grad_over == std::vector<std::string>{"tp"});
  }
  config.family = "mixtral";
  CHECK_THAT(said_by([&] {
               plan_lines(config, Mesh({{"tp", 3}}), {});
             }),
             Catch::Contains("set tp = 1"));
  CHECK_THAT(said_by([&] {
               resolve_plan(config, {.custom_plan = {{"*.mlp.experts", "ColumnParallel"}}});
             }),
             Catch::Contains("a router and its experts are not cut"));
}

TEST_CASE("norms of heads follow the projections, norms of outputs the stream", "[plan][MP-1]") {
  ModelConfig config = llama();
  config.family = "gemma3";
  const auto refusal = [&](const nlohmann::json& plan, bool sp) {
    return said_by([&] { resolve_plan(config, {.sequence_parallel = sp, .custom_plan = plan}); });
  };
  CHECK_THAT(refusal({{"*.q_norm", "Replicate"}}, false),
             Catch::Contains("it sees its rank's heads; give it HeadParallelNorm"));
  CHECK_THAT(refusal({{"*.self_attn.*_proj", "ColumnParallelGathered"},
                      {"*.self_attn.o_proj", "RowParallelScattered"},
                      {"*.self_attn.attention", "Replicate"}},
                     true),
             Catch::Contains("it sees all heads; give it Replicate"));
  CHECK_THAT(refusal({{"*.post_feedforward_layernorm", "Replicate"}}, true),
             Catch::Contains("give it SequenceNorm"));
  CHECK_THAT(refusal({{"*.post_fedforward_layernorm", "Replicate"}}, true),
             Catch::Contains("the nearest slot is '*.post_feedforward_layernorm'"));
}

TEST_CASE("of several custom patterns the most literal one counts", "[plan][MP-1]") {
  const auto styles =
      resolve_plan(llama(), {.custom_plan = {{"*.self_attn.*", "Replicate"},
                                             {"*.self_attn.o_proj", "RowParallelScattered"}}});
  for (const SlotStyle& style : styles) {
    if (style.slot.ends_with("q_proj")) CHECK(style.style == TpStyle::kReplicate);
    if (style.slot.ends_with("o_proj")) CHECK(style.style == TpStyle::kRowParallelScattered);
    if (style.slot.ends_with("down_proj")) CHECK(style.style == TpStyle::kRowParallel);
  }
}

TEST_CASE("a custom plan that is malformed is bad input", "[plan][MP-1]") {
  const auto check_bad = [](const nlohmann::json& plan, const std::string& text) {
    CHECK_THAT(said_of_plan(plan), Catch::StartsWith("bad input: ") && Catch::Contains(text));
  };
  check_bad({{"lm_head", "VocabParalelLmHead"}}, "did you mean 'VocabParallelLmHead'?");
  check_bad({{"lm_head", "zzz"}}, "known styles: Replicate, ColumnParallel");
  check_bad({{"lm_haed", "Replicate"}}, "the nearest slot is 'lm_head'");
  check_bad({{"*.nothing.*", "Replicate"}}, "matches no slot");
  check_bad({{"lm_head", 3}}, "is not a name");
  check_bad("Replicate", "not a table");
  check_bad({{"*.q_pro*", "Replicate"}, {"*q_proj", "ColumnParallel"}}, "different styles");
}

TEST_CASE("styles that do not fit their slot or each other are refused with what would fit",
          "[plan][MP-1]") {
  const auto check_refused = [](const std::string& said, const std::string& text) {
    CHECK_THAT(said, Catch::StartsWith("refused: ") && Catch::Contains(text));
  };
  check_refused(said_of_plan({{"model.norm", "RowParallel"}}), "give it Replicate");
  check_refused(said_of_plan({{"model.norm", "SequenceNorm"}}), "without sequence_parallel");
  check_refused(said_of_plan({{"model.norm", "Replicate"}}, true), "give it SequenceNorm");
  check_refused(said_of_plan({{"*.1.self_attn.k_proj", "Replicate"}}),
                "model.layers.1.self_attn.k_proj the style Replicate, but "
                "model.layers.1.self_attn.q_proj leaves its output cut");
  check_refused(said_of_plan({{"*.mlp.down_proj", "Replicate"}}), "give it RowParallel");
  check_refused(said_of_plan({{"*.mlp.gate_proj", "Replicate"}, {"*.mlp.up_proj", "Replicate"}}),
                "mlp.activation the style HiddenParallelActivation");
  check_refused(said_of_plan({{"lm_head", "Replicate"}}, false, true),
                "tied to model.embed_tokens");
  check_refused(said_of_plan({{"lm_head", "ColumnParallel"}}), "VocabParallelLmHead or Replicate");
}

TEST_CASE("head counts that tp cannot cut are refused, and the sizes that work are named",
          "[tp][MP-4]") {
  const auto refusal = [](int64_t heads, int64_t kv_heads, int64_t tp) {
    return said_by([&] {
      const ModelConfig config = llama(heads, kv_heads);
      for (const SlotStyle& slot : resolve_plan(config, {})) place_slot(config, tp, false, slot);
    });
  };
  CHECK(refusal(6, 3, 4) ==
        "refused: num_attention_heads=6 does not divide by tp=4; tp = 1, 3, 6 would work");
  CHECK(refusal(6, 3, 2) ==
        "refused: num_key_value_heads=3 neither divides by tp=2 nor divides it; tp = 1, 3, 6 would "
        "work");
  CHECK(refusal(6, 3, 6) == "");
  CHECK(refusal(12, 2, 4) == "");
  CHECK_THAT(refusal(12, 2, 3), Catch::StartsWith("refused: "));
}

TEST_CASE("describe: who holds what, and what is summed after backward", "[plan][MP-1]") {
  const Mesh mesh = Mesh::training({.dp = 2, .tp = 6});
  const auto lines = plan_lines(llama(), mesh, {.sequence_parallel = true});
  const auto line_of = [&](const std::string& name) {
    for (const PlanLine& line : lines) {
      if (line.parameter == name) return line;
    }
    throw std::logic_error("no line " + name);
  };
  const PlanLine embedding = line_of("model.embed_tokens.weight");
  CHECK(embedding.layout == "S(0)tp:padded12");
  CHECK(embedding.local_shapes == std::vector<std::vector<int64_t>>(6, {2, 8}));
  const PlanLine key = line_of("model.layers.1.self_attn.k_proj.weight");
  CHECK(key.layout == "S(0)tp:parts3");
  CHECK(key.local_shapes == std::vector<std::vector<int64_t>>(6, {2, 8}));
  CHECK_THAT(key.gradient, Catch::Contains("share a kv head"));
  CHECK(line_of("model.layers.0.mlp.down_proj.weight").local_shapes[3] ==
        std::vector<int64_t>{8, 1});
  CHECK(line_of("model.layers.0.mlp.down_proj.weight").local_shapes[5] ==
        std::vector<int64_t>{8, 0});
  CHECK(line_of("model.norm.weight").gradient == "summed over tp");
  CHECK(line_of("model.layers.0.self_attn.o_proj.bias").gradient == "summed over tp");
  CHECK(line_of("model.layers.0.self_attn.q_proj.bias").gradient.empty());
  CHECK(lines.size() == weight_shapes(llama()).size());
  CHECK_THAT(plan_text(plan_lines(llama(), mesh, {.sequence_parallel = true})),
             Catch::Contains("lm_head.weight") && Catch::Contains("VocabParallelLmHead"));
}

}  // namespace
}  // namespace shardproof::tests
