// Legend: B samples, S positions, E model dim, V vocabulary.
#include "model/decoder.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "mesh/mesh.h"
#include "tests/unit/model/recorder.h"
#include "tests/unit/model/six_head_model.h"

namespace shardproof::decoder_test {
namespace {

using namespace tests;

ModelConfig small(bool tied = false) {
  ModelConfig config = tests::six_head_model();
  config.tie_word_embeddings = tied;
  config.attention_bias = config.mlp_bias = true;
  return config;
}

// Two layers; the first has a window that is shorter than the sequences of these tests.
ModelConfig small_of(const std::string& family) {
  ModelConfig config = small(/*tied=*/family == "gemma3");
  config.family = family;
  config.attention_bias = config.mlp_bias = false;
  if (family == "llama") return config;
  const FamilyTraits& traits = config.traits();
  if (traits.has_experts()) {
    config.router = {.num_experts = 4, .num_chosen = 2};
    config.expert_width = 5;
    config.expert_layers = {true, family != "qwen3_moe"};
    if (traits.shared_expert_intermediate_size > 0 || traits.shared_by_count) {
      config.shared_width = 7;
    }
    if (traits.scores == RouterScores::kSigmoid) {
      config.router.scores = RouterScores::kSigmoid;
      config.router.normalized = true;
      config.router.num_groups = 2;
      config.router.chosen_groups = 1;
      config.router.selection_bias = true;
    }
    if (traits.latent_attention) {
      config.num_key_value_heads = config.num_attention_heads;
      config.latent = {.q_rank = 5, .kv_rank = 4, .nope = 3, .rope = 2, .value = 7};
      config.head_dim = 5;
    }
    if (traits.clamped_experts) config.activation = Activation::kClampedSwiglu;
    config.attention_bias = traits.attention_bias;
    if (traits.window == WindowRule::kNone) return config;
  }
  config.sliding_window = 2;
  config.sliding_layers = {true, false};
  if (family == "gemma3") {
    config.activation = Activation::kGeluTanh;
    config.query_pre_attn_scalar = 7;
    config.rope_local_theta = 30;
  }
  return config;
}

StepContext context_of(const at::Tensor& ids, Probe& probe) {
  return {.probe = probe,
          .step = 1,
          .token_map = at::arange(ids.numel(), at::kLong).view(ids.sizes()),
          .positions = at::arange(ids.size(1), at::kLong).expand_as(ids)};
}

at::Tensor run(Decoder& model, const at::Tensor& ids, Probe& probe) {
  return model.forward(ids, context_of(ids, probe));
}

at::Tensor some_values(at::IntArrayRef shape) {
  return at::randn(shape, at::detail::createCPUGenerator(5), at::dtype(at::kDouble));
}

}  // namespace

TEST_CASE("Each family's slots are called in the order in which they stand", "[model][MP-1]") {
  const auto [family, count] = GENERATE(table<std::string, size_t>({{"llama", 13},
                                                                    {"qwen2", 13},
                                                                    {"qwen3", 15},
                                                                    {"gemma3", 17},
                                                                    {"mixtral", 13},
                                                                    {"qwen2_moe", 19},
                                                                    {"deepseek_v3", 22},
                                                                    {"gpt_oss", 13}}));
  INFO(family);
  const ModelConfig config = small_of(family);
  Decoder model = ready(config);
  REQUIRE(model.slots().size() == 3 + 2 * count);
  CHECK(model.parameters().size() == weight_shapes(config).size());
  Recorder recorder;
  const at::Tensor logits = run(model, some_ids(), recorder);
  REQUIRE(recorder.seen.size() == model.slots().size());
  for (size_t i = 0; i < recorder.seen.size(); ++i) {
    CHECK(recorder.seen[i].name == model.slots()[i]->name + ".output");
    CHECK(recorder.seen[i].phase == Phase::kForward);
    CHECK(recorder.seen[i].token_map.defined());
  }
  recorder.seen.clear();
  logits.backward(uneven_like(logits));
  CHECK(recorder.seen.front().name == "lm_head.grad_input");
  CHECK(recorder.find("model.layers.0.self_attn.attention.grad_input.2") != nullptr);
  CHECK(recorder.find("model.embed_tokens.grad_input") == nullptr);
  const bool head_norms = family == "qwen3" || family == "gemma3";
  CHECK((recorder.find("model.layers.1.self_attn.k_norm.grad_input") != nullptr) == head_norms);
}

TEST_CASE("Watching changes no bit of outputs and gradients", "[model]") {
  Decoder watched = ready(small()), unwatched = ready(small());
  Recorder recorder;
  NoProbe nobody;
  const at::Tensor with = run(watched, some_ids(), recorder),
                   without = run(unwatched, some_ids(), nobody);
  CHECK(at::equal(with, without));
  with.backward(uneven_like(with));
  without.backward(uneven_like(without));
  for (size_t i = 0; i < watched.parameters().size(); ++i) {
    CHECK(at::equal(watched.parameters()[i]->tensor.grad(),
                    unwatched.parameters()[i]->tensor.grad()));
  }
}

TEST_CASE("Every output and gradient has the model's dtype", "[model]") {
  const auto dtype = GENERATE(at::kDouble, at::kFloat, at::kBFloat16);
  const std::string family = GENERATE("llama", "gemma3");
  Decoder model = ready(small_of(family), dtype);
  Recorder recorder;
  const at::Tensor logits = run(model, some_ids(), recorder);
  logits.backward(uneven_like(logits));
  for (const Observation& seen : recorder.seen) {
    INFO(seen.name);
    CHECK(seen.tensor.scalar_type() == dtype);
  }
  for (const ParameterPtr& parameter : model.parameters()) {
    CHECK(parameter->tensor.grad().scalar_type() == dtype);
    CHECK(gradient_of(*parameter).scalar_type() == wider_type(dtype));
  }
}

TEST_CASE("In bfloat16 attention computes in float32 and rounds once", "[model]") {
  const double size = GENERATE(2.0, 1e4);  // the second: exp of the scores is infinite
  const at::Tensor inputs[] = {some_values({2, 6, 4, 3}), some_values({2, 6, 2, 3}) * size,
                               some_values({2, 6, 2, 3})};
  const at::Tensor grad = some_values({2, 6, 12}).to(at::kBFloat16);
  NoProbe nobody;
  const auto output_and_gradients = [&](at::ScalarType dtype) {
    std::vector<at::Tensor> leaves, all;
    for (const at::Tensor& input : inputs) {
      leaves.push_back(input.to(at::kBFloat16).to(dtype).requires_grad_());
    }
    const at::Tensor out = CausalAttention().forward(leaves, {.probe = nobody});
    out.backward(grad.to(dtype));
    all.push_back(out.detach().to(at::kBFloat16));
    for (const at::Tensor& leaf : leaves) all.push_back(leaf.grad().to(at::kBFloat16));
    return all;
  };
  const auto narrow = output_and_gradients(at::kBFloat16), wide = output_and_gradients(at::kFloat);
  for (size_t i = 0; i < wide.size(); ++i) CHECK(at::equal(narrow[i], wide[i]));
}

using Part = Segment::Part;
using Chunks = std::vector<std::vector<Segment>>;

// Counts the calls of a region.
class CountedRegion : public RegionWrap {
 public:
  explicit CountedRegion(std::vector<int64_t>& chunks) : chunks_(chunks) {}
  at::Tensor run(const at::Tensor& x, const StepContext& context, const RegionBody& body) override {
    chunks_.push_back(context.chunk);
    return body(x, context);
  }

 private:
  std::vector<int64_t>& chunks_;
};

TEST_CASE("Chunks on one device give the bits of the whole model", "[model]") {
  const std::string family = GENERATE("llama", "qwen2", "gemma3", "qwen3_moe");
  ModelConfig config = small_of(family);
  config.num_hidden_layers = 3;
  if (config.has_experts()) config.expert_layers = {true, false, true};
  config.tie_word_embeddings = GENERATE(false, true);
  if (!config.sliding_layers.empty()) config.sliding_layers = {true, false, true};
  const Segment embed{Part::kEmbed}, norm{Part::kNorm}, head{Part::kHead};
  const Segment first{Part::kLayer, 0}, second{Part::kLayer, 1}, third{Part::kLayer, 2};
  const Chunks chunks = GENERATE_COPY(values<Chunks>({
      {{embed, first}, {second, third, norm, head}},
      {{embed}, {}, {first, second, third}, {norm}, {head}},
      {{embed, first, second, third, norm, head}},
  }));
  INFO(family << " in " << chunks.size() << " chunks, tied: " << config.tie_word_embeddings);
  Decoder whole = ready(config), parts(config, seeded_weights(config, 3));
  parts.set_chunks(chunks);
  REQUIRE(parts.chunk_count() == std::ssize(chunks));
  std::vector<int64_t> called;
  for (size_t c = 0; c < chunks.size(); ++c) {
    parts.region(c == 0 ? "model" : "chunk." + std::to_string(c))
        .wrap(std::make_unique<CountedRegion>(called));
  }
  parts.materialise(Mesh(), 0, at::kDouble, at::kCPU);

  Recorder of_whole, of_parts;
  const at::Tensor logits = run(whole, some_ids(), of_whole);
  const StepContext context = context_of(some_ids(), of_parts);
  std::vector<at::Tensor> inputs = {some_ids()}, outputs;
  std::vector<int64_t> numbers;
  for (int64_t c = 0; c < parts.chunk_count(); ++c) {
    outputs.push_back(parts.forward(c, inputs.back(), context));
    inputs.push_back(outputs.back().detach().requires_grad_());
    numbers.push_back(c);
  }
  CHECK(called == numbers);
  CHECK(at::equal(outputs.back(), logits));
  at::Tensor grad = uneven_like(logits);
  logits.backward(grad);
  for (size_t c = outputs.size(); c-- > 0;) {
    outputs[c].backward(grad);
    grad = inputs[c].grad();
  }
  const auto expected = whole.parameters(), actual = parts.parameters();
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    INFO(expected[i]->name);
    CHECK(at::equal(actual[i]->tensor.grad(), expected[i]->tensor.grad()));
  }
  // A layer keeps its number, and every value that is observed keeps its bits and its place.
  REQUIRE(of_parts.seen.size() == of_whole.seen.size());
  for (size_t i = 0; i < of_whole.seen.size(); ++i) {
    INFO(of_whole.seen[i].name);
    CHECK(of_parts.seen[i].name == of_whole.seen[i].name);
    CHECK(at::equal(of_parts.seen[i].tensor, of_whole.seen[i].tensor));
  }
}

TEST_CASE("The slots of the segments are the slots of the model in their order", "[model]") {
  Decoder model(small_of("gemma3"), seeded_weights(small_of("gemma3"), 3));
  const std::vector<Segment> all = model.segments();
  REQUIRE(all.size() == 5);
  CHECK(model.slots_of(0) == model.slots());
  std::vector<Slot*> joined;
  for (const Segment& segment : all) {
    for (Slot* slot : model.slots_of(segment)) joined.push_back(slot);
  }
  CHECK(joined == model.slots());
  CHECK(model.slots_of(all[2]).front()->name == "model.layers.1.input_layernorm");
  model.set_chunks({{all[4]}, {}, {all[1], all[2]}});
  CHECK(model.slots_of(0) == std::vector<Slot*>{&model.slot("lm_head")});
  CHECK(model.slots_of(1).empty());
  CHECK(model.slots_of(2).size() == 2 * 17);
}

TEST_CASE("Layers with experts and dense layers stand in one model", "[model][FM-2][FM-10]") {
  Decoder model = ready(small_of("qwen3_moe"));
  CHECK(model.slot("model.layers.0.mlp.experts").layer->parameters().size() == 2);
  CHECK(model.slot("model.layers.0.mlp.gate.ids").role == SlotRole::kSelection);
  CHECK(model.slot("model.layers.1.mlp.gate_proj").role == SlotRole::kGate);
  CHECK(model.parameters().size() == weight_shapes(model.config()).size());
}

TEST_CASE("A layer with a shared MLP has its slots behind the experts", "[model][FM-3]") {
  Decoder model = ready(small_of("qwen2_moe"));
  const std::string mlp = "model.layers.1.mlp.";
  const auto shape = [&](const char* slot) {
    return model.slot(mlp + slot).layer->parameters().at(0)->global_shape;
  };
  CHECK(shape("shared_expert.up_proj") == std::vector<int64_t>{7, 12});
  CHECK(shape("shared_expert_gate") == std::vector<int64_t>{1, 12});
  CHECK(model.slot(mlp + "shared_expert.down_proj").role == SlotRole::kDown);
  Recorder recorder;
  run(model, some_ids(), recorder);
  const auto out = [&](const char* slot) { return recorder.find(mlp + slot + ".output")->tensor; };
  const at::Tensor sum =
      out("experts") + out("shared_expert.down_proj") * out("shared_expert_gate").sigmoid();
  CHECK(at::allclose(out("shared_expert_sum"), sum, 0, 1e-14));
}

TEST_CASE("Latent attention has the weights of its latents, and shares a key among heads",
          "[model][FM-4][FM-5]") {
  Decoder model = ready(small_of("deepseek_v3"));
  const std::string attention = "model.layers.0.self_attn.";
  const auto shape = [&](const char* slot) {
    return model.slot(attention + slot).layer->parameters().at(0)->global_shape;
  };
  CHECK(shape("q_b_proj") == std::vector<int64_t>{30, 5});
  CHECK(shape("kv_a_proj_with_mqa") == std::vector<int64_t>{6, 12});
  CHECK(shape("kv_b_proj") == std::vector<int64_t>{60, 4});
  CHECK(shape("kv_a_layernorm") == std::vector<int64_t>{4});
  CHECK(shape("o_proj") == std::vector<int64_t>{12, 42});
  const auto bias = model.slot("model.layers.1.mlp.gate.ids").layer->parameters();
  REQUIRE(bias.size() == 1);
  CHECK(bias[0]->name == "model.layers.1.mlp.gate.e_score_correction_bias");
  Recorder recorder;
  run(model, some_ids(), recorder).square().sum().backward();
  CHECK_FALSE(bias[0]->tensor.requires_grad());
  const at::Tensor k = recorder.find(attention + "attention.grad_input.1")->tensor;
  CHECK(k.sizes() == at::IntArrayRef({3, 5, 6, 7}));
  const at::Tensor shared = recorder.find(attention + "rotary_key.grad_input")->tensor;
  CHECK(shared.sizes() == at::IntArrayRef({3, 5, 2}));
  // At position 0 nothing turns: the gradient of the shared key is the sum over the heads.
  CHECK(at::allclose(shared.select(1, 0), k.select(1, 0).narrow(-1, 3, 2).sum(1), 0, 1e-12));
}

TEST_CASE("Sinks and the biases of routers and experts are parameters", "[model][FM-9]") {
  Decoder model = ready(small_of("gpt_oss"));
  CHECK(model.slot("model.layers.0.self_attn.attention").layer->parameters().size() == 1);
  CHECK(model.slot("model.layers.0.mlp.router").layer->parameters().size() == 2);
  const auto experts = model.slot("model.layers.0.mlp.experts").layer->parameters();
  REQUIRE(experts.size() == 4);
  CHECK(experts[0]->global_shape == std::vector<int64_t>{4, 12, 10});
  CHECK(experts[1]->global_shape == std::vector<int64_t>{4, 5, 12});
  NoProbe nobody;
  run(model, some_ids(), nobody).square().sum().backward();
  for (const ParameterPtr& parameter : model.parameters()) {
    INFO(parameter->name);
    CHECK(parameter->tensor.grad().abs().sum().item<double>() > 0);
  }
}

TEST_CASE("Experts leave padding out, and its tokens get nothing from them", "[model][MR-14]") {
  Decoder model = ready(small_of("mixtral"));
  Recorder recorder;
  StepContext context = context_of(some_ids(), recorder);
  context.token_map.select(0, 2).narrow(0, 3, 2).fill_(-1);
  model.forward(some_ids(), context).sum().backward();
  const at::Tensor sum = recorder.find("model.layers.0.mlp.experts.output")->tensor;
  CHECK(at::equal(sum.abs().sum(-1).gt(0), context.token_map.ge(0)));
  const at::Tensor ids = recorder.find("model.layers.0.mlp.gate.ids.output")->tensor;
  CHECK(ids.scalar_type() == at::kLong);
  CHECK(at::equal(ids.ge(0).all(-1), context.token_map.ge(0)));
  const at::Tensor grad = recorder.find("model.layers.0.mlp.gate.weights.grad_input")->tensor;
  CHECK(grad.sizes() == at::IntArrayRef({3, 5, 4}));
  CHECK(grad.index({context.token_map.lt(0)}).abs().max().item<double>() == 0);
}

TEST_CASE("A batch without samples goes through forward and backward", "[model]") {
  Decoder model = ready(small_of(GENERATE("llama", "mixtral")));
  NoProbe nobody;
  const at::Tensor logits = run(model, at::zeros({0, 5}, at::kLong), nobody);
  CHECK(logits.sizes() == at::IntArrayRef({0, 5, 23}));
  logits.sum().backward();
}

TEST_CASE("A decoder over weights that lack a tensor is a sentence", "[model]") {
  auto weights = std::make_shared<WeightMap>(*seeded_weights(small(), 3));
  weights->erase("model.layers.1.mlp.up_proj.bias");
  CHECK_THROWS_AS(Decoder(small(), weights), Error);
}

}  // namespace shardproof::decoder_test
