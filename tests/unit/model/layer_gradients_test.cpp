// Layers with a backward of their own, against autograd of the same formulas.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "model/decoder.h"

namespace shardproof::layer_gradients_test {
namespace {

using Forward = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

at::Tensor random(at::IntArrayRef shape, int64_t seed, at::ScalarType dtype = at::kDouble) {
  at::manual_seed(seed);
  return at::randn(shape, at::kDouble).to(dtype);
}

// The output, and the gradient of each input for an output gradient that differs at each element.
std::vector<at::Tensor> output_and_gradients(const Forward& forward,
                                             const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs) {
    leaves.push_back(input.detach().clone().requires_grad_(true));
  }
  const at::Tensor out = forward(leaves);
  out.backward(
      (at::arange(out.numel(), at::kDouble) * 0.7).sin().view(out.sizes()).to(out.scalar_type()));
  std::vector<at::Tensor> all{out.detach()};
  for (const at::Tensor& leaf : leaves) all.push_back(leaf.grad());
  return all;
}

// The largest difference of all, relative to the largest value.
double difference(const Forward& a, const Forward& b, const std::vector<at::Tensor>& inputs) {
  const auto of_a = output_and_gradients(a, inputs), of_b = output_and_gradients(b, inputs);
  double error = 0, largest = 0;
  for (size_t i = 0; i < of_a.size(); ++i) {
    REQUIRE(of_a[i].sizes() == of_b[i].sizes());
    REQUIRE(of_a[i].scalar_type() == of_b[i].scalar_type());
    const at::Tensor wanted = of_b[i].to(at::kDouble);
    error = std::max(error, (of_a[i].to(at::kDouble) - wanted).abs().max().item<double>());
    largest = std::max(largest, wanted.abs().max().item<double>());
  }
  return error / largest;
}

struct AttentionCase {
  int64_t batch, seq_len, heads, kv_heads;
  int64_t window = 0;
  std::vector<int64_t> lengths = {};  // of a packed row
};

at::Tensor ids_of(const AttentionCase& asked) {
  std::vector<at::Tensor> ids;
  for (size_t i = 0; i < asked.lengths.size(); ++i) {
    ids.push_back(at::full({asked.lengths[i]}, static_cast<int64_t>(i), at::kLong));
  }
  return ids.empty() ? at::Tensor() : at::cat(ids);
}

Forward attention_layer(const AttentionCase& asked) {
  return [asked](const std::vector<at::Tensor>& in) {
    NoProbe nobody;
    CausalAttention attention({.scale = 0.4, .window = asked.window});
    return attention.forward({in[0], in[1], in[2]},
                             {.probe = nobody, .sequence_ids = ids_of(asked)});
  };
}

// Attention of one query and one head at a time.
Forward attention_written_out(const AttentionCase& asked) {
  return [asked](const std::vector<at::Tensor>& in) {
    const int64_t group = asked.heads / asked.kv_heads;
    const at::Tensor position = at::arange(asked.seq_len), ids = ids_of(asked);
    std::vector<at::Tensor> heads;
    for (int64_t h = 0; h < asked.heads; ++h) {
      const at::Tensor q = in[0].select(2, h), k = in[1].select(2, h / group),
                       v = in[2].select(2, h / group);
      std::vector<at::Tensor> queries;
      for (int64_t i = 0; i < asked.seq_len; ++i) {
        at::Tensor seen = position <= i;
        if (asked.window > 0) seen = seen.logical_and(position > i - asked.window);
        if (ids.defined()) seen = seen.logical_and(ids == ids[i]);
        const at::Tensor weights =
            at::where(seen, (0.4 * at::matmul(k, q.select(1, i).unsqueeze(-1)).squeeze(-1)).exp(),
                      at::zeros({}, at::kDouble));
        queries.push_back((weights.unsqueeze(-1) * v).sum(1) / weights.sum(1, true));
      }
      heads.push_back(at::stack(queries, 1));
    }
    return at::stack(heads, 2).flatten(2);
  };
}

at::Tensor squared_mean_root(const at::Tensor& x) {
  return at::sqrt((x * x).sum(-1, true) / static_cast<double>(x.size(-1)) + 0.1);
}

ParameterPtr parameter(const at::Tensor& tensor) {
  return std::make_shared<Parameter>(Parameter{.name = "w", .tensor = tensor});
}

}  // namespace

TEST_CASE("attention's gradients are those of its definition, in one block of queries and in many",
          "[model]") {
  // Wide rows of more than 32 positions, as in the last cases, have several blocks.
  const AttentionCase asked = GENERATE(
      AttentionCase{2, 5, 6, 2}, AttentionCase{1, 1, 2, 1}, AttentionCase{2, 7, 3, 3, 3},
      AttentionCase{1, 9, 4, 2, 0, {4, 1, 4}}, AttentionCase{1, 9, 2, 2, 2, {3, 6}},
      AttentionCase{3, 107, 6, 2}, AttentionCase{3, 107, 6, 3, 5},
      AttentionCase{1, 150, 10, 5, 0, {61, 1, 70, 18}}, AttentionCase{1, 150, 10, 2, 40, {150}});
  const std::vector<at::Tensor> inputs{random({asked.batch, asked.seq_len, asked.heads, 3}, 1),
                                       random({asked.batch, asked.seq_len, asked.kv_heads, 3}, 2),
                                       random({asked.batch, asked.seq_len, asked.kv_heads, 3}, 3)};
  INFO(asked.seq_len << " positions, window " << asked.window);
  const int64_t rows = attention_block_rows(asked.batch, asked.seq_len, asked.heads, 8);
  CHECK((rows < asked.seq_len) == (asked.seq_len > 100));
  CHECK(difference(attention_layer(asked), attention_written_out(asked), inputs) < 1e-13);
}

TEST_CASE("in bfloat16 attention computes in float32 and rounds once", "[model]") {
  const AttentionCase asked{.batch = 2, .seq_len = 6, .heads = 4, .kv_heads = 2};
  const std::vector<at::Tensor> inputs{random({2, 6, 4, 3}, 1, at::kBFloat16),
                                       random({2, 6, 2, 3}, 2, at::kBFloat16),
                                       random({2, 6, 2, 3}, 3, at::kBFloat16)};
  const Forward wide = [&](const std::vector<at::Tensor>& in) {
    return attention_layer(asked)(
               {in[0].to(at::kFloat), in[1].to(at::kFloat), in[2].to(at::kFloat)})
        .to(at::kBFloat16);
  };
  CHECK(difference(attention_layer(asked), wide, inputs) == 0);
}

TEST_CASE("the norm's gradients are those of its definition, also of heads and with an offset",
          "[model]") {
  const bool offset = GENERATE(false, true);
  const std::vector<at::Tensor> inputs{random({2, 3, 5, 4}, 1), random({4}, 2)};
  const Forward layer = [&](const std::vector<at::Tensor>& in) {
    NoProbe nobody;
    return RmsNorm(parameter(in[1]), 0.1, offset).forward({in[0]}, {.probe = nobody});
  };
  const Forward written_out = [&](const std::vector<at::Tensor>& in) {
    return in[0] / squared_mean_root(in[0]) * (offset ? 1 + in[1] : in[1]);
  };
  CHECK(difference(layer, written_out, inputs) < 1e-14);
}

TEST_CASE("a norm whose weight is frozen gives its input's gradient alone", "[model]") {
  NoProbe nobody;
  const at::Tensor x = random({3, 4}, 1).requires_grad_(true), weight = random({4}, 2);
  RmsNorm(parameter(weight), 0.1).forward({x}, {.probe = nobody}).sum().backward();
  CHECK(x.grad().defined());
  CHECK_FALSE(weight.grad().defined());
}

TEST_CASE("the gates' gradients are those of their definitions", "[model]") {
  const std::vector<at::Tensor> inputs{random({2, 3, 5}, 1) * 3, random({2, 3, 5}, 2)};
  const auto of = [](auto make) {
    return [make](const std::vector<at::Tensor>& in) {
      NoProbe nobody;
      return make().forward({in[0], in[1]}, {.probe = nobody});
    };
  };
  const Forward silu = [](const std::vector<at::Tensor>& in) {
    return in[0] / (1 + (-in[0]).exp()) * in[1];
  };
  const Forward gelu = [](const std::vector<at::Tensor>& in) {
    const at::Tensor inner =
        std::sqrt(2 / 3.14159265358979323846) * (in[0] + 0.044715 * in[0] * in[0] * in[0]);
    return 0.5 * in[0] * (1 + inner.tanh()) * in[1];
  };
  CHECK(difference(of([] { return SiluGate(); }), silu, inputs) < 1e-14);
  CHECK(difference(of([] { return GeluTanhGate(); }), gelu, inputs) < 1e-14);
}

}  // namespace shardproof::layer_gradients_test
