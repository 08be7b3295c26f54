// A correct world of two by three ranks, and errors to plant in it.
#pragma once

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <functional>
#include <string>

#include "sim/judge/explain/assembled.h"
#include "tests/unit/judge/judged_world.h"

namespace shardproof::sim::judge {

inline constexpr const char* kGrad = "grad.w";

// An activation whose dims 0 and 1 are samples and positions, none of which is padding.
inline Observation of_tokens(const std::string& name, at::Tensor tensor, Phase phase) {
  Observation observation = seen(name, std::move(tensor), phase);
  observation.token_map =
      at::arange(observation.tensor.size(0) * observation.tensor.size(1), at::kLong)
          .view({observation.tensor.size(0), observation.tensor.size(1)});
  return observation;
}

// A tensor that one rank holds whole.
inline Piece piece_of(const at::Tensor& actual, const at::Tensor& golden,
                      const std::string& name = "t") {
  Piece piece;
  piece.kind = kind_of_name(Phase::kForward, name);
  piece.name = name;
  piece.global_shape = golden.sizes().vec();
  int64_t stride = golden.numel();
  for (const int64_t size : piece.global_shape) {
    stride /= size;
    piece.strides.push_back(stride);
    piece.dims.emplace_back();
    for (int64_t i = 0; i < size; ++i) piece.dims.back().push_back(i);
  }
  const at::Tensor a = actual.contiguous(), g = golden.contiguous();
  piece.actual.assign(a.data_ptr<double>(), a.data_ptr<double>() + a.numel());
  piece.golden.assign(g.data_ptr<double>(), g.data_ptr<double>() + g.numel());
  piece.allowance = 1e-10;
  return piece;
}

inline Assembled whole(const at::Tensor& actual, const at::Tensor& golden, bool tokens = false,
                       const std::string& name = "t") {
  const Piece piece = piece_of(actual, golden, name);
  Assembled out = *assemble({&piece});
  out.token_dims = tokens;
  return out;
}

// dp 2, tp 3: a weight [12, 10] cut over tp, with tensors before and after it.
inline JudgedWorld world(Precision precision = Precision::kFloat64) {
  JudgedWorld made(spec_of(2, 3, precision),
                   {seen("x.output", numbered({4, 6}), Phase::kForward),
                    seen("y.grad_input", numbered({4, 6}, 2), Phase::kBackward),
                    seen("x.grad_input", numbered({4, 6}, 3), Phase::kBackward),
                    seen(kGrad, numbered({12, 10}, 4)), seen("grad.b", numbered({12}, 5)),
                    seen("grad_norm", at::scalar_tensor(4.0, at::kDouble)),
                    seen("param.w", numbered({12, 10}, 6))});
  made.cut_as(kGrad, Layout({Cut::even(0, "tp")})).cut_as("param.w", Layout({Cut::even(0, "tp")}));
  return made;
}

// Changes one tensor on every rank.
inline JudgedWorld::Plant in(const std::string& name,
                             const std::function<at::Tensor(int64_t, at::Tensor)>& f) {
  return [=](int64_t rank, Observation& seen) {
    if (seen.name == name) seen.tensor = f(rank, seen.tensor.clone()).contiguous();
  };
}

inline Divergence found(const JudgedWorld& judged, const JudgedWorld::Plant& plant) {
  const CaseResult result = judged.run(plant);
  CHECK(result.verdict == Verdict::kMismatch);
  REQUIRE(result.divergence);
  return *result.divergence;
}

// Changes the full tensor before it is cut, as a wrong order or offset does.
inline JudgedWorld::Plant full(const JudgedWorld& judged, const std::string& name,
                               const Layout& layout,
                               const std::function<at::Tensor(const at::Tensor&)>& f) {
  for (const GoldenTensor& tensor : judged.golden().tensors()) {
    if (tensor.name != name) continue;
    const at::Tensor changed = f(tensor_of(tensor.value)).contiguous();
    const Mesh mesh = judged.mesh();
    return in(name, [=](int64_t rank, at::Tensor) { return cut(changed, layout, mesh, rank); });
  }
  return {};
}

// The layout of grad.w and param.w.
inline Layout rows_over_tp() { return Layout({Cut::even(0, "tp")}); }

}  // namespace shardproof::sim::judge
