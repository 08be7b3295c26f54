// Legend: B samples, S positions, E model dim, V vocabulary.
#include "model/decoder.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>

#include <catch2/catch.hpp>
#include <thread>

#include "base/error.h"
#include "mesh/mesh.h"
#include "model/batch.h"
#include "tests/unit/model/six_head_model.h"

namespace shardproof::decoder_test {
namespace {

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
  config.sliding_window = 2;
  config.sliding_layers = {true, false};
  if (family == "gemma3") {
    config.activation = Activation::kGeluTanh;
    config.query_pre_attn_scalar = 7;
    config.rope_local_theta = 30;
  }
  return config;
}

// Keeps every observation.
class Recorder final : public Probe {
 public:
  bool listens(Phase) const override { return true; }
  void observe(const Observation& observation) override { seen.push_back(observation); }
  const Observation* find(const std::string& name) const {
    for (const Observation& observation : seen) {
      if (observation.name == name) return &observation;
    }
    return nullptr;
  }
  std::vector<Observation> seen;
};

at::Tensor some_ids() {
  return seeded_batch({.batch_size = 3, .seq_len = 5, .vocab_size = 23, .seed = 2}).input_ids;
}

at::Tensor run(Decoder& model, const at::Tensor& ids, Probe& probe, int64_t step = 1) {
  const StepContext context{.probe = probe,
                            .step = step,
                            .token_map = at::arange(ids.numel(), at::kLong).view(ids.sizes()),
                            .positions = at::arange(ids.size(1), at::kLong).expand_as(ids)};
  return model.forward(ids, context);
}

Decoder ready(const ModelConfig& config, at::ScalarType dtype = at::kDouble) {
  Decoder model(config, seeded_weights(config, 3));
  model.materialise(Mesh(), 0, dtype, at::kCPU);
  return model;
}

// A gradient that differs at every position.
at::Tensor uneven_like(const at::Tensor& tensor) {
  return at::arange(tensor.numel(), at::kDouble)
      .mul(0.7)
      .sin()
      .view(tensor.sizes())
      .to(tensor.dtype());
}

}  // namespace

TEST_CASE("Slots stand in forward order and are found by name", "[model]") {
  const ModelConfig config = small();
  Decoder model(config, seeded_weights(config, 3));
  const std::vector<Slot*> slots = model.slots();
  REQUIRE(slots.size() == 3 + 2 * 13);
  CHECK(slots.front()->name == "model.embed_tokens");
  CHECK(slots[1]->name == "model.layers.0.input_layernorm");
  CHECK(slots[13]->name == "model.layers.0.mlp_residual");
  CHECK(slots[slots.size() - 2]->name == "model.norm");
  CHECK(slots.back()->name == "lm_head");
  CHECK(slots.back()->kind() == SlotKind::kLmHead);
  CHECK(&model.slot("model.layers.1.mlp.activation") == slots[13 + 11]);
  CHECK(model.slot("model.layers.1.mlp.activation").kind() == SlotKind::kActivation);
}

TEST_CASE("Each family's slots are called in the order in which they stand", "[model][MP-1]") {
  const auto [family, count] = GENERATE(
      table<std::string, size_t>({{"llama", 13}, {"qwen2", 13}, {"qwen3", 15}, {"gemma3", 17}}));
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
  }
  recorder.seen.clear();
  logits.backward(uneven_like(logits));
  const bool head_norms = family == "qwen3" || family == "gemma3";
  CHECK((recorder.find("model.layers.1.self_attn.k_norm.grad_input") != nullptr) == head_norms);
}

TEST_CASE("A window hides early tokens from its own layer, not from those above", "[model][MP-1]") {
  ModelConfig config = small_of("qwen3");
  config.num_hidden_layers = 1;
  NoProbe nobody;
  const at::Tensor ids = some_ids();
  at::Tensor changed = ids.clone();
  changed.select(1, 0).add_(1).remainder_(23);
  const auto same_from = [&](int64_t token) {
    Decoder model = ready(config);
    const at::Tensor first = run(model, ids, nobody), second = run(model, changed, nobody);
    return at::equal(first.narrow(1, token, 5 - token), second.narrow(1, token, 5 - token));
  };
  CHECK(same_from(2));
  CHECK_FALSE(same_from(1));
  config.num_hidden_layers = 2;
  CHECK_FALSE(same_from(4));
}

TEST_CASE("Every parameter is there once; a tied one stands for both its uses", "[model]") {
  const ModelConfig untied = small(), tied = small(/*tied=*/true);
  Decoder first(untied, seeded_weights(untied, 3)), second(tied, seeded_weights(tied, 3));
  CHECK(first.parameters().size() == weight_shapes(untied).size());
  CHECK(second.parameters().size() == weight_shapes(tied).size());
  CHECK(first.parameters().front()->name == "model.embed_tokens.weight");
  CHECK(first.parameters().back()->name == "lm_head.weight");
  CHECK(second.parameters().back()->name == "model.norm.weight");
  CHECK(second.slot("lm_head").layer->parameters() ==
        second.slot("model.embed_tokens").layer->parameters());
}

TEST_CASE("Outputs are observed in the order of the run, gradients backwards", "[model]") {
  Decoder model = ready(small());
  Recorder recorder;
  const at::Tensor logits = run(model, some_ids(), recorder);
  REQUIRE(recorder.seen.size() == model.slots().size());
  for (size_t i = 0; i < recorder.seen.size(); ++i) {
    CHECK(recorder.seen[i].name == model.slots()[i]->name + ".output");
    CHECK(recorder.seen[i].phase == Phase::kForward);
    CHECK(recorder.seen[i].tensor.size(0) == 3);
    CHECK(recorder.seen[i].tensor.size(1) == 5);
    CHECK(recorder.seen[i].token_map.defined());
  }
  recorder.seen.clear();
  logits.backward(uneven_like(logits));
  CHECK(recorder.seen.front().name == "lm_head.grad_input");
  // One for each input of each slot, except the ids: 12 slots have one input, attention has three,
  // the activation and both residuals have two.
  CHECK(recorder.seen.size() == 2 + 2 * (9 + 3 + 2 + 2 * 2));
  CHECK(recorder.find("model.layers.0.self_attn.attention.grad_input.2") != nullptr);
  CHECK(recorder.find("model.embed_tokens.grad_input") == nullptr);
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

TEST_CASE("Gradients are those of finite differences", "[model]") {
  const std::string family = GENERATE("", "qwen2", "qwen3", "gemma3");
  Decoder model = ready(family.empty() ? small(/*tied=*/true) : small_of(family));
  NoProbe nobody;
  const at::Tensor ids = some_ids();
  const auto value = [&] {
    const at::Tensor logits = run(model, ids, nobody);
    return (logits * uneven_like(logits)).sum();
  };
  value().backward();
  const double step = 1e-5;
  for (const ParameterPtr& parameter : model.parameters()) {
    INFO(parameter->name);
    const at::NoGradGuard no_grad;
    const at::Tensor direction = uneven_like(parameter->tensor);
    parameter->tensor.add_(direction, step);
    const double above = value().item<double>();
    parameter->tensor.sub_(direction, 2 * step);
    const double below = value().item<double>();
    parameter->tensor.add_(direction, step);
    const double wanted = (parameter->tensor.grad() * direction).sum().item<double>();
    CHECK((above - below) / (2 * step) == Approx(wanted).epsilon(1e-6).margin(1e-7));
  }
}

TEST_CASE("Later tokens change nothing before them", "[model]") {
  Decoder model = ready(small());
  NoProbe nobody;
  const at::Tensor ids = some_ids();
  at::Tensor changed = ids.clone();
  changed[1][3] = (changed[1][3] + 1).remainder(23);
  const at::Tensor first = run(model, ids, nobody), second = run(model, changed, nobody);
  CHECK(at::equal(first.narrow(1, 0, 3), second.narrow(1, 0, 3)));
  CHECK(at::equal(first[0], second[0]));
  CHECK_FALSE(at::equal(first[1][3], second[1][3]));
  CHECK_FALSE(at::equal(first[1][4], second[1][4]));
}

TEST_CASE("The row of the padding token gets no gradient, but its head does when tied", "[model]") {
  const bool tied = GENERATE(false, true);
  ModelConfig config = small(tied);
  NoProbe nobody;
  const at::Tensor ids = some_ids();
  const int64_t pad = ids[0][2].item<int64_t>();
  Decoder plain = ready(config);
  config.pad_token_id = pad;
  Decoder padded = ready(config);
  for (Decoder* model : {&plain, &padded}) {
    const at::Tensor logits = run(*model, ids, nobody);
    logits.backward(uneven_like(logits));
  }
  const at::Tensor with = padded.parameters()[0]->tensor.grad(),
                   without = plain.parameters()[0]->tensor.grad();
  CHECK((with[pad].abs().max().item<double>() == 0) == !tied);
  CHECK_FALSE(at::equal(with[pad], without[pad]));
  CHECK(at::equal(with[(pad + 1) % 23], without[(pad + 1) % 23]));
}

TEST_CASE("Parameters are this rank's own leaves; the weights stay as they were", "[model]") {
  const ModelConfig config = small();
  const auto weights = seeded_weights(config, 3);
  Decoder first(config, weights), second(config, weights);
  for (Decoder* model : {&first, &second}) {
    model->parameters()[2]->trainable = false;
    model->parameters()[3]->layout = Layout({Cut::even(0, "tp")});
    model->materialise(Mesh({{"tp", 2}}), /*rank=*/1, at::kDouble, at::kCPU);
  }
  const auto parameters = first.parameters();
  for (const ParameterPtr& parameter : parameters) {
    CHECK(parameter->tensor.is_leaf());
    CHECK(parameter->tensor.data_ptr() != weights->at(parameter->name).data_ptr());
    CHECK_FALSE(parameter->master.defined());
  }
  CHECK_FALSE(parameters[2]->tensor.requires_grad());
  CHECK(parameters[1]->tensor.requires_grad());
  const at::Tensor full = weights->at(parameters[3]->name);
  CHECK(parameters[3]->global_shape == full.sizes().vec());
  CHECK(at::equal(parameters[3]->tensor, full.narrow(0, full.size(0) / 2, full.size(0) / 2)));
  {
    const at::NoGradGuard no_grad;
    parameters[1]->tensor.zero_();
  }
  CHECK(second.parameters()[1]->tensor.abs().sum().item<double>() > 0);
}

TEST_CASE("bfloat16 leaves are cut-down float32 masters; float32 leaves are their own", "[model]") {
  const ModelConfig config = small();
  Decoder low = ready(config, at::kBFloat16), single = ready(config, at::kFloat);
  for (size_t i = 0; i < low.parameters().size(); ++i) {
    const Parameter& half = *low.parameters()[i];
    CHECK(half.tensor.scalar_type() == at::kBFloat16);
    CHECK(half.master.scalar_type() == at::kFloat);
    CHECK(at::equal(half.tensor, half.master.to(at::kBFloat16)));
    CHECK(at::equal(half.master, single.parameters()[i]->tensor));
  }
  const Parameter& parameter = *low.parameters()[0];
  master_of(parameter).add_(1.0);
  CHECK_FALSE(at::equal(parameter.tensor, parameter.master.to(at::kBFloat16)));
  refresh_leaf(parameter);
  CHECK(at::equal(parameter.tensor, parameter.master.to(at::kBFloat16)));
  CHECK(parameter.tensor.requires_grad());
  const Parameter& own = *single.parameters()[0];
  CHECK(master_of(own).data_ptr() == own.tensor.data_ptr());
  CHECK(gradient_of(own).abs().sum().item<double>() == 0);
}

TEST_CASE("Lower precisions stay near float64 and keep the dtype through the model", "[model]") {
  const auto [dtype, nearness] =
      GENERATE(table<at::ScalarType, double>({{at::kFloat, 1e-5}, {at::kBFloat16, 0.08}}));
  const std::string family = GENERATE("llama", "gemma3");
  Decoder exact = ready(small_of(family)), low = ready(small_of(family), dtype);
  Recorder wide, narrow;
  const at::Tensor golden = run(exact, some_ids(), wide), actual = run(low, some_ids(), narrow);
  for (const Observation& seen : narrow.seen) CHECK(seen.tensor.scalar_type() == dtype);
  for (const Observation& seen : wide.seen) CHECK(seen.tensor.scalar_type() == at::kDouble);
  const double error = (actual.to(at::kDouble) - golden).abs().max().item<double>();
  CHECK(error > 0);
  CHECK(error < nearness * golden.abs().max().item<double>());
  actual.backward(uneven_like(actual));
  for (const ParameterPtr& parameter : low.parameters()) {
    CHECK(parameter->tensor.grad().scalar_type() == dtype);
    CHECK(gradient_of(*parameter).scalar_type() == at::kFloat);
  }
}

TEST_CASE("Models in many threads at once give the same bits as one alone", "[model]") {
  const ModelConfig config = small();
  const auto weights = seeded_weights(config, 3);
  const at::Tensor ids = some_ids();
  const auto gradients = [&] {
    at::set_num_threads(1);
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    Decoder model(config, weights);
    model.materialise(Mesh(), 0, at::kDouble, at::kCPU);
    NoProbe nobody;
    const at::Tensor logits = run(model, ids, nobody);
    logits.backward(uneven_like(logits));
    std::vector<at::Tensor> all{logits.detach()};
    for (const ParameterPtr& parameter : model.parameters())
      all.push_back(parameter->tensor.grad());
    return all;
  };
  std::vector<std::vector<at::Tensor>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = gradients(); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) {
    REQUIRE(result.size() == results[0].size());
    for (size_t i = 0; i < result.size(); ++i) CHECK(at::equal(result[i], results[0][i]));
  }
}

TEST_CASE("A batch without samples goes through forward and backward", "[model]") {
  Decoder model = ready(small());
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
