// A float16 sum that is finite as a whole and infinite where tp shares it.
#include "golden/parted_sums.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <limits>

#include "golden/written_out.h"
#include "mesh/mesh.h"

namespace shardproof::golden {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

ModelConfig config_of_two() {
  ModelConfig config;
  config.family = "qwen3";
  config.vocab_size = 2;
  config.hidden_size = 1;
  config.intermediate_size = 2;
  config.num_hidden_layers = 1;
  config.num_attention_heads = config.num_key_value_heads = 1;
  config.head_dim = 2;
  return config;
}

// Of a model whose sums overflow in so many parts.
Decoder wrapped(int64_t parts) {
  const ModelConfig config = config_of_two();
  Decoder model(config, seeded_weights(config, 3));
  write_out(model);
  overflow_in_parts(model, parts);
  model.materialise(Mesh(), 0, at::kHalf, at::kCPU);
  return model;
}

}  // namespace

TEST_CASE("A sum of float16 is infinite where a part of it is", "[golden]") {
  NoProbe nobody;
  const StepContext context{.probe = nobody};
  for (const int64_t parts : {1, 2}) {
    CAPTURE(parts);
    Decoder model = wrapped(parts);
    // 61440 * 1.5 and -40960 * 1 of two ids, or of two inputs; the sum is 51200.
    const double expected = parts == 1 ? 51200 : kInfinite;
    Layer& head = *model.slot("lm_head").layer;
    head.parameters()[0]->tensor.detach().copy_(at::tensor({1.5, 1.0}).view({2, 1}));
    const at::Tensor x = at::ones({1, 2, 1}, at::kHalf).requires_grad_();
    const at::Tensor terms =
        at::tensor({61440.0, -40960.0, 3.0, 4.0}).view({1, 2, 2}).to(at::kHalf);
    head.forward({x}, context).backward(terms);
    CHECK(x.grad()[0][0][0].item<double>() == expected);
    CHECK(x.grad()[0][1][0].item<double>() == 8.5);

    Layer& down = *model.slot("model.layers.0.mlp.down_proj").layer;
    down.parameters()[0]->tensor.detach().copy_(at::tensor({1.5, 1.0}).view({1, 2}));
    const at::Tensor y = down.forward({terms}, context);
    CHECK(y[0][0][0].item<double>() == expected);
    CHECK(y[0][1][0].item<double>() == 8.5);
  }
}

}  // namespace shardproof::golden
