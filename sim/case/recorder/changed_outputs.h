// Slots whose output goes through a function: members of an ensemble move each output by a
// rounding.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "model/decoder.h"

namespace shardproof::sim {

using ChangeOutput = std::function<at::Tensor(const at::Tensor& output, const std::string& slot,
                                              const StepContext& context)>;

// Wraps the layer of every slot; the parameters stay those of the layer inside.
void change_outputs(Decoder& model, const ChangeOutput& change);

}  // namespace shardproof::sim
