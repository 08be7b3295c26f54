// What is watched of the gradients of weights, beside the gradients that autograd leaves.
#include "golden/weight_terms.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <string>

#include "golden/written_out.h"
#include "mesh/mesh.h"

namespace shardproof::golden {
namespace {

ModelConfig small_config(const std::string& family) {
  ModelConfig config;
  config.family = family;
  config.vocab_size = 11;
  config.hidden_size = 8;
  config.intermediate_size = 6;
  config.num_hidden_layers = 1;
  config.num_attention_heads = config.num_key_value_heads = 2;
  config.head_dim = 4;
  return config;
}

}  // namespace

TEST_CASE("the watch tells which gradient overflows, whatever weight is trained", "[golden]") {
  const std::string trained =
      GENERATE("q_norm.weight", "k_norm.weight", "input_layernorm.weight", "model.norm.weight",
               "q_proj.weight", "embed_tokens.weight", "lm_head.weight");
  const ModelConfig config = small_config("qwen3");
  Decoder model(config, seeded_weights(config, 3));
  write_out(model);
  for (const ParameterPtr& parameter : model.parameters()) {
    parameter->trainable = parameter->name.ends_with(trained);
  }
  const auto terms = watch_weight_terms(model);
  model.materialise(Mesh(), 0, at::kDouble, at::kCPU);
  at::Tensor* weight = nullptr;
  for (const ParameterPtr& parameter : model.parameters()) {
    if (parameter->trainable) weight = &parameter->tensor;
  }
  REQUIRE(weight != nullptr);
  NoProbe nobody;
  const at::Tensor ids = at::arange(10, at::kLong).remainder(3).view({2, 5});
  const auto largest_gradient = [&](double scale) {
    terms->reset();
    weight->mutable_grad() = at::Tensor();
    const at::Tensor out =
        model.forward(ids, {.probe = nobody, .positions = at::arange(5, at::kLong).expand_as(ids)});
    (out.log_softmax(-1).select(-1, 1).sum() * scale).backward();
    return weight->grad().abs().max().item<double>();
  };
  const double one = largest_gradient(1);
  REQUIRE(one > 0);
  CHECK(terms->most >= one);
  CHECK_FALSE(terms->overflows);
  // Just below the largest number of float16, and just above it.
  for (const double share : {0.999, 1.001}) {
    const double largest = largest_gradient(share * kLargestHalf / one);
    CHECK(terms->most >= largest);
    CHECK(terms->overflows == (largest > kLargestHalf));
    // Of sixteen ranks that share the positions none has the whole sum.
    CHECK(terms->only_as_summed() == (share > 1));
  }
}

}  // namespace shardproof::golden
