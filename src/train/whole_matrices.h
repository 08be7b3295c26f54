// Collects the whole matrix of which each rank holds a shard, and cuts the shard out again. For an
// optimizer whose step needs the whole matrix (optim/muon.h).
//
//   [rows, columns]      cut over tp (columns or rows) and then over dp+cp (rows)
//   gather()             all_gather over dp+cp, then over tp: every rank has the matrix
//   shard()              its own part again
//
// Of a stack of matrices [N, rows, columns], cut along N too, a rank needs those that it holds a
// part of. A rank of a pipeline without the matrix takes no part.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/mesh_comm.h"
#include "model/slot.h"

namespace shardproof {

class WholeMatrix {
 public:
  // Both outlive it. `device`: where the communicators move tensors.
  WholeMatrix(const Parameter& parameter, MeshComm& comm, at::Device device);

  // The whole matrices from this rank's shard of each, on its device.
  //
  // Forward   all_gather over each axis that cuts rows or columns, the last cut first
  at::Tensor gather(const at::Tensor& shard) const;
  // A fresh tensor.
  at::Tensor shard(const at::Tensor& whole) const;
  // How the whole matrices that this rank gathers lie in the parameter.
  const Layout& layout() const { return kept_; }

 private:
  at::Tensor undo(size_t index, const at::Tensor& piece,
                  const std::vector<int64_t>& whole_shape) const;

  const Parameter& parameter_;
  MeshComm& comm_;
  at::Device device_;
  Layout undone_;  // the cuts of rows and columns
  Layout kept_;    // the others
};

}  // namespace shardproof
