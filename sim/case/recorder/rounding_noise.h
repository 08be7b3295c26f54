// Random perturbations of values by as much as a rounding.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "model/decoder.h"

namespace shardproof::sim {

// Multiplies every element by 1 + u eps / 2 * roundings, with u uniform in [-1, 1] from the stream
// (seed, `stream`) and eps the gap above 1 of the dtype; 0 stays 0. Takes any floating dtype and
// shape. The gradient is multiplied by the same factor.
at::Tensor moved_by_rounding(const at::Tensor& value, int64_t seed, const std::string& stream,
                             double roundings = 1);

// Half the gap above 1 of a dtype: the most by which a rounding moves a value near 1.
double half_gap(at::ScalarType dtype);

// By how many roundings a member's outputs are moved. A member in a lower precision adds in that
// precision, so that one suffices. One in float64 adds as the run that nothing moves does, and
// another order of adding is several roundings.
double roundings_of_member(at::ScalarType dtype);

// Uniform in [-1, 1], float64, of the shape of `like`.
at::Tensor uniform_noise(const at::Tensor& like, int64_t seed, const std::string& stream);

// `value` with a number of up to `error` added to each element that is smaller than `error`.
at::Tensor doubted_within(const at::Tensor& value, double error, int64_t seed,
                          const std::string& stream);

// Slots whose output goes through a function: members of an ensemble move each output by a
// rounding.
using ChangeOutput = std::function<at::Tensor(const at::Tensor& output, const std::string& slot,
                                              const StepContext& context)>;

// Wraps the layer of every slot; the parameters stay those of the layer inside.
void change_outputs(Decoder& model, const ChangeOutput& change);

}  // namespace shardproof::sim
