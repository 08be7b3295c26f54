// Differentiable collectives: each is a pair of a forward and the backward that returns the
// gradient.
//
// The name is the pair. The right backward depends on what the ranks compute from the result:
//
//   DIFFERENT things   each holds an addend of the gradient, {U_axis}: the backward must sum
//   THE SAME           each holds the whole gradient: the backward must not sum; it slices or
//                      does nothing
//
// Legend: D a dim's full size, D_axis this rank's part, {U_axis} not yet summed over the axis.
//
//   forward                          backward
//   copy            [D]      -> [D]        all_reduce      [D] {U_axis} -> [D]
//   all_reduce      [D] {U}  -> [D]        identity        [D]          -> [D]
//   all_gather      [D_axis] -> [D]        reduce_scatter  [D] {U_axis} -> [D_axis]
//   all_gather      [D_axis] -> [D]        slice           [D]          -> [D_axis]
//   reduce_scatter  [D] {U}  -> [D_axis]   all_gather      [D_axis]     -> [D]
//   slice           [D]      -> [D_axis]   all_gather      [D_axis]     -> [D]
//
// Common to all: any floating dtype, any strides (also of the gradient), zero-sized tensors. Inputs
// and incoming gradients are never written to, since a gradient may flow elsewhere too. `sizes` are
// the parts along `dim`, one per rank of the axis; empty: even parts (throws Error(kRefused) with
// both numbers when they do not divide). A call is recorded under `label` with " forward" or "
// backward" appended. An axis of one rank communicates nothing. A backward whose communicator has
// ended throws Error(kBadInput). No second derivatives (asserted). `buffer`, which may be null and
// must outlive the backward, gives the memory for gathered tensors, forward or backward.
//
// Source: Megatron-LM mappings.py (rewritten; there only for the first and last dim, and its
// all-reduce does not reduce a strided tensor).
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "collective/gather_buffer.h"
#include "comm/communicator.h"

namespace shardproof {

// Enters a region where each rank computes its own part of the work from the same `input`.
at::Tensor copy_with_all_reduce_backward(const at::Tensor& input, Communicator& axis,
                                         std::string_view label);

// Leaves such a region: sums the ranks' addends. All ranks must compute the same from the result.
at::Tensor all_reduce_with_identity_backward(const at::Tensor& addend, Communicator& axis,
                                             std::string_view label);

// Gathers `dim` for ranks that compute different things from the result.
at::Tensor all_gather_with_reduce_scatter_backward(const at::Tensor& local, Communicator& axis,
                                                   int64_t dim, std::string_view label,
                                                   const std::vector<int64_t>& sizes = {},
                                                   GatherBuffer* buffer = nullptr);

// Gathers `dim` for ranks that all compute the same from the result: a sum of their equal gradients
// would be axis.size() times too large.
at::Tensor all_gather_with_slice_backward(const at::Tensor& local, Communicator& axis, int64_t dim,
                                          std::string_view label,
                                          const std::vector<int64_t>& sizes = {});

// Sums the ranks' addends and keeps this rank's part of `dim`.
at::Tensor reduce_scatter_with_all_gather_backward(const at::Tensor& addend, Communicator& axis,
                                                   int64_t dim, std::string_view label,
                                                   const std::vector<int64_t>& sizes = {},
                                                   GatherBuffer* buffer = nullptr);

// Keeps this rank's part of a tensor that all ranks hold.
at::Tensor slice_with_all_gather_backward(const at::Tensor& full, Communicator& axis, int64_t dim,
                                          std::string_view label,
                                          const std::vector<int64_t>& sizes = {});

}  // namespace shardproof
