// Differentiable collectives: each is a pair, what runs forward and what brings the gradient back.
//
// The name is the pair. Which backward is right depends on what the ranks compute from the result:
//
//   DIFFERENT things   each holds an addend of the gradient, {U_axis}: the backward must sum
//   THE SAME           each holds the whole gradient: the backward must not sum, it slices or
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
// Common to all: any floating dtype, any strides (also of the gradient), zero-sized tensors; inputs
// and incoming gradients are never written to, since a gradient may flow elsewhere too. `sizes` are
// the parts along `dim`, one per rank of the axis; empty: even parts (what does not divide is an
// Error(kRefused) with both numbers). A call is recorded under `label` with " forward" or
// " backward" behind it. An axis of one rank communicates nothing. A backward
// whose communicator has ended throws Error(kBadInput). No second derivatives (asserted). `buffer`
// (may be null; outlives the backward): memory for what is gathered, forward or backward.
//
// Source: Megatron-LM mappings.py (re-created; there on the first and last dim only, and a strided
// tensor comes out of its all-reduce unreduced).
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

// Leaves such a region: sums the ranks' addends. All ranks compute alike what follows.
at::Tensor all_reduce_with_identity_backward(const at::Tensor& addend, Communicator& axis,
                                             std::string_view label);

// Gathers `dim` for ranks that go on to compute different things.
at::Tensor all_gather_with_reduce_scatter_backward(const at::Tensor& local, Communicator& axis,
                                                   int64_t dim, std::string_view label,
                                                   const std::vector<int64_t>& sizes = {},
                                                   GatherBuffer* buffer = nullptr);

// Gathers `dim` for ranks that all go on to compute the same: summing their equal gradients would
// scale them by axis.size().
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
