// The relations on one device, in this process: they hold for every family, and a wrong model, a
// wrong change and a wrong way back are found.
#include "sim/uses/relations/relations.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "golden/single_device.h"
#include "sim/case/recorder/golden_recorder.h"
#include "sim/uses/relations/relation_runs.h"

namespace shardproof::sim::relations {
namespace {

// Small experts, under the keys that the family's traits give it.
void add_experts(nlohmann::json& model, const FamilyTraits& family) {
  if (!family.has_experts()) return;
  const bool groups = family.scores == RouterScores::kSigmoid;
  model["num_experts"] = groups ? 8 : 5;
  model["num_experts_per_tok"] = groups ? 4 : 3;
  if (groups) model.update({{"n_group", 4}, {"topk_group", 2}});
  if (family.scores == RouterScores::kSoftmaxOfAll) model["norm_topk_prob"] = true;
  if (family.experts == ExpertLayers::kBySteps) model["mlp_only_layers"] = {0};
  if (family.experts == ExpertLayers::kLast) model["first_k_dense_replace"] = 1;
  if (family.moe_intermediate_size > 0) model["moe_intermediate_size"] = 10;
  if (family.shared_expert_intermediate_size > 0) model["shared_expert_intermediate_size"] = 7;
  if (!family.latent_attention) return;
  model.update({{"num_key_value_heads", 4},
                {"q_lora_rank", 5},
                {"kv_lora_rank", 6},
                {"qk_nope_head_dim", 4},
                {"qk_rope_head_dim", 2},
                {"v_head_dim", 3}});
}

CaseSpec small_case(const std::string& family) {
  CaseSpec spec;
  spec.name = "small/" + family;
  spec.model = {{"model_type", family == "gemma3" ? "gemma3_text" : family},
                {"vocab_size", 23},
                {"hidden_size", 12},
                {"intermediate_size", 10},
                {"num_hidden_layers", 2},
                {"num_attention_heads", 4},
                {"num_key_value_heads", 2},
                {"head_dim", 6},
                {"rms_norm_eps", 1e-5}};
  if (family == "gemma3") {
    spec.model["query_pre_attn_scalar"] = 5;
    spec.model["sliding_window"] = 4;
    spec.model["sliding_window_pattern"] = 2;
  }
  if (family == "qwen2") {
    spec.model["use_sliding_window"] = true;
    spec.model["max_window_layers"] = 1;
    spec.model["sliding_window"] = 3;
  }
  add_experts(spec.model, family_traits(family));
  spec.data.lengths = {9, 3, 7, 10};
  spec.data.seq_len = 10;
  spec.loss.kind = LossKind::kClippedPolicyGradient;
  spec.seed = 5;
  return spec;
}

CaseSpec small_llama() { return small_case("llama"); }

Values run_here(const Variant& variant) {
  golden::CaseData data{.config = variant.config,
                        .weights = std::make_shared<const WeightMap>(variant.weights),
                        .batch = variant.batch};
  GoldenRecorder recorder(/*activations=*/false);
  golden::run_single_device(variant.spec, data, {.dtype = at::kDouble}, recorder);
  Values values;
  for (const auto& [name, tensor] : recorder.expected_names(1)) values[name] = tensor.clone();
  return values;
}

const Relation& relation_called(const std::string& name) {
  for (const Relation& relation : relations()) {
    if (name == relation.name) return relation;
  }
  throw std::runtime_error("no relation " + name);
}

Comparison compared(const Relation& relation, const RelatedPair& pair) {
  Values first = run_here(pair.first), second = run_here(pair.second);
  bring_back(relation, pair, first, second);
  return compare_values(pair.first.spec, first, second, relation.exact);
}

bool fits(const Relation& relation, const CaseSpec& spec) {
  return why_not(relation, spec).empty();
}

void require_all_hold(const CaseSpec& spec) {
  const Variant variant = load_variant(spec);
  for (const Relation& relation : relations()) {
    if (!fits(relation, spec)) continue;
    INFO(spec.name << " " << relation.name);
    const Comparison comparison = compared(relation, related_pair(relation, variant));
    if (comparison.difference) FAIL(difference_text(*comparison.difference, relation.changed));
    CHECK(comparison.elements > 0);
  }
}

}  // namespace

TEST_CASE("every relation holds on one device for every family") {
  for (const FamilyTraits& family : all_families()) {
    CAPTURE(family.name);
    require_all_hold(small_case(family.name));
  }
}

TEST_CASE("relations hold for other losses, biases, scalings and tied embeddings") {
  CaseSpec spec = small_llama();
  spec.model["attention_bias"] = true;
  spec.model["mlp_bias"] = true;
  spec.model["tie_word_embeddings"] = true;
  spec.model["pad_token_id"] = 3;
  spec.model["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  spec.loss.kind = LossKind::kNll;
  spec.loss.normalization = LossNormalization::kSequence;
  require_all_hold(spec);
  spec.loss.kind = LossKind::kPreference;
  spec.model["vocab_size"] = 24;
  require_all_hold(spec);
  spec.workload = "logprobs";
  spec.loss.temperature = 0.7;
  require_all_hold(spec);
}

TEST_CASE("every relation fits some family, and each has a name of its own") {
  std::set<std::string> names;
  for (const Relation& relation : relations()) {
    CHECK(names.insert(relation.name).second);
    bool some = false;
    for (const char* family : {"llama", "qwen2", "qwen3", "gemma3", "mixtral"}) {
      CaseSpec spec = small_case(family);
      spec.model["tie_word_embeddings"] = true;
      spec.parallel.cp = spec.parallel.pp = spec.parallel.ep = 2;
      some = some || fits(relation, spec);
    }
    CHECK(some);
  }
}

TEST_CASE("windows are given as those of a qwen2 to a family with the same slots alone") {
  const auto of = [](const char* family, int64_t layers) {
    ModelConfig config;
    config.family = family;
    config.num_hidden_layers = layers;
    return config;
  };
  CHECK(have_equal_slots(of("llama", 2), of("qwen2", 2)));
  CHECK_FALSE(have_equal_slots(of("llama", 2), of("qwen2", 1)));
  CHECK_FALSE(have_equal_slots(of("gemma3", 2), of("qwen2", 2)));
  CHECK_FALSE(have_equal_slots(of("qwen2", 2), of("gemma3", 2)));
  CHECK(relation_called("window_of_all").why_not(small_llama(), ModelConfig{}).empty());
}

// Each relation compares something that a wrong weight changes: without this, one that drops all
// values would hold always.
TEST_CASE("every relation finds another weight in the changed case") {
  for (const char* family : {"llama", "gemma3"}) {
    const CaseSpec spec = small_case(family);
    const Variant variant = load_variant(spec);
    for (const Relation& relation : relations()) {
      // A probability is one whatever the weights are.
      if (!fits(relation, spec) || relation.name == std::string("labels_sum_to_one")) continue;
      RelatedPair pair = related_pair(relation, variant);
      at::Tensor& weight = pair.second.weights.at("model.layers.1.mlp.gate_proj.weight");
      weight = weight * (1 + 1e-6);
      INFO(family << " " << relation.name);
      CHECK(compared(relation, pair).difference.has_value());
    }
  }
}

TEST_CASE("relations of experts find another weight, and other routes") {
  const CaseSpec spec = small_case("mixtral");
  const Variant variant = load_variant(spec);
  for (const char* name : {"experts_reversed", "experts_as_mlp", "experts_recomputed"}) {
    for (const char* part : {"self_attn.v_proj.weight", "input_layernorm.weight"}) {
      RelatedPair pair = related_pair(relation_called(name), variant);
      at::Tensor& weight = pair.second.weights.at(layer_part(1, part));
      weight = weight * (1 + 1e-6);
      INFO(name << " " << part);
      CHECK(compared(relation_called(name), pair).difference.has_value());
    }
  }
  RelatedPair pair = related_pair(relation_called("experts_reversed"), variant);
  at::Tensor& router = pair.second.weights.at(layer_part(0, "mlp.gate.weight"));
  router = router.roll(1, 0);
  CHECK(compared(relation_called("experts_reversed"), pair).difference.has_value());
}

TEST_CASE("routers with losses of their own have the relations of experts alone") {
  CaseSpec spec = small_case("mixtral");
  CHECK(fits(relation_called("samples_twice"), spec));
  CHECK_FALSE(fits(relation_called("channels_changed"), spec));
  spec.side_losses.z = 0.1;
  CHECK_FALSE(fits(relation_called("samples_twice"), spec));
  CHECK_FALSE(fits(relation_called("experts_as_mlp"), spec));
  CHECK(fits(relation_called("experts_reversed"), spec));
}

TEST_CASE("labels_sum_to_one finds logprobs of another temperature") {
  const Relation& relation = relation_called("labels_sum_to_one");
  const RelatedPair pair = related_pair(relation, load_variant(small_llama()));
  Values first = run_here(pair.first), second = run_here(pair.second);
  second["logprobs"] = second.at("logprobs") * 1.5;
  bring_back(relation, pair, first, second);
  const Comparison comparison = compare_values(pair.first.spec, first, second, false);
  REQUIRE(comparison.difference);
  CHECK(comparison.difference->tensor == "probabilities");
}

TEST_CASE("a relation of gradients finds a gradient that is not brought back") {
  for (const char* name : {"kv_heads_repeated", "channels_changed", "head_dim_doubled"}) {
    const Relation& relation = relation_called(name);
    const RelatedPair pair = related_pair(relation, load_variant(small_llama()));
    Values first = run_here(pair.first), second = run_here(pair.second);
    bring_back(relation, pair, first, second);
    at::Tensor& grad = second.at("grad.model.layers.0.self_attn.v_proj.weight");
    grad = grad.flip(0);
    const Comparison comparison = compare_values(pair.first.spec, first, second, relation.exact);
    REQUIRE(comparison.difference);
    CHECK(comparison.difference->tensor == "grad.model.layers.0.self_attn.v_proj.weight");
  }
}

TEST_CASE("values that are all 0 show nothing of a relation") {
  const auto is_empty = [](const Values& values) {
    return compare_values(small_llama(), values, values, false).is_empty;
  };
  const at::Tensor zero = at::zeros({2}, at::kDouble), one = at::ones({2}, at::kDouble);
  CHECK(is_empty({}));
  CHECK(is_empty({{"loss", zero}, {"grad.a", zero}, {"logprobs", one}}));
  CHECK(is_empty({{"loss", one}, {"grad.a", zero}, {"logprobs", one}}));
  CHECK(is_empty({{"logprobs", zero}}));
  CHECK_FALSE(is_empty({{"loss", zero}, {"grad.a", one}}));
  CHECK_FALSE(is_empty({{"logprobs", one}}));
}

TEST_CASE("NaN of both runs shows nothing, and of one run is a difference") {
  const Values values = {{"loss", at::ones({}, at::kDouble)},
                         {"grad.a", at::full({2}, NAN, at::kDouble)}};
  CHECK(compare_values(small_llama(), values, values, true).not_finite.empty());
  CHECK_FALSE(compare_values(small_llama(), values, values, true).difference);
  const Comparison near = compare_values(small_llama(), values, values, false);
  CHECK_FALSE(near.difference);
  CHECK(near.not_finite == "grad.a");
  Values finite = values;
  finite["grad.a"] = at::ones({2}, at::kDouble);
  for (const bool swapped : {false, true}) {
    const Comparison found =
        compare_values(small_llama(), swapped ? finite : values, swapped ? values : finite, false);
    REQUIRE(found.difference);
    CHECK(found.difference->tensor == "grad.a");
    CHECK(found.not_finite.empty());
  }
}

TEST_CASE("a change that leaves the case as it was is known") {
  const auto unchanged = [](const char* name, int64_t samples) {
    CaseSpec spec = small_llama();
    spec.data.batch_size = samples;
    spec.data.lengths.resize(std::min<size_t>(spec.data.lengths.size(), size_t(samples)));
    const Relation& relation = relation_called(name);
    return is_unchanged(relation, related_pair(relation, load_variant(spec)));
  };
  CHECK(unchanged("samples_reversed", 1));
  CHECK_FALSE(unchanged("samples_reversed", 3));
  CHECK_FALSE(unchanged("files", 1));
  CHECK_FALSE(unchanged("heads_reversed", 1));
}

TEST_CASE("the first difference is that of the computation's order, with its largest error") {
  Values first{{"logprobs", at::zeros({2, 3}, at::kDouble)},
               {"loss", at::ones({}, at::kDouble)},
               {"grad.lm_head.weight", at::ones({2}, at::kDouble)},
               {"grad.model.layers.10.a", at::ones({2}, at::kDouble)},
               {"grad.model.layers.9.a", at::ones({2}, at::kDouble)}};
  Values second = first;
  second["grad.model.layers.9.a"] = at::zeros({2}, at::kDouble);
  second["grad.model.layers.10.a"] = at::tensor({1.5, 3.0}, at::kDouble);
  const Comparison comparison = compare_values(small_llama(), first, second, false);
  REQUIRE(comparison.difference);
  const Difference& found = *comparison.difference;
  CHECK(found.tensor == "grad.model.layers.10.a");
  CHECK(found.index == std::vector<int64_t>{1});
  CHECK(found.error == 2);
  CHECK(found.wrong == 2);
  CHECK(difference_text(found, "more padding").find("with more padding") != std::string::npos);

  second = first;
  second["loss"] = at::full({}, NAN, at::kDouble);
  CHECK(compare_values(small_llama(), first, second, false).difference->tensor == "loss");
  second = first;
  second.erase("grad.lm_head.weight");
  const auto lacking = compare_values(small_llama(), first, second, false).difference;
  REQUIRE(lacking);
  CHECK(lacking->missing == "the changed case");
  second = first;
  second["loss"] = first.at("loss") * (1 + 1e-13);
  CHECK_FALSE(compare_values(small_llama(), first, second, false).difference);
  CHECK(compare_values(small_llama(), first, second, true).difference);
  for (const double number : {HUGE_VAL, std::nan("")}) {  // of a float16 step that overflows
    first["loss"] = second["loss"] = at::full({}, number, at::kDouble);
    CHECK_FALSE(compare_values(small_llama(), first, second, true).difference);
    second["loss"] = at::zeros({}, at::kDouble);
    CHECK(compare_values(small_llama(), first, second, true).difference->tensor == "loss");
  }
}

TEST_CASE("relations of stages leave out sums that have another order in stages, and no others") {
  const Relation& relation = relation_called("stages_joined");
  const auto left_out = [&](PipelineSchedule schedule, bool tied, bool fsdp, int64_t micro) {
    CaseSpec spec = small_llama();
    spec.parallel.pp = 2;
    spec.parallel.pp_options.schedule = schedule;
    if (fsdp) spec.parallel.data_parallel = DataParallelKind::kFsdp;
    spec.model["tie_word_embeddings"] = tied;
    spec.micro_batch_size = micro;
    const Variant variant{.spec = spec, .config = ModelConfig::from_json(spec.model)};
    std::set<std::string> names;
    Values first;
    for (const char* name : {"logprobs", "loss", "grad_norm", "grad.model.embed_tokens.weight",
                             "grad.model.norm.weight"}) {
      first[name] = at::zeros({}, at::kDouble);
      names.insert(name);
    }
    Values second = first;
    relation.back(variant, variant, first, second);
    for (const auto& [name, value] : first) names.erase(name);
    CHECK(first.size() == second.size());
    return names;
  };
  using enum PipelineSchedule;
  const std::set<std::string> none, of_tied = {"grad_norm", "grad.model.embed_tokens.weight"};
  std::set<std::string> all = of_tied;
  all.insert("grad.model.norm.weight");
  CHECK(left_out(k1F1B, false, true, 1) == none);
  CHECK(left_out(kZbV, false, false, 1) == none);
  CHECK(left_out(kZbV, false, true, 1) == all);
  CHECK(left_out(kGPipe, true, false, 1) == of_tied);
  CHECK(left_out(kBreadthFirst, false, false, 1) == all);
  CHECK(left_out(kBreadthFirst, true, true, 0) == none);  // one microbatch
}

TEST_CASE("cases are run once for each relation that fits") {
  const CaseSpec llama = small_llama();
  const std::vector<CaseSpec> cases = with_relations({llama});
  CHECK(cases.size() > 15);
  for (const CaseSpec& spec : cases) {
    const Relation* relation = relation_of(spec.name);
    REQUIRE(relation != nullptr);
    CHECK(fits(*relation, llama));
    CHECK(name_without_relation(spec.name) == "small/llama");
  }
  CaseSpec named = llama;
  named.name = "small/llama[tp2]";
  CHECK(with_relations({named}).front().name == "small/llama[tp2,relation=files]");
  CHECK(name_without_relation("small/llama[tp2,relation=files]") == "small/llama[tp2]");
  CHECK(relation_of("small/llama[tp2]") == nullptr);
  CHECK(relation_of("small/llama[relation=none]") == nullptr);

  CaseSpec rounded = llama;
  rounded.precision = Precision::kBFloat16;
  REQUIRE(with_relations({rounded}).size() == 1);
  CHECK(with_relations({rounded}).front().skip.find("float64") != std::string::npos);
  rounded.parallel.pp = 2;
  REQUIRE(with_relations({rounded}).size() == 3);
  CHECK(with_relations({rounded}).front().name == "small/llama[relation=stages_joined]");
  CaseSpec policy = llama;
  policy.workload = "policy";
  CHECK_FALSE(with_relations({policy}).front().skip.empty());
}

}  // namespace shardproof::sim::relations
