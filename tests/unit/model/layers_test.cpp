// Each plain layer against its definition, written element by element.
//
// Legend: B samples, S positions, H heads, D head dim.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "model/decoder.h"
#include "model/rope.h"

namespace shardproof {
namespace {

at::Tensor random(at::IntArrayRef shape, int64_t seed) {
  at::manual_seed(seed);
  return at::randn(shape, at::kDouble);
}

at::Tensor call(Layer& layer, at::TensorList inputs) {
  NoProbe nobody;
  return layer.forward(inputs, StepContext{.probe = nobody});
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

ModelConfig rope_config(RopeScaling scaling, int64_t head_dim = 16) {
  ModelConfig config;
  config.head_dim = head_dim;
  config.rope_theta = 100.0;
  config.rope_scaling = std::move(scaling);
  return config;
}

}  // namespace

TEST_CASE("Attention is a softmax over the keys up to the query, heads sharing kv heads",
          "[model]") {
  const int64_t batch = 2, seq_len = 5, heads = 6, kv_heads = 2, dim = 3;
  const at::Tensor q = random({batch, seq_len, heads, dim}, 1),
                   k = random({batch, seq_len, kv_heads, dim}, 2),
                   v = random({batch, seq_len, kv_heads, dim}, 3);
  at::Tensor wanted = at::zeros({batch, seq_len, heads, dim}, at::kDouble);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t shared = h / (heads / kv_heads);
      for (int64_t t = 0; t < seq_len; ++t) {
        double total = 0;
        for (int64_t s = 0; s <= t; ++s) {
          const double weight = std::exp((q[b][t][h] * k[b][s][shared]).sum().item<double>() /
                                         std::sqrt(double(dim)));
          total += weight;
          wanted[b][t][h] += weight * v[b][s][shared];
        }
        wanted[b][t][h] /= total;
      }
    }
  }
  CausalAttention attention;
  const at::Tensor got = call(attention, {q, k, v});
  CHECK(got.sizes() == at::IntArrayRef({batch, seq_len, heads * dim}));
  CHECK(difference(got.view(wanted.sizes()), wanted) < 1e-14);
}

TEST_CASE("Attention takes its head counts from what it is given", "[model]") {
  const at::Tensor q = random({1, 4, 6, 2}, 1), k = random({1, 4, 2, 2}, 2),
                   v = random({1, 4, 2, 2}, 3);
  CausalAttention attention;
  const at::Tensor whole = call(attention, {q, k, v}).view({1, 4, 6, 2});
  const at::Tensor half =
      call(attention, {q.narrow(2, 3, 3), k.narrow(2, 1, 1), v.narrow(2, 1, 1)});
  CHECK(difference(half.view({1, 4, 3, 2}), whole.narrow(2, 3, 3)) < 1e-15);
}

TEST_CASE("With a window a query sees the last keys alone, itself among them", "[model][MP-1]") {
  const int64_t window = GENERATE(1, 2, 3, 7, 9);
  const at::Tensor q = random({1, 7, 4, 2}, 1), k = random({1, 7, 2, 2}, 2),
                   v = random({1, 7, 2, 2}, 3);
  CausalAttention sliding({.scale = 0.3, .window = window}), whole({.scale = 0.3});
  const at::Tensor got = call(sliding, {q, k, v});
  for (int64_t t = 0; t < 7; ++t) {
    const int64_t first = std::max<int64_t>(0, t - window + 1), seen = t - first + 1;
    const auto cut_out = [&](const at::Tensor& x) { return x.narrow(1, first, seen); };
    const at::Tensor alone = call(whole, {cut_out(q), cut_out(k), cut_out(v)});
    CHECK(difference(got.select(1, t), alone.select(1, seen - 1)) < 1e-14);
  }
}

TEST_CASE("The scale of the scores is the one that is given", "[model][MP-1]") {
  const at::Tensor q = random({1, 5, 2, 4}, 1), k = random({1, 5, 2, 4}, 2),
                   v = random({1, 5, 2, 4}, 3);
  CausalAttention plain, scaled({.scale = 0.25});
  CHECK(difference(call(scaled, {q * 2, k, v}), call(plain, {q, k, v})) < 1e-14);
}

TEST_CASE("Huge scores do not overflow attention", "[model]") {
  const at::Tensor q = random({1, 4, 1, 2}, 1) * 1e4, k = random({1, 4, 1, 2}, 2) * 1e4,
                   v = random({1, 4, 1, 2}, 3);
  CausalAttention attention;
  CHECK(at::isfinite(call(attention, {q, k, v})).all().item<bool>());
}

TEST_CASE("RMS norm divides by the root of the mean square", "[model]") {
  const at::Tensor x = random({2, 3, 4}, 1), weight = random({4}, 2);
  RmsNorm norm(std::make_shared<Parameter>(Parameter{.name = "w", .tensor = weight}), 0.1);
  at::Tensor wanted = at::empty_like(x);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t s = 0; s < 3; ++s) {
      const double square = x[b][s].square().sum().item<double>() / 4.0;
      wanted[b][s] = x[b][s] / std::sqrt(square + 0.1) * weight;
    }
  }
  CHECK(difference(call(norm, {x}), wanted) < 1e-15);
}

TEST_CASE("A norm with a unit offset multiplies by 1 + weight, also heads", "[model][MP-1]") {
  const at::Tensor x = random({2, 3, 5, 4}, 1), weight = random({4}, 2);
  const auto parameter = [](const at::Tensor& tensor) {
    return std::make_shared<Parameter>(Parameter{.name = "w", .tensor = tensor});
  };
  RmsNorm offset(parameter(weight), 0.1, /*unit_offset=*/true), plain(parameter(weight + 1), 0.1);
  CHECK(difference(call(offset, {x}), call(plain, {x})) < 1e-15);
  CHECK(difference(call(offset, {x}).select(2, 3), call(offset, {x.select(2, 3)})) == 0);
}

TEST_CASE("The other gate is gelu by its tanh formula", "[model][MP-1]") {
  const at::Tensor gate = random({2, 3}, 1) * 3, up = random({2, 3}, 2);
  const at::Tensor inner = std::sqrt(2 / 3.14159265358979323846) * (gate + 0.044715 * gate.pow(3));
  GeluTanhGate activation;
  CHECK(difference(call(activation, {gate, up}), 0.5 * gate * (1 + inner.tanh()) * up) < 1e-14);
}

TEST_CASE("The gate multiplies silu(gate) by up, in that order", "[model]") {
  const at::Tensor gate = random({2, 3}, 1), up = random({2, 3}, 2);
  SiluGate activation;
  CHECK(difference(call(activation, {gate, up}), gate / (1 + (-gate).exp()) * up) < 1e-15);
}

TEST_CASE("Rotation turns element i with element i + D/2 by position times frequency", "[model]") {
  const at::Tensor x = random({2, 3, 2, 6}, 1),
                   frequencies = at::tensor({1.0, 0.3, 0.01}, at::kDouble);
  const at::Tensor positions = at::tensor({0, 5, 2, 7, 1, 900}, at::kLong).view({2, 3});
  const at::Tensor got = rotate(x, rotary_table(positions, frequencies));
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t s = 0; s < 3; ++s) {
      for (int64_t i = 0; i < 3; ++i) {
        const double angle = positions[b][s].item<double>() * frequencies[i].item<double>();
        const double first = x[b][s][1][i].item<double>(),
                     second = x[b][s][1][i + 3].item<double>();
        CHECK(got[b][s][1][i].item<double>() ==
              Approx(first * std::cos(angle) - second * std::sin(angle)).epsilon(1e-14));
        CHECK(got[b][s][1][i + 3].item<double>() ==
              Approx(second * std::cos(angle) + first * std::sin(angle)).epsilon(1e-14));
      }
    }
  }
}

TEST_CASE("Llama 3 rope keeps short wavelengths, stretches long ones, blends between", "[model]") {
  const RopeScaling scaling{.kind = RopeKind::kLlama3,
                            .factor = 8,
                            .low_freq_factor = 1,
                            .high_freq_factor = 4,
                            .original_max_position_embeddings = 48};
  const at::Tensor plain = inverse_frequencies(rope_config({}));
  const at::Tensor linear =
      inverse_frequencies(rope_config({.kind = RopeKind::kLinear, .factor = 8}));
  const at::Tensor llama3 = inverse_frequencies(rope_config(scaling));
  CHECK(difference(linear * 8, plain) < 1e-16);
  int64_t kept = 0, stretched = 0, between = 0;
  for (int64_t i = 0; i < 8; ++i) {
    const double before = plain[i].item<double>(), after = llama3[i].item<double>();
    CHECK(before == Approx(std::pow(100.0, -2.0 * static_cast<double>(i) / 16.0)).epsilon(1e-15));
    const double wavelength = 2 * 3.14159265358979323846 / before;
    if (wavelength < 12) {
      CHECK(after == before);
      ++kept;
    } else if (wavelength > 48) {
      CHECK(after == before / 8);
      ++stretched;
    } else {
      CHECK(after < before);
      CHECK(after > before / 8);
      ++between;
    }
  }
  CHECK(kept > 0);
  CHECK(stretched > 0);
  CHECK(between > 0);
}

TEST_CASE("Only Gemma's sliding layers have a rope base of their own", "[model][MP-1]") {
  ModelConfig config = rope_config({.kind = RopeKind::kLinear, .factor = 8});
  config.rope_local_theta = 7;
  CHECK(at::equal(inverse_frequencies(config, true), inverse_frequencies(config, false)));
  config.family = "gemma3";
  const at::Tensor local = inverse_frequencies(config, /*sliding=*/true);
  CHECK(local[1].item<double>() == Approx(std::pow(7.0, -2.0 / 16.0)).epsilon(1e-15));
}

}  // namespace shardproof
