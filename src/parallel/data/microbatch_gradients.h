// Gradients of a replicated model over the microbatches of a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/decoder.h"

namespace shardproof {

// Gives every trained weight of a linear a main gradient. Its buffer has no memory yet.
void use_main_gradients(Decoder& model);

// Sums the gradients of each backward in the wider type (model/precision.h). Autograd itself adds
// to a low-precision leaf in that precision and loses small addends. Fully sharded units also sum
// in the wider type.
class MicrobatchGradients {
 public:
  // Call it before a microbatch's forward: main gradients without a buffer get one of zeros.
  void begin(const std::vector<ParameterPtr>& parameters);
  // Call it after a microbatch's backward. Leaves of the wider type keep their gradients.
  void keep(const std::vector<ParameterPtr>& parameters);
  // Returns the sums, one per parameter in the wider type, with zeros where no backward left any,
  // and clears the leaves, main gradients and this object. No communication.
  std::vector<at::Tensor> take(const std::vector<ParameterPtr>& parameters);
  void drop(const std::vector<ParameterPtr>& parameters);

 private:
  std::vector<at::Tensor> kept_;  // empty: nothing yet
};

}  // namespace shardproof
