// Moved scores beside their formulas written out.
// Legend: B samples, S positions, H heads, D dims.
#include "sim/case/recorder/score_noise.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "sim/case/recorder/rounding_noise.h"
#include "tests/unit/model/six_head_model.h"

namespace shardproof::sim {
namespace {

constexpr double kRoundings = 1e12;  // so that the move is far above float64's own roundings
const std::string kSlot = "model.layers.0.self_attn.attention";

struct Gradients {
  at::Tensor out, q = {}, k = {}, v = {};
};

// draw: null for layers that nothing moves.
Gradients run(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& grad,
              const DrawNoise& draw) {
  const ModelConfig config = tests::six_head_model();
  Decoder model(config, seeded_weights(config, 3));
  model.materialise(Mesh(), 0, at::kDouble, at::kCPU);
  if (draw) move_scores(model, kRoundings, draw);
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
  if (!at::GradMode::is_enabled()) return {.out = out};
  out.backward(grad);
  return {out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

// A model's shapes, and draws of [-1, 1].
struct Moves {
  const ModelConfig config = tests::six_head_model();
  int64_t heads = config.num_attention_heads, kv_heads = config.num_key_value_heads;
  int64_t shared = heads / kv_heads, dims = config.head_dim;
  at::Tensor q = at::randn({2, 5, heads, dims}, at::kDouble),
             k = at::randn({2, 5, kv_heads, dims}, at::kDouble),
             v = at::randn({2, 5, kv_heads, dims}, at::kDouble),
             grad = at::randn({2, 5, heads*dims}, at::kDouble);
  at::Tensor u = at::rand({2, 5, heads, 1}, at::kDouble) * 2 - 1;
  at::Tensor queries = by_head(q), keys = by_head(k.repeat_interleave(shared, 2));  // [B, H, S, D]
  double scale = config.score_scale(), unit = kRoundings * half_gap(at::kDouble);
  at::Tensor scores = queries.matmul(keys.transpose(2, 3)) * scale;
  at::Tensor hidden_scores = scores.masked_fill(at::ones({5, 5}, at::kBool).triu(1), -INFINITY);
  at::Tensor p = at::softmax(hidden_scores, -1);
  at::Tensor lse = by_head((p * scores).sum(-1, true).abs());  // the mean score, [B, S, H, 1]

  static at::Tensor by_head(const at::Tensor& one) { return one.transpose(1, 2); }
  // Moves either the weights or the score gradients.
  Gradients moved(const std::string& what) const {
    bool drawn = false;
    const Gradients found =
        run(q, k, v, grad, [&](const at::Tensor& like, const std::string& name) {
          REQUIRE(like.sizes() == u.sizes());
          CHECK(name.find(kSlot) != name.npos);
          const bool is_it = name.find(what) != name.npos;
          drawn = drawn || is_it;
          return is_it ? u.clone() : at::zeros_like(u);
        });
    CHECK(drawn);
    return found;
  }
};

}  // namespace

TEST_CASE("Score gradients move by P_ij a_i, and outputs and values' gradients do not",
          "[golden]") {
  at::manual_seed(5);
  const Moves m;
  const Gradients plain = run(m.q, m.k, m.v, m.grad, nullptr), moved = m.moved(" rows ");
  CHECK(at::equal(moved.out, plain.out));
  CHECK(at::equal(moved.v, plain.v));

  const at::Tensor products =
      (m.grad * plain.out).view({2, 5, m.heads, m.dims}).abs().sum(-1, true);
  const at::Tensor a = Moves::by_head(m.u * products * m.unit *
                                      (2 * std::sqrt(static_cast<double>(m.dims)) + m.lse));
  const at::Tensor scores = m.p * a;
  const at::Tensor dq = Moves::by_head(scores.matmul(m.keys) * m.scale);
  const at::Tensor dk = Moves::by_head(scores.transpose(2, 3).matmul(m.queries) * m.scale)
                            .view({2, 5, m.kv_heads, m.shared, m.dims})
                            .sum(3);
  CHECK(dq.abs().max().item<double>() > 1e-5);
  CHECK(at::allclose(moved.q - plain.q, dq, 1e-6, 1e-9));
  CHECK(at::allclose(moved.k - plain.k, dk, 1e-6, 1e-9));
}

TEST_CASE("A row's weights move by |lse| roundings, in scores without gradients too", "[golden]") {
  at::manual_seed(6);
  const Moves m;
  const at::Tensor lse = Moves::by_head(m.hidden_scores.logsumexp(-1, true));
  CHECK((lse.abs() - m.lse).abs().max().item<double>() <= std::log(5.0));

  const Gradients plain = run(m.q, m.k, m.v, m.grad, nullptr), moved = m.moved(" weights ");
  const at::Tensor factors = m.u * m.unit * m.lse;  // of each row, [B, S, H, 1]
  CHECK(factors.abs().max().item<double>() > 1e-5);
  const auto by_heads = [&](const at::Tensor& one) { return one.view({2, 5, m.heads, m.dims}); };
  const at::Tensor moves = (by_heads(plain.out) * factors).view(plain.out.sizes());
  CHECK(at::allclose(moved.out - plain.out, moves, 1e-6, 1e-12));

  // The gradients are those of the output gradient with these factors.
  const at::Tensor more = (by_heads(m.grad) * factors).view(m.grad.sizes());
  const Gradients due = run(m.q, m.k, m.v, more, nullptr);
  CHECK(at::allclose(moved.q - plain.q, due.q, 1e-6, 1e-9));
  CHECK(at::allclose(moved.k - plain.k, due.k, 1e-6, 1e-9));
  CHECK(at::allclose(moved.v - plain.v, due.v, 1e-6, 1e-9));

  const at::NoGradGuard scores;
  CHECK(at::equal(m.moved(" weights ").out, moved.out));
}

}  // namespace shardproof::sim
