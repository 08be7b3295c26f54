#include "golden/written_out.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "mesh/mesh.h"
#include "tests/support/said_by.h"

namespace shardproof::golden {
namespace {

ModelConfig small_mixtral() {
  ModelConfig config;
  config.family = "mixtral";
  config.vocab_size = 11;
  config.hidden_size = 8;
  config.intermediate_size = config.expert_width = 6;
  config.num_hidden_layers = 1;
  config.num_attention_heads = config.num_key_value_heads = 2;
  config.head_dim = 4;
  config.router = {.num_experts = 4, .num_chosen = 2};
  config.expert_layers = {true};
  return config;
}

at::Tensor logits_of(Decoder& model) {
  NoProbe nobody;
  const at::Tensor ids = at::arange(6, at::kLong).view({2, 3});
  return model.forward(ids,
                       {.probe = nobody, .positions = at::arange(3, at::kLong).expand_as(ids)});
}

}  // namespace

TEST_CASE("The golden refuses a case in which roundings could choose the experts",
          "[golden][MR-15]") {
  const ModelConfig config = small_mixtral();
  auto weights = std::make_shared<WeightMap>(*seeded_weights(config, 3));
  const bool equal = GENERATE(false, true);
  if (equal) {  // two experts have the same logits, and one of them may be chosen last
    at::Tensor& router = weights->at("model.layers.0.mlp.gate.weight");
    router = at::stack({router[0], router[0], router[0], router[0]});
  }
  Decoder plain(config, weights), written(config, weights);
  write_out(written);
  for (Decoder* model : {&plain, &written}) model->materialise(Mesh(), 0, at::kDouble, at::kCPU);
  if (!equal) {
    CHECK(at::allclose(logits_of(written), logits_of(plain), 0, 1e-13));
    return;
  }
  CHECK_NOTHROW(logits_of(plain));
  const std::string said = tests::said_by([&] { logits_of(written); });
  CHECK_THAT(said, Catch::StartsWith("refused: "));
  CHECK_THAT(said, Catch::Contains("mlp.gate.ids chooses for token 0 between two scores"));
  CHECK_THAT(said, Catch::Contains("choose another seed"));
}

}  // namespace shardproof::golden
