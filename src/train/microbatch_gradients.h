// Gradients of a replicated model over the microbatches of a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/slot.h"

namespace shardproof {

// Sums what each backward leaves in the leaves in the wider type (model/precision.h): autograd
// itself adds to a low-precision leaf in that precision, and loses small addends. Fully sharded
// units sum in the wider type likewise.
class MicrobatchGradients {
 public:
  // After a microbatch's backward. Leaves that have the wider type keep what they hold.
  void keep(const std::vector<ParameterPtr>& parameters);
  // The sums, one per parameter in the wider type; zeros where no backward left any. The leaves and
  // this are empty afterwards. No communication.
  std::vector<at::Tensor> take(const std::vector<ParameterPtr>& parameters);
  void drop() { kept_.clear(); }

 private:
  std::vector<at::Tensor> kept_;  // empty: nothing yet
};

}  // namespace shardproof
