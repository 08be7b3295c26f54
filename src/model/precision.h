// The dtype of each quantity, by one rule for the golden and for every rank.
//
//   precision   forward and backward   wide layers   reduced gradients and optimizer
//   float64     float64                float64       float64
//   float32     float32                float32       float32
//   bfloat16    bfloat16               float32       float32, on master weights
//   float16     float16                float32       float32, on master weights
//
// Forward and backward: leaves, activations and their gradients. Wide layers: norms, rope tables
// and the rotation, the attention core from scores to output, logprobs and losses.
//
// A layer that computes in the wider type casts its inputs on entry and its output back to the
// input's dtype. A master weight is the full weight cast to the wider type; the leaf that the
// forward uses is the master cast down (never the full weight cast down directly: that rounds once
// instead of twice). The optimizer updates the master; refresh_leaf copies it down again.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "model/slot.h"

namespace shardproof {

// The dtype of forward and backward. Throws Error(kRefused) for an unsupported precision.
at::ScalarType dtype_of_precision(const std::string& precision);

// float64 stays float64; everything else becomes float32.
at::ScalarType wider_type(at::ScalarType dtype);

// The tensor that the optimizer updates and that "param.<name>" shows: the master, or the leaf if
// it has the wider type already. The result is an alias without gradient history.
at::Tensor master_of(const Parameter& parameter);

// The leaf's gradient in the wider type, before any reduction; zeros where backward left none.
at::Tensor gradient_of(const Parameter& parameter);

// Copies the master into the leaf after an optimizer step. Does nothing when they are one tensor.
void refresh_leaf(const Parameter& parameter);

}  // namespace shardproof
