// The plain token embedding.
#include <ATen/ATen.h>

#include "model/decoder.h"

namespace shardproof {

at::Tensor Embedding::forward(at::TensorList inputs, const StepContext&) {
  return at::embedding(weight->tensor, inputs[0], pad_token_id);
}

}  // namespace shardproof
