// Values moved at random by as much as a rounding may move them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace shardproof::sim {

// Members of an ensemble in a lower precision beside the run that is not perturbed: with so many, a
// correct run whose error is drawn as theirs lies beyond kScatters times the largest in less than
// one of 10^8 scalars (sim/judge/diff/tolerance.h).
inline constexpr int64_t kPerturbed = 16;

// Every element times 1 + u eps / 2, u uniform in [-1, 1] from the stream (seed, `stream`), eps the
// gap above 1 of the dtype; 0 stays 0. Any floating dtype and shape; the gradient takes the same
// factor.
at::Tensor moved_by_rounding(const at::Tensor& value, int64_t seed, const std::string& stream);

// Uniform in [-1, 1], float64, of the shape of `like`.
at::Tensor uniform_noise(const at::Tensor& like, int64_t seed, const std::string& stream);

}  // namespace shardproof::sim
