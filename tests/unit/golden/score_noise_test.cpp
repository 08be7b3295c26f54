// Moved score gradients beside P_ij a_i written out.
// Legend: B samples, S positions, H heads, D dims.
// heads, D dims.
#include "sim/case/recorder/score_noise.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <memory>

#include "sim/case/recorder/rounding_noise.h"
#include "tests/unit/model/six_head_model.h"

namespace shardproof::sim {
namespace {

constexpr double kRoundings = 1e12;  // so that the move is far above float64's own roundings
const std::string kSlot = "model.layers.0.self_attn.attention";

struct Gradients {
  at::Tensor out, q, k, v;
};

// draw: null for layers that nothing moves.
Gradients run(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& grad,
              const DrawNoise& draw) {
  const ModelConfig config = tests::six_head_model();
  Decoder model(config, seeded_weights(config, 3));
  model.materialise(Mesh(), 0, at::kDouble, at::kCPU);
  if (draw) move_score_gradients(model, kRoundings, draw);
  NoProbe nobody;
  const int64_t samples = q.size(0), length = q.size(1);
  const StepContext context{
      .probe = nobody,
      .step = 1,
      .token_map = at::arange(samples * length, at::kLong).view({samples, length}),
      .positions = at::arange(length, at::kLong).expand({samples, length})};
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& one : {q, k, v}) leaves.push_back(one.clone().requires_grad_(true));
  const at::Tensor out = model.slot(kSlot).layer->forward(leaves, context);
  out.backward(grad);
  return {out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

}  // namespace

TEST_CASE("Score gradients move by P_ij a_i, and outputs and values' gradients do not",
          "[golden]") {
  const ModelConfig config = tests::six_head_model();
  const int64_t heads = config.num_attention_heads, shared = heads / config.num_key_value_heads,
                dims = config.head_dim;
  at::manual_seed(5);
  const at::Tensor q = at::randn({2, 5, heads, dims}, at::kDouble),
                   k = at::randn({2, 5, heads / shared, dims}, at::kDouble),
                   v = at::randn({2, 5, heads / shared, dims}, at::kDouble),
                   grad = at::randn({2, 5, heads * dims}, at::kDouble);
  const at::Tensor u = at::rand({2, 5, heads, 1}, at::kDouble) * 2 - 1;
  std::string stream;
  const Gradients plain = run(q, k, v, grad, nullptr);
  const Gradients moved = run(q, k, v, grad, [&](const at::Tensor& like, const std::string& name) {
    REQUIRE(like.sizes() == u.sizes());
    stream = name;
    return u.clone();
  });
  CHECK(stream.find(kSlot) != stream.npos);
  CHECK(at::equal(moved.out, plain.out));
  CHECK(at::equal(moved.v, plain.v));

  // [B, H, S, ..]
  const auto by_head = [&](const at::Tensor& one) { return one.transpose(1, 2); };
  const at::Tensor queries = by_head(q), keys = by_head(k.repeat_interleave(shared, 2));
  const double scale = config.score_scale();
  const at::Tensor later = at::ones({5, 5}, at::kBool).triu(1);
  const at::Tensor p =
      at::softmax((queries.matmul(keys.transpose(2, 3)) * scale).masked_fill(later, -INFINITY), -1);
  const at::Tensor products = (grad * plain.out).view({2, 5, heads, dims}).abs().sum(-1, true);
  const at::Tensor a = by_head(u * products * kRoundings * half_gap(at::kDouble) * 2 *
                               std::sqrt(static_cast<double>(dims)));
  const at::Tensor scores = p * a;
  const at::Tensor dq = by_head(scores.matmul(keys) * scale);
  const at::Tensor dk = by_head(scores.transpose(2, 3).matmul(queries) * scale)
                            .view({2, 5, heads / shared, shared, dims})
                            .sum(3);
  CHECK(dq.abs().max().item<double>() > 1e-5);
  CHECK(at::allclose(moved.q - plain.q, dq, 1e-6, 1e-9));
  CHECK(at::allclose(moved.k - plain.k, dk, 1e-6, 1e-9));
}

}  // namespace shardproof::sim
