// Muon's step of a matrix, which is not elementwise: it needs the whole matrix.
//
//   buffer'     = momentum buffer + (1 - momentum) g
//   direction   = (1 - momentum) g + momentum buffer' with nesterov, else buffer'
//   update      = orthogonalized(direction), times sqrt(max(1, rows / columns))
//   w'          = w (1 - lr decay) - lr update
//
// The direction and the last line are elementwise, so a rank makes them of its shards. Between them
// the whole direction is collected (train/whole_matrices.h).
//
// Sources: Keller Jordan, https://kellerjordan.github.io/posts/muon/; torch.optim.Muon of PyTorch
// 2.11, whose scale of the update is the one that it calls "original". There the iteration runs in
// bfloat16, here in the dtype of the direction.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "optim/optimizer.h"

namespace shardproof {

struct MuonStep {
  at::Tensor momentum_buffer = {};  // after the step
  at::Tensor update = {};           // of the shape of the gradient
};

// The buffer after the step, and the direction in place of the update. `state` stays unchanged.
MuonStep muon_direction(const at::Tensor& grad, const OptimizerState& state,
                        const OptimizerOptions& options);

// The update of whole matrices from their direction [.., rows, columns]. `matrix_rows` are the rows
// of the matrices that are joined in it; each is made orthogonal alone.
at::Tensor muon_update(const at::Tensor& direction, const std::vector<int64_t>& matrix_rows);

// Updates `parameter` and `state` in place; `step` has the shape of the parameter.
void muon_step(const at::Tensor& parameter, const MuonStep& step, OptimizerState& state,
               const OptimizerOptions& options);

// Five steps of the quintic Newton-Schulz iteration on each matrix of [.., m, n]. It moves the
// singular values to about 1.
at::Tensor orthogonalized(const at::Tensor& matrix);

}  // namespace shardproof
