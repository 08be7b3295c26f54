// Cuts tensors by layouts and reassembles them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "mesh/layout.h"

namespace shardproof {

// This rank's piece of `full`, a fresh contiguous tensor. Padding positions are 0.
at::Tensor cut(const at::Tensor& full, const Layout& layout, const Mesh& mesh, int64_t rank);

// Writes this rank's piece of `full` to its places; padding is dropped.
void write_piece(const at::Tensor& full, const at::Tensor& piece, const Layout& layout,
                 const Mesh& mesh, int64_t rank);

// Makes the full tensor from every rank's piece (index = rank). Among equal copies the lowest
// rank's counts; padding is dropped. Throws Error(kBadInput) for elements that no rank holds.
at::Tensor reassemble(const std::vector<at::Tensor>& pieces,
                      const std::vector<int64_t>& global_shape, const Layout& layout,
                      const Mesh& mesh);

}  // namespace shardproof
